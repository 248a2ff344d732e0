"""Maps of a sweep, in the terminal and as HTML: one policy over another, load down, congestion across."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.text import Text

from berth.report.fitting import FittingTable
from berth.report.heat import STEPS, heat_class, heat_level, heat_style, legend
from berth.report.html import page
from berth.report.simulation import format_metric, labels, print_notes
from berth.simulate.compared import ComparedMetric
from berth.simulate.intervals import FEWEST_SEEDS
from berth.simulate.sweep import AT_ONCE, Grid, Ratio, Row, ratios
from berth.units import format_count

Cells = dict[tuple[float, float], Ratio]  # by load and congestion


@dataclass(frozen=True)
class Shown:
    """A finished sweep and the metric its maps are of."""

    grid: Grid
    rows: Sequence[Row]
    metric: ComparedMetric

    def maps(self) -> Iterator[tuple[str, str, Cells]]:
        """(policy, mix, ratio to the first policy by load and congestion)."""
        base, *others = self.grid.policies
        for policy in others:
            for mix in self.grid.mixes:
                cells = {
                    (load, congestion): ratios(
                        self.rows, mix, load, congestion, policy, base, self.metric.field
                    )
                    for load in self.grid.loads
                    for congestion in self.grid.congestions
                }
                yield policy, mix, cells

    def verdicts(self, names: dict[str, str]) -> list[str]:
        """One sentence per map: in how many cells a policy is better or worse, and where most."""
        return [
            map_verdict(cells, self.metric, f"{names[policy]} (mix {mix})", names[self.grid.policies[0]])
            for policy, mix, cells in self.maps()
        ]

    def median(self, policy: str, mix: str, load: float, congestion: float) -> float:
        """The median of a policy's figure over the seeds of a cell."""
        wanted = {"policy": policy, "mix": mix, "load": load, "congestion": congestion}
        return median(
            float(row["result"][self.metric.field])
            for row in self.rows
            if all(row["cell"][name] == value for name, value in wanted.items())
        )

    def as_json(self) -> list[dict[str, Any]]:
        """Plain data, one entry per cell of a map."""
        return [
            {
                "policy": policy,
                "against": self.grid.policies[0],
                "mix": mix,
                "metric": self.metric.field,
                "load": load,
                "congestion": congestion,
                "ratio": one.ratio,
                "low": one.low,
                "high": one.high,
            }
            for policy, mix, cells in self.maps()
            for (load, congestion), one in cells.items()
        ]


def print_maps(out: Console, shown: Shown, files: Sequence[str] = (), notes: Sequence[str] = ()) -> None:
    """One map per policy and mix."""
    grid = shown.grid
    names, legend = labels(grid.policies)
    short = dict(zip(grid.policies, names, strict=True))
    for policy, mix, cells in shown.maps():
        title = f"{shown.metric.name} of {short[policy]} / {short[grid.policies[0]]}, mix {mix}"
        out.print(Text(title, style="bold"))
        result = FittingTable(box=box.SIMPLE_HEAD, pad_edge=False)
        result.add_column("load", justify="left")
        for congestion in grid.congestions:
            result.add_column(f"congestion x{congestion:g}", justify="right")
        for load in grid.loads:
            row = (_cell(cells[load, congestion], shown.metric) for congestion in grid.congestions)
            result.add_row("all at once" if load == AT_ONCE else f"{load:g}", *row)
        out.print(result)
        sentence = map_verdict(cells, shown.metric, short[policy], short[grid.policies[0]])
        out.print(sentence, markup=False, soft_wrap=True)
    seeds = format_count(grid.seeds, "seed")
    traces = f"{format_count(grid.jobs, 'job')} ({grid.sizes}, {grid.durations}) on {grid.cluster}"
    better = "below" if shown.metric.less_is_better else "above"
    out.print(f"{better} 1: the policy named first is better")
    out.print(f"median over {seeds} of {traces}", soft_wrap=True, markup=False)
    enough = grid.seeds >= FEWEST_SEEDS
    noise = "~ within the noise of the seeds (95 % interval of the median contains 1)"
    out.print(noise if enough else f"no intervals: they need --seeds {FEWEST_SEEDS} or more", markup=False)
    for line in legend:
        out.print(line, markup=False, soft_wrap=True)
    print_notes(out, notes)
    for file in files:
        out.print(f"wrote {file}", markup=False, soft_wrap=True)


def map_verdict(cells: Cells, metric: ComparedMetric, name: str, base: str) -> str:
    """Return one sentence about a map."""
    known = {at: one for at, one in cells.items() if one.low is not None and one.ratio is not None}
    if cells and all(one.ratio is None for one in cells.values()):
        return f"{metric.name}: no ratio, it is 0 under {name} or {base} in every cell."
    if not known:
        return f"{metric.name}: too few seeds to say whether {name} is better than {base}."
    better = {at: one for at, one in known.items() if one.better(metric.less_is_better)}
    worse = {at: one for at, one in known.items() if one.clear and at not in better}
    noise = len(known) - len(better) - len(worse)
    counts = [
        f"{word} than {base} in {len(found)} of {format_count(len(known), 'cell')}{_most(found)}"
        for word, found in (("better", better), ("worse", worse))
        if found
    ]
    if noise and not counts:
        counts = [f"within noise of {base} in {format_count(noise, 'cell')}"]
    elif noise:
        counts.append(f"within noise in {noise}")
    return f"{metric.name}: {name} is {', '.join(counts)}."


def _most(found: Cells) -> str:
    """Where the difference is largest."""
    (load, congestion), one = max(found.items(), key=lambda item: abs(math.log(item[1].ratio or 1.0)))
    change = 100 * ((one.ratio or 1.0) - 1)
    return f" (most at {_load_label(load)}, congestion x{congestion:g}: {change:+.0f} %)"


def _load_label(load: float) -> str:
    return "all at once" if load == AT_ONCE else f"load {load:g}"


def _cell(one: Ratio, metric: ComparedMetric) -> Text:
    return Text(written(one), style=_style(one, metric) if one.clear else "dim")


def _style(one: Ratio, metric: ComparedMetric) -> str:
    level = heat_level(one.ratio or 1.0, less_is_better=metric.less_is_better)
    if level == 0:
        return ""
    colour = "green" if level < 0 else "red"
    return f"black on {colour}" if abs(level) > STEPS // 3 else colour


def written(one: Ratio) -> str:
    """Return the ratio, with a mark if it is within the noise of the seeds."""
    return "none" if one.ratio is None else f"{'~' if one.noise else ''}{one.ratio:.2f}"


def maps_page(shown: Shown, notes: Sequence[str] = ()) -> str:
    """The maps as one HTML file."""
    grid = shown.grid
    facts = {
        "cluster": grid.cluster,
        "traces": f"{grid.seeds} x {format_count(grid.jobs, 'job')} per cell",
        "sizes": grid.sizes,
        "durations": grid.durations,
        "arrivals": grid.arrivals,
        **({"failures": grid.faults} if grid.faults else {}),
        "metric": shown.metric.name,
        "durations on": shown.rows[0]["cell"]["reference_device"],
    }
    chips = "".join(f"<li><span>{key}</span> {html.escape(value)}</li>" for key, value in facts.items())
    names = {policy: policy for policy in grid.policies}
    lead = "".join(f"<p>{html.escape(text)}</p>" for text in shown.verdicts(names))
    remarks = "".join(f"<li>{html.escape(text)}</li>" for text in notes)
    sections = "\n".join(_section(shown, *entry) for entry in shown.maps())
    body = (
        f'<header><h1>Sweep</h1><ul class="chips">{chips}</ul></header>\n<main>'
        f'<section class="wide verdict"><h2>In short</h2>{lead}'
        f"{legend(less_is_better=shown.metric.less_is_better)}</section>\n{sections}\n"
        '<section class="wide"><p class="quiet">Large: the median over seeds of the ratio to the first policy. Below '
        "it its 95 % interval, and the medians of both policies. All figures are simulated, not measured.</p>"
        f'<ul class="notes">{remarks}</ul></section></main>'
    )
    return page("berth sweep", body, {"maps": shown.as_json()}, "sweep", heat_style())


def _section(shown: Shown, policy: str, mix: str, cells: Cells) -> str:
    grid = shown.grid
    head = "".join(f'<th scope="col">congestion x{value:g}</th>' for value in grid.congestions)
    rows = "".join(
        f'<tr><th scope="row">{_load_label(load)}</th>'
        + "".join(
            _html_cell(shown, cells[load, congestion], (policy, mix, load, congestion))
            for congestion in grid.congestions
        )
        + "</tr>"
        for load in grid.loads
    )
    title = f"{shown.metric.name}: {policy} / {grid.policies[0]}, mix {mix}"
    return (
        f'<section><h2>{html.escape(title)}</h2><div class="scroll"><table class="heat">'
        f'<thead><tr><th scope="col">load</th>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _html_cell(shown: Shown, one: Ratio, at: tuple[str, str, float, float]) -> str:
    metric, (policy, mix, load, congestion) = shown.metric, at
    mine, base = (
        format_metric(metric.unit, shown.median(name, mix, load, congestion))
        for name in (policy, shown.grid.policies[0])
    )
    small = f"<small>{html.escape(mine)} / {html.escape(base)}</small>"
    if one.ratio is None:
        return f'<td class="unknown">none{small}</td>'
    interval = "" if one.low is None else f"<small>{one.low:.2f} – {one.high:.2f}</small>"
    shade = heat_class(one.ratio, less_is_better=metric.less_is_better)
    return f'<td class="{shade}{" noise" if one.noise else ""}">{written(one)}{interval}{small}</td>'
