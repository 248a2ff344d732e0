"""The comparison of methods, in the terminal and as a page: cost relative to the optimum, and CPU seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from berth import __version__
from berth.plan.bench import Result
from berth.plan.explain import FIXED_PLANS
from berth.report.plan import money, print_item
from berth.report.plan_html import document, grid, items, section
from berth.report.terminal import table
from berth.units import format_seconds

TITLES = {
    "models": "By model, on five types",
    "layers": "By number of layers: CTRDNN on five types",
    "types": "By number of types: CTRDNN",
}
_OPTIMUM = "exact"
_NARROW = 5  # columns that fit into half of a page


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


def comparison_page(shown: Comparison) -> str:
    """Return the comparison as a page, with times as curves."""
    sections, charts = [], {}
    for group in shown.groups:
        columns = ["method", *shown.of(group)[1]]
        wide = len(columns) > _NARROW
        costs, times = grid(columns, shown.cost_rows(group), [0]), grid(columns, shown.time_rows(group))
        sections.append(section(f"{TITLES[group]}: cost", costs, wide=wide))
        sections.append(section(f"{TITLES[group]}: CPU time", times, wide=wide))
        if group != "models":
            charts[f"time-{group}"] = _chart(shown, group)
            figure = f'<figure id="time-{group}"></figure>'
            sections.append(section(f"Planning time by number of {group}", figure, wide=True))
    about = ["Costs are multiples of the optimum, the median over seeds; - means that no plan was found."]
    sections.append(section("Conditions", items([*about, *shown.conditions], "notes"), wide=True))
    facts = {"methods": str(len(shown.of(shown.groups[0])[0])), "berth": __version__}
    return document("berth plan bench", "Methods of planning compared", facts, sections, charts)


def _chart(shown: Comparison, group: str) -> dict[str, Any]:
    methods, labels, cells = shown.of(group)
    curves = []
    for colour, name in enumerate(name for name in methods if name not in FIXED_PLANS):
        times: Sequence[float] = [max(cells[name, label].cpu_s, 1e-5) for label in labels]
        sizes = [cells[name, label].case.size for label in labels]
        curves.append({"label": name, "colour": colour % 8, "dots": True, "x": sizes, "y": times})
    return {
        "title": f"Planning time by number of {group}",
        "height": 320,
        "x": {"label": group, "log": True, "unit": "number", "at": curves[0]["x"]},
        "y": {"label": "CPU seconds", "log": True, "unit": "seconds"},
        "curves": curves,
    }
