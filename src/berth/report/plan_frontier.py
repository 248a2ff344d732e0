"""The cost of throughput as a chart: the frontier and the fixed plans, in the terminal and as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from berth.plan.candidates import FIXED_PLANS, fixed_plan_costs
from berth.plan.plan import Plan
from berth.plan.problem import Problem
from berth.plan.stage_reasons import device_mix, limited_by
from berth.report.plan import money
from berth.report.terminal import table
from berth.units import format_rate

_WIDTH, _HEIGHT = 66, 16
_RATES = _WIDTH  # throughputs at which fixed plans are evaluated
_LETTERS = {"cpu-only": "c", "gpu-only": "g", "heuristic": "h"}
_SHOWN = 10


@dataclass(frozen=True)
class FrontierChart:
    """The plans of the frontier, slowest first, and the costs of fixed plans over the same range."""

    plans: list[Plan]
    rates: list[float]
    fixed: dict[str, list[float | None]]


def frontier_chart(problem: Problem, plans: Sequence[Plan]) -> FrontierChart:
    """Return the frontier with the fixed plans at throughputs spread evenly (by ratio) over it."""
    low, high = plans[0].throughput / 4, plans[-1].throughput
    rates = [low * (high / low) ** (step / (_RATES - 1)) for step in range(_RATES)]
    return FrontierChart(
        list(plans), rates, {name: fixed_plan_costs(problem, name, rates) for name in FIXED_PLANS}
    )


def print_frontier(out: Console, heading: str, chart: FrontierChart) -> None:
    """Print the plot, then the plans at some throughputs."""
    out.print(Text(heading, style="bold"))
    for line in plot_lines(chart):
        out.print(line, markup=False, no_wrap=True, crop=False)
    plans = thinned(chart.plans)
    rows = [
        [
            format_rate(plan.throughput),
            f"{plan.usd_per_hour:,.2f}",
            money(plan.cost_usd),
            device_mix(plan),
            limited_by(plan),
        ]
        for plan in plans
    ]
    columns = ["up to", "$/h", "cost", "devices", "limited by"]
    out.print(table("", columns, rows, left=0))
    left_out = (
        f"; {len(chart.plans) - len(plans):,} of them in between are not shown"
        if len(plans) < len(chart.plans)
        else ""
    )
    out.print(
        f"{len(chart.plans):,} plans, each the cheapest up to its own throughput{left_out}", markup=False
    )


def plot_lines(chart: FrontierChart) -> list[str]:
    """Return a log-log plot of dollars over throughput: the frontier as dots, fixed plans as letters."""
    costs = [plan.cost_usd for plan in chart.plans] + [c for row in chart.fixed.values() for c in row if c]
    x = _Axis(chart.rates[0], chart.rates[-1], _WIDTH)
    y = _Axis(min(costs), min(max(costs), chart.plans[-1].cost_usd * 8), _HEIGHT)
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for name, row in chart.fixed.items():
        for rate, cost in zip(chart.rates, row, strict=True):
            if cost and cost <= y.to:
                grid[y.place(cost)][x.place(rate)] = _LETTERS[name]
    for column in range(_WIDTH):
        rate = x.value(column)
        cost = next((plan.cost_usd for plan in chart.plans if plan.throughput >= rate * (1 - 1e-9)), None)
        if cost is not None:
            grid[y.place(cost)][column] = "●"
    labels = {0: money(y.begin), _HEIGHT - 1: money(y.to), _HEIGHT // 2: money(y.value(_HEIGHT // 2))}
    lines = [f"{labels.get(row, ''):>10} │{''.join(grid[row]).rstrip()}" for row in reversed(range(_HEIGHT))]
    ends = f"{format_rate(x.begin):<{_WIDTH // 2}}{format_rate(x.to):>{_WIDTH - _WIDTH // 2}}"
    legend = "● cheapest  " + "  ".join(f"{letter} {name}" for name, letter in _LETTERS.items())
    return [*lines, f"{'':>10} └{'─' * _WIDTH}", f"{'':>12}{ends}", f"{'':>12}{legend}"]


class _Axis:
    """A logarithmic axis."""

    def __init__(self, begin: float, to: float, cells: int) -> None:
        self.begin, self.to, self.cells = begin, max(to, begin * 1.001), cells

    def place(self, value: float) -> int:
        """Return the cell of a value."""
        share = math.log(value / self.begin) / math.log(self.to / self.begin)
        return min(self.cells - 1, max(0, round(share * (self.cells - 1))))

    def value(self, cell: int) -> float:
        """Return the value in the middle of a cell."""
        return float(self.begin * (self.to / self.begin) ** (cell / (self.cells - 1)))


def thinned(plans: Sequence[Plan], limit: int = _SHOWN) -> list[Plan]:
    """Return the first and last plan, and plans in between that are spread evenly by ratio of throughput."""
    if len(plans) <= limit:
        return list(plans)
    low, high = plans[0].throughput, plans[-1].throughput
    kept = []
    for step in range(limit):
        rate = low * (high / low) ** (step / (limit - 1))
        nearest = min(plans, key=lambda plan: abs(math.log(plan.throughput / rate)))
        if nearest not in kept:
            kept.append(nearest)
    return kept


def chart_data(chart: FrontierChart, chosen: Plan | None = None) -> dict[str, Any]:
    """Return the chart as data for the HTML page."""
    curves: list[dict[str, Any]] = [
        {"label": name, "colour": colour, "x": chart.rates, "y": row}
        for colour, (name, row) in enumerate(chart.fixed.items(), 1)
        if any(row)
    ]
    plans = [chart.plans[0], *chart.plans]  # the cheapest plan holds every lower throughput
    curves.append(
        {
            "label": "cheapest",
            "colour": 0,
            "step": True,
            "x": [chart.rates[0], *(plan.throughput for plan in chart.plans)],
            "y": [plan.cost_usd for plan in plans],
            "texts": [device_mix(plan) for plan in plans],
        }
    )
    if chosen is not None:
        point = {"x": [chosen.throughput], "y": [chosen.cost_usd], "texts": [device_mix(chosen)]}
        curves.append({"label": "chosen", "colour": 5, "points": True, **point})
    return {
        "title": "Cost of the training against throughput",
        "height": 360,
        "x": {"label": "examples per second", "log": True, "unit": "rate"},
        "y": {"label": "cost", "log": True, "unit": "usd"},
        "curves": curves,
    }
