"""The comparison of methods, in the terminal and as a page: cost relative to the optimum, and CPU seconds.

`compare_table` and `compare_document` show the methods on one problem, `Comparison` those of `berth plan bench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from berth import __version__
from berth.plan.bench import Result
from berth.plan.stage_reasons import device_mix
from berth.report.fitting import FittingTable
from berth.report.plan import money, print_item
from berth.report.plan_html import document, grid, items, section
from berth.report.terminal import table
from berth.units import format_count, format_seconds

TITLES = {
    "models": "By model, on five types",
    "layers": "By number of layers: CTRDNN on five types",
    "types": "By number of types: CTRDNN",
}
_OPTIMUM = "exact"
_NARROW = 5  # columns that fit into half of a page
_RATIO, _TIME = "ratio", "time"
_NEAR = 1.01  # times the optimum
_LEAST_S = 1e-5  # CPU seconds on the logarithmic axis of a chart


@dataclass(frozen=True)
class Comparison:
    """All results, and the conditions under which they were found."""

    results: list[Result]
    conditions: list[str]

    def of(self, group: str) -> tuple[list[str], list[str], dict[tuple[str, str], Result]]:
        """Return methods, labels of the cases, and the result of each pair."""
        chosen = {(one.method, one.case.label): one for one in self.results if one.case.group == group}
        methods = list(dict.fromkeys(name for name, _ in chosen))
        return methods, list(dict.fromkeys(label for _, label in chosen)), chosen

    @property
    def groups(self) -> list[str]:
        """Groups in the order in which they ran."""
        return list(dict.fromkeys(one.case.group for one in self.results))

    def cost_rows(self, group: str) -> list[list[str]]:
        """Return the dollars of the optimum, and the cost of each method relative to it."""
        methods, labels, cells = self.of(group)
        best = {label: _optimum(cells, label) for label in labels}
        rows = [["optimum", *("-" if (usd := best[label]) is None else money(usd) for label in labels)]]
        return rows + [
            [name, *(_ratio(cells[name, label], best[label]) for label in labels)] for name in methods
        ]

    def time_rows(self, group: str) -> list[list[str]]:
        """Return the CPU time of each method."""
        methods, labels, cells = self.of(group)
        return [[name, *(format_seconds(cells[name, label].cpu_s) for label in labels)] for name in methods]

    def in_short(self) -> list[str]:
        """Return two sentences: what exact search gives, and how far the other methods get."""
        exact = [one for one in self.results if one.method == _OPTIMUM]
        optimum = {_key(one): one.cost_usd for one in exact if one.cost_usd is not None}
        others: dict[str, list[float | None]] = {}
        for one in self.results:
            if one.method != _OPTIMUM and _key(one) in optimum:
                ratio = None if one.cost_usd is None else one.cost_usd / optimum[_key(one)]
                others.setdefault(one.method, []).append(ratio)
        if not optimum or not others:
            return []
        slowest = format_seconds(max(one.cpu_s for one in exact))
        near = [
            name for name, found in others.items() if all(one is not None and one <= _NEAR for one in found)
        ]
        without = [name for name, found in others.items() if None in found]
        return [
            f"exact finds the optimum of {len(optimum)} of {format_count(len(exact), 'problem')}, "
            f"each in {slowest} of CPU time at most.",
            f"Of the {format_count(len(others), 'other method')}, {_some(near)} within 1 % of it on all of them, and "
            f"{_some(without, 'finds', 'find')} no plan for at least one.",
        ]

    def without_plan(self) -> list[str]:
        """Return why methods found no plan: one line for each method and reason, with the problems."""
        found: dict[tuple[str, str], list[str]] = {}
        for one in self.results:
            if one.cost_usd is None:
                found.setdefault((one.method, one.note), []).append(_label(one))
        return [f"{name}: {why} ({', '.join(labels)})" for (name, why), labels in found.items()]

    def as_json(self) -> list[dict[str, Any]]:
        """Return one object per method and case."""
        return [
            {
                "group": one.case.group,
                "case": one.case.label,
                "layers": len(one.case.problem.layers),
                "types": len(one.case.problem.types),
                "throughput": one.case.problem.throughput,
                "method": one.method,
                "cost_usd": one.cost_usd,
                "worst_usd": one.worst_usd,
                "found": one.found,
                "seeds": one.seeds,
                "evaluations": one.evaluations,
                "cpu_s": one.cpu_s,
                "note": one.note,
            }
            for one in self.results
        ]


def _key(one: Result) -> tuple[str, str]:
    return one.case.group, one.case.label


def _label(one: Result) -> str:
    """`ctrdnn`, `16 layers`, `8 types`."""
    return one.case.label if one.case.group == "models" else f"{one.case.label} {one.case.group}"


def _some(names: Sequence[str], one: str = "is", several: str = "are") -> str:
    """`3 (a, b, c) are`."""
    listed = f" ({', '.join(names)})" if names else ""
    return f"{len(names) or 'none'}{listed} {several if len(names) > 1 else one}"


def compare_table(results: Sequence[Result]) -> Table:
    """Return a table of the methods on one problem: cost, ratio to exact, effort, and devices or why there is none."""
    shown = FittingTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("method", "cost", "x exact", "CPU time", "evaluations"):
        shown.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    shown.add_column("devices, note", overflow="fold")
    best = _exact_usd(results)
    for one in results:
        cost = "-" if one.cost_usd is None else money(one.cost_usd)
        about = "; ".join(filter(None, [device_mix(one.plan) if one.plan else "no plan", one.note]))
        cells = [
            one.method,
            cost,
            _times(one, best),
            format_seconds(one.cpu_s),
            f"{one.evaluations:,}",
            about,
        ]
        shown.add_row(*(Text(cell) for cell in cells), style="bold" if one.method == _OPTIMUM else None)
    return shown


def compare_document(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one object per method on one problem, for JSON."""
    best = _exact_usd(results)
    return [
        {
            "method": one.method,
            "cost_usd": one.cost_usd,
            "ratio_to_exact": None if best is None or one.cost_usd is None else one.cost_usd / best,
            "cpu_s": one.cpu_s,
            "evaluations": one.evaluations,
            "devices": None if one.plan is None else one.plan.device_counts,
            "seeds": one.seeds,
            "note": one.note,
        }
        for one in results
    ]


def _exact_usd(results: Sequence[Result]) -> float | None:
    return next((one.cost_usd for one in results if one.method == _OPTIMUM), None)


def _times(one: Result, best: float | None) -> str:
    return "-" if one.cost_usd is None or best is None else f"{one.cost_usd / best:.3f}"


def _optimum(cells: dict[tuple[str, str], Result], label: str) -> float | None:
    found = cells.get((_OPTIMUM, label))
    return found.cost_usd if found else None


def _ratio(one: Result, best: float | None) -> str:
    if one.cost_usd is None:
        return "-" if not one.found else f"- ({one.found} of {one.seeds})"
    if best is None:
        return money(one.cost_usd)
    return f"{one.cost_usd / best:.3f}" if one.cost_usd / best < 10 else f"{one.cost_usd / best:.3g}"


def print_comparison(out: Console, shown: Comparison) -> None:
    """Print a table of costs and one of times for each group."""
    for group in shown.groups:
        columns = ["method", *shown.of(group)[1]]
        out.print(Text(TITLES[group], style="bold"))
        out.print(table("", columns, shown.cost_rows(group)))
        out.print(Text("CPU time of planning", style="bold"))
        out.print(table("", columns, shown.time_rows(group)))
    print_item(out, "costs are multiples of the optimum, the median over seeds; -: no plan found", "")
    for text in shown.conditions:
        print_item(out, text, "note: ")
    for text in shown.in_short():
        print_item(out, text, "")


def comparison_page(shown: Comparison) -> str:
    """Return the comparison as a page: cost ratios and times as figures, then as tables."""
    sections, charts = [], {}
    if verdict := shown.in_short():
        sections.append(section("In short", items(verdict), wide=True))
    for group in shown.groups:
        columns = ["method", *shown.of(group)[1]]
        wide = len(columns) > _NARROW
        for figure, title in (
            (_RATIO, "cost, as a multiple of the optimum"),
            (_TIME, "CPU time of planning"),
        ):
            name = f"{figure}-{group}"
            charts[name] = _chart(shown, group, figure, title)
            sections.append(section(f"{TITLES[group]}: {title}", f'<figure id="{name}"></figure>', wide=True))
        costs, times = grid(columns, shown.cost_rows(group), [0]), grid(columns, shown.time_rows(group))
        sections.append(section(f"{TITLES[group]}: cost", costs, wide=wide))
        sections.append(section(f"{TITLES[group]}: CPU time", times, wide=wide))
    if reasons := shown.without_plan():
        sections.append(section("Where no plan was found", items(reasons, "notes"), wide=True))
    about = [
        "Costs are multiples of the optimum, the median over seeds; - means that no plan was found, "
        "for the reasons above, and a curve has a gap there."
    ]
    sections.append(section("Conditions", items([*about, *shown.conditions], "notes"), wide=True))
    facts = {"methods": str(len(shown.of(shown.groups[0])[0])), "berth": __version__}
    return document("berth plan bench", "Methods of planning compared", facts, sections, charts)


def _chart(shown: Comparison, group: str, figure: str, title: str) -> dict[str, Any]:
    """Return curves over the number of layers or types, or over the models."""
    methods, labels, cells = shown.of(group)
    by_model = group == "models"
    sizes = (
        list(range(1, len(labels) + 1)) if by_model else [cells[methods[0], one].case.size for one in labels]
    )
    curves: list[dict[str, Any]] = []
    for number, name in enumerate(methods):
        y = [_value(cells[name, label], _optimum(cells, label), figure) for label in labels]
        if any(value is not None for value in y):
            curve = {
                "label": name,
                "colour": number % 8,
                "dash": number // 8,
                "dots": True,
                "x": sizes,
                "y": y,
            }
            curves.append(curve)
    x: dict[str, Any] = {"label": group, "log": not by_model, "unit": "number", "at": sizes}
    if by_model:
        x |= {"names": labels}
    return {
        "title": f"{TITLES[group]}: {title}",
        "height": 320,
        "x": x,
        "y": {"label": title, "log": True, "unit": "ratio" if figure == _RATIO else "seconds"},
        "curves": curves,
    }


def _value(one: Result, best: float | None, figure: str) -> float | None:
    if figure == _TIME:
        return max(one.cpu_s, _LEAST_S)
    return None if one.cost_usd is None or best is None else one.cost_usd / best
