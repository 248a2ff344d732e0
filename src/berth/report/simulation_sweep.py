"""Maps of a sweep, in the terminal and as HTML: one policy over another, load down, congestion across."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from berth.report.html import heat_colour, page
from berth.report.simulation import labels, print_notes
from berth.simulate.sweep import Grid, Ratio, Row, ratios
from berth.units import format_count

_STYLES = {
    -4: "black on green", -3: "black on green", -2: "green", -1: "green",
    0: "", 1: "red", 2: "red", 3: "black on red", 4: "black on red",
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A finished sweep and the metric its maps are of."""

    grid: Grid
    rows: Sequence[Row]
    word: str
    metric: str

    def maps(self) -> Iterator[tuple[str, str, dict[tuple[float, float], Ratio]]]:
        """(policy, mix, ratio to the first policy by load and congestion)."""
        base, *others = self.grid.policies
        for policy in others:
            for mix in self.grid.mixes:
                cells = {
                    (load, congestion): ratios(self.rows, mix, load, congestion, policy, base, self.metric)
                    for load in self.grid.loads
                    for congestion in self.grid.congestions
                }
                yield policy, mix, cells

    def as_json(self) -> list[dict[str, Any]]:
        """Plain data, one entry per cell of a map."""
        return [
            {
                "policy": policy,
                "against": self.grid.policies[0],
                "mix": mix,
                "metric": self.metric,
                "load": load,
                "congestion": congestion,
                "ratio": one.ratio,
                "low": one.low if self.grid.seeds > 1 else None,
                "high": one.high if self.grid.seeds > 1 else None,
            }
            for policy, mix, cells in self.maps()
            for (load, congestion), one in cells.items()
        ]


def print_maps(out: Console, shown: Shown, written: str | None, notes: Sequence[str] = ()) -> None:
    """One map per policy and mix."""
    grid = shown.grid
    names, legend = labels(grid.policies)
    short = dict(zip(grid.policies, names, strict=True))
    for policy, mix, cells in shown.maps():
        title = f"{shown.word} of {short[policy]} / {short[grid.policies[0]]}, mix {mix}"
        out.print(Text(title, style="bold"))
        result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        result.add_column("load", justify="left")
        for congestion in grid.congestions:
            result.add_column(f"congestion x{congestion:g}", justify="right")
        for load in grid.loads:
            result.add_row(f"{load:g}", *(_cell(cells[load, congestion]) for congestion in grid.congestions))
        out.print(result)
    seeds = format_count(grid.seeds, "seed")
    traces = f"{format_count(grid.jobs, 'job')} ({grid.sizes}, {grid.durations}) on {grid.cluster}"
    out.print("below 1: the policy named first is better")
    out.print(f"mean over {seeds} of {traces}", soft_wrap=True, markup=False)
    if grid.seeds > 1:
        out.print("~ within the noise of the seeds (95 % interval holds 1)", markup=False)
    for line in legend:
        out.print(line, markup=False, soft_wrap=True)
    print_notes(out, notes)
    if written:
        out.print(f"wrote {written}", markup=False, soft_wrap=True)


def _cell(one: Ratio) -> Text:
    return Text(written(one), style=_STYLES[heat_colour(one.ratio)] if one.clear else "dim")


def written(one: Ratio) -> str:
    """Return the ratio, with a mark if it is within the noise of the seeds."""
    return f"{'' if one.clear or one.high == float('inf') else '~'}{one.ratio:.2f}"


def maps_page(shown: Shown) -> str:
    """The maps as one HTML file."""
    grid = shown.grid
    facts = {
        "cluster": grid.cluster,
        "traces": f"{grid.seeds} x {format_count(grid.jobs, 'job')} per cell",
        "sizes": grid.sizes,
        "durations": grid.durations,
        "metric": shown.word,
        "durations on": shown.rows[0]["cell"]["reference_device"],
    }
    chips = "".join(f"<li><span>{key}</span> {html.escape(value)}</li>" for key, value in facts.items())
    sections = "\n".join(_section(shown, *entry) for entry in shown.maps())
    body = (
        f'<header><h1>Sweep</h1><ul class="chips">{chips}</ul></header>\n<main>{sections}\n'
        '<section class="wide"><p class="quiet">Green, below 1: the policy named first is better. Under each '
        "ratio its 95 % interval over seeds; ~ marks what is within the noise. Simulated, not measured.</p>"
        "</section></main>"
    )
    return page("berth sweep", body, {"maps": shown.as_json()}, "sweep")


def _section(shown: Shown, policy: str, mix: str, cells: dict[tuple[float, float], Ratio]) -> str:
    grid = shown.grid
    head = "".join(f'<th scope="col">congestion x{value:g}</th>' for value in grid.congestions)
    rows = "".join(
        f'<tr><th scope="row">load {load:g}</th>'
        + "".join(_html_cell(cells[load, congestion]) for congestion in grid.congestions)
        + "</tr>"
        for load in grid.loads
    )
    title = f"{policy} / {grid.policies[0]}, mix {mix}"
    return (
        f'<section><h2>{html.escape(title)}</h2><div class="scroll"><table class="heat">'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _html_cell(one: Ratio) -> str:
    interval = f"<small>{one.low:.2f} – {one.high:.2f}</small>" if one.high < float("inf") else ""
    shade = heat_colour(one.ratio) if one.clear or one.high == float("inf") else 0
    return f'<td class="h{shade}">{written(one)}{interval}</td>'
