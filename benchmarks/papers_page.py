"""Writes docs/papers.md and docs/design/dally.md from the stored figures of `make papers`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from berth.simulate.intervals import median_interval, paired_ratios
from berth.units import format_count, format_seconds
from message_gate import GATES
from papers_ratios import Ratio, Study, losses, overall, tally
from papers_runs import (
    ARRIVALS,
    METHODS,
    METRICS,
    MODES,
    PENALTIES,
    READINGS,
    SCATTER_GATE,
    SCATTER_PENALTY,
    SCATTERED,
)
from results import load

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "assets" / "results"
TUNED = "dally, tuned"
WORDS = dict(zip(METRICS, ("makespan", "mean JCT", "p95 JCT", "p99 JCT", "communication"), strict=True))
NOT_YET = "No stored figures yet: `make papers`."
CONSOLIDATING = ("tiresias", "gandiva")


def pages(data: dict[str, Any], docs: Path) -> dict[str, str]:
    """The pages by name, with what is between their markers written again."""
    tables = {"in short": in_short(data), "training": training(), "spent": spent(data)}
    tables |= dict.fromkeys(
        ("schedulers", "losses", "cells", "lwf", "messages", "readings", "plans"), NOT_YET
    )
    if "schedulers" in data:
        study = Study(data, "schedulers")
        tables |= {
            "schedulers": schedulers(study, data["schedulers"]["about"]),
            "losses": where_it_loses(study),
            "cells": every_cell(study),
            "lwf": lwf(Study(data, "lwf")),
            "readings": readings(Study(data, "variants"), data["schedulers"]["about"]),
        }
    if "messages" in data:
        tables["messages"] = messages(data)
    if "plans" in data:
        tables["plans"] = planners(data)
    return {
        name: fill((docs / name).read_text(encoding="utf-8"), tables)
        for name in ("papers.md", "design/dally.md")
    }


def fill(page: str, tables: dict[str, str]) -> str:
    """Replace what is between the markers of each table that the page has."""
    for name, text in tables.items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"
        if begin in page:
            before, rest = page.split(begin)
            page = f"{before}{begin}{text}\n{end}{rest.split(end)[1]}"
    return page


def in_short(data: dict[str, Any]) -> str:
    """A sentence for each question, from the figures."""
    lines = []
    if "schedulers" in data:
        study = Study(data, "schedulers")
        for arrivals in _kinds(study):
            parts = [
                f"{overall(study.ratios(TUNED, other, 'mean_jct_s', arrivals)):.2f} of {other}'s"
                for other in CONSOLIDATING
            ]
            best = study.best(list(MODES), "mean_jct_s", arrivals)
            ours = tally(study.ratios("berth", best, "mean_jct_s", arrivals))
            lines.append(
                f"{arrivals.capitalize()} arrivals: mean JCT of `{TUNED}` is {' and '.join(parts)} over all cells "
                f"(geometric mean). Its best mode is `{best}`; `berth` over that mode: {ours} "
                "(cells better/within noise/worse)."
            )
    if "plans" in data:
        learned, exact = (_plan_points(data, method) for method in ("reinforce-lstm", "exact"))
        ratios = [one["ratio"] for one in learned if one["ratio"] is not None]
        slowest, quick = (max((one["cpu_s"] for one in points), default=0.0) for points in (learned, exact))
        cost = f", at {min(ratios):.2f} to {max(ratios):.2f} times the least cost" if ratios else ""
        lines.append(
            f"Planning, {data['plans']['about']['plan_s']:g} CPU seconds per search: "
            f"`reinforce-lstm` finds a plan for {len(ratios)} of {len(learned)} problems{cost}, in up to "
            f"{slowest:.2g} CPU seconds; `exact` has the optimum of all in up to {quick:.2g} s."
        )
    return "\n".join(f"- {line}" for line in lines)


def schedulers(study: Study, about: dict[str, Any]) -> str:
    """Dally's part: one mode over every other policy."""
    seeds, load = format_count(about["seeds"], "seed"), f"{ARRIVALS['poisson'][1]:g}"
    lines = [
        f"{about['jobs_per_rack']} jobs per rack, {seeds} per cell; Poisson arrivals have a load of {load}.\n"
    ]
    for arrivals in _kinds(study):
        rows = [
            [f"`{policy}`", *(tally(study.ratios(TUNED, policy, metric, arrivals)) for metric in METRICS)]
            for policy in study.policies
            if policy != TUNED
        ]
        lines += [f"**{arrivals.capitalize()} arrivals**\n"]
        lines += [f"![{TUNED} over each policy, {arrivals} arrivals](assets/papers-{arrivals}.svg)\n"]
        lines += [_folded("The same in numbers", _table(["/ policy", *WORDS.values()], rows)), ""]
    return "\n".join(lines)


def where_it_loses(study: Study) -> str:
    """Every mode against every other policy."""
    rows = []
    for mode in MODES:
        for other in (policy for policy in study.policies if policy not in MODES):
            if cells := losses(study.ratios(mode, other, "mean_jct_s")):
                shown = cells.split("; ")
                more = f"; and {len(shown) - 2} more" if len(shown) > 2 else ""
                rows.append([f"`{mode}`", f"`{other}`", "; ".join(shown[:2]) + more])
    return _table(["mode", "/ policy", "worst cells"], rows) if rows else "None.\n"


def every_cell(study: Study) -> str:
    """Medians over seeds, cell by cell, folded by arrivals."""
    lines = ["Medians over seeds.\n"]
    for arrivals in _kinds(study):
        tables = []
        for where in (cell for cell in study.cells if cell[0] == arrivals):
            title = f"{format_count(where[1], 'rack')}, congestion x{where[2]:g}"
            rows = [
                [f"`{policy}`", *(format_seconds(study.median(where, policy, metric)) for metric in METRICS)]
                for policy in study.policies
            ]
            tables.append(f"**{title}**\n\n{_table(['policy', *WORDS.values()], rows).strip()}\n")
        lines += [_folded(f"{arrivals.capitalize()} arrivals, cell by cell", "\n".join(tables))]
    return "\n".join(lines)


def lwf(study: Study) -> str:
    """LWF's part: the threshold of messages."""
    base, metrics = "ratio 0.5", ("mean_jct_s", "makespan_s")
    kinds = _kinds(study)
    rows = [
        [
            f"`lwf:ratio={name.removeprefix('ratio ')}`",
            *(tally(study.ratios(name, base, metric, kind)) for kind in kinds for metric in metrics),
        ]
        for name in study.policies
        if name != base
    ]
    heads = ["policy / `ratio=0.5`", *(f"{kind}: {WORDS[metric]}" for kind in kinds for metric in metrics)]
    return _table(heads, rows)


def messages(data: dict[str, Any]) -> str:
    """AdaDUAL's part: gates of all-reduces over the one that never shares, and k over 1."""
    about = data["messages"]["about"]
    values = {
        (one["gate"], one["penalty"], one["k"]): one["mean_jct_s"] for one in data["messages"]["points"]
    }
    base, *others = GATES
    medians = [format_seconds(float(np.median(values[base, penalty, 1]))) for penalty in PENALTIES]
    rows = [[f"{base}, median", *medians]]
    rows += [
        [f"{gate} / {base}", *(_over(values[gate, e, 1], values[base, e, 1]) for e in PENALTIES)]
        for gate in others
    ]
    known = values[SCATTER_GATE, SCATTER_PENALTY, 1]
    scattered = [
        [f"k = {k}", _over(values[SCATTER_GATE, SCATTER_PENALTY, k], known)] for k in SCATTERED if k > 1
    ]
    return "\n".join(
        [
            f"{format_count(about['jobs'], 'job')}, {format_count(about['seeds'], 'seed')}; mean JCT, median ratio and "
            "95 % interval over seeds.\n",
            _table(["", *(f"e = {penalty:g} b" for penalty in PENALTIES)], rows),
            "",
            _table([f"{SCATTER_GATE}, e = {SCATTER_PENALTY:g} b", "/ k = 1"], scattered),
        ]
    )


def _over(mine: list[float], base: list[float]) -> str:
    each = paired_ratios(np.array(mine), np.array(base))
    return str(Ratio(("", 0, 0.0), float(np.median(each)), *(median_interval(each) or (None, None))))


def readings(study: Study, about: dict[str, Any]) -> str:
    """What the abstract leaves open, each reading alone."""
    default = next(iter(READINGS))
    congestions = ", ".join(f"x{value:g}" for value in dict.fromkeys(where[2] for where in study.cells))
    seeds, racks = format_count(about["seeds"], "seed"), format_count(study.cells[0][1], "rack")
    lines = [f"{seeds} per cell, {racks} of 8x8 V100s, congestion {congestions}.\n"]
    for arrivals in _kinds(study):
        rows = []
        for name in study.policies:
            mode, reading = name.split(", ", 1)
            if reading != default:
                base = f"{mode}, {default}"
                rows.append(
                    [name, *(tally(study.ratios(name, base, metric, arrivals)) for metric in METRICS)]
                )
        lines += [f"**{arrivals.capitalize()} arrivals**\n", _table(["reading", *WORDS.values()], rows), ""]
    lines += [
        "**Tuned over manual**, each with the same reading: is it the reading that makes the tuner weak?\n"
    ]
    rows = []
    for reading in READINGS:
        pair = f"tuned, {reading}", f"manual, {reading}"
        rows.append([reading, *(tally(study.ratios(*pair, "mean_jct_s", kind)) for kind in _kinds(study))])
    return "\n".join([*lines, _table(["reading", *(f"mean JCT, {kind}" for kind in _kinds(study))], rows)])


def planners(data: dict[str, Any]) -> str:
    """HeterPS' part: cost and planning time by method."""
    about = data["plans"]["about"]
    lines = [
        f"At most {about['plan_s']:g} CPU seconds for each search; the throughput is {100 * about['share']:g} % of the "
        "highest that the devices can hold.\n"
    ]
    for group, title in (
        ("models", "By model"),
        ("layers", "By layers (CTRDNN)"),
        ("types", "By types (CTRDNN)"),
    ):
        points = {
            (one["label"], one["method"]): one for one in data["plans"]["points"] if one["group"] == group
        }
        labels = list(dict.fromkeys(label for label, _ in points))
        rows = [
            [f"`{method}`", *(_plan_cell(points[label, method]) for label in labels)]
            for method in METHODS
            if all((label, method) in points for label in labels)
        ]
        lines += [f"**{title}**\n", _table(["method", *labels], rows), ""]
    return "\n".join(lines)


def training() -> str:
    """Training beside other programs, from stored results; nothing is run."""
    lines = []
    for name, target in (("train", "bench-train"), ("train-peers", "bench-train-peers")):
        file = RESULTS / f"{name}.json"
        if not file.exists():
            lines.append(
                f"TorchRec, FBGEMM and TensorFlow: no stored results; `make {target}` measures them.\n"
            )
            continue
        stored = load(file)
        figures = [one for one in stored.figures if "times the floor" in one.table]
        rows = [[one.table, one.what, f"{one.median:.2f}", one.beside] for one in figures]
        lines += [f"Stored by `make {target}`, {stored.date}; CPU time as a multiple of what is beside it.\n"]
        lines += [_table(["", "", "median", "beside"], rows), ""]
    return "\n".join(lines)


def spent(data: dict[str, Any]) -> str:
    """What the stored figures took."""
    parts = {part: data[part]["about"] for part in ("schedulers", "messages", "plans") if part in data}
    took = "; ".join(f"{part}: {about['took']}, {about['date']}" for part, about in parts.items())
    return f"The stored figures (`docs/assets/papers.json`): {took or 'none yet'}."


def _kinds(study: Study) -> list[str]:
    return list(dict.fromkeys(where[0] for where in study.cells))


def _plan_points(data: dict[str, Any], method: str) -> list[dict[str, Any]]:
    return [one for one in data["plans"]["points"] if one["method"] == method]


def _plan_cell(one: dict[str, Any]) -> str:
    cost = "no plan" if one["ratio"] is None else f"{one['ratio']:.3f}"
    return f"{cost} · {one['cpu_s']:.2g} s"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _folded(title: str, text: str) -> str:
    """Shown on request, by the built documentation and by a code host's rendering."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text.strip()}\n\n</details>\n'
