"""Writes the table of docs/planning-methods.md again: every method on one problem."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from datetime import date
from pathlib import Path

from berth.plan.bench import compare_methods
from berth.plan.profile.machine import describe_core
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.method import METHODS, Budget
from berth.plan.stage_reasons import device_mix

PAGE = Path(__file__).resolve().parent / "planning-methods.md"
REQUEST = PlanRequest(1e6, model="ctrdnn", cluster="cloud-mix")
BUDGET = Budget(evaluations=1600, seconds=10.0)
BEGIN, END = "<!-- begin: docs/plan_methods.py -->\n", "<!-- end -->\n"


def main() -> None:
    """Replace what is between the markers."""
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(before + BEGIN + table() + END + after)


def table() -> str:
    """Conditions, and a line for each method."""
    lines = [
        f"1e9 rows, synchronous training, 1e9 examples; each search had {BUDGET.evaluations:,} evaluations and "
        f"{BUDGET.seconds:g} CPU seconds at most, one",
        f"seed, on one core of {describe_core()}, {date.today()}.",
        "",
        "| method | cost | x exact | CPU time | evaluations | devices, note |",
        "|---|---|---|---|---|---|",
    ]
    results = compare_methods(build_problem(REQUEST), BUDGET, tuple(METHODS))
    best = min(one.plan.cost_usd for one in results if one.plan)
    for one in results:
        cost, ratio, said = "no plan", "-", one.note
        if one.plan is not None:
            cost, ratio = f"${one.plan.cost_usd:.3f}", f"{one.plan.cost_usd / best:.3f}"
            said = "; ".join(filter(None, [device_mix(one.plan), one.note]))
        lines.append(
            f"| {one.method} | {cost} | {ratio} | {one.cpu_s:.2f} s | {one.evaluations:,} | {said} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
