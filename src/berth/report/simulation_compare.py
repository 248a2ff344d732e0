"""Differences between policies in the terminal: how much, how sure, and in words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from berth.report.simulation import labels, print_notes
from berth.report.terminal import table
from berth.simulate.comparison import METRICS, Comparison, Difference
from berth.units import format_seconds


def print_comparison(out: Console, found: Comparison, notes: Sequence[str]) -> None:
    """A table per policy, and a sentence for each metric."""
    policies = [result.policy for result in found.results[0]]
    names, legend = labels(policies)
    for at, policy in enumerate(policies[1:], start=1):
        mine = [one for one in found.differences if one.policy == policy]
        out.print(Text(f"{names[at]} against {names[0]}", style="bold"))
        columns = ["", names[0], names[at], "change", "95 % interval", ""]
        out.print(table("", columns, [_row(one) for one in mine]))
        if all(one.verdict in ("within noise", "the same") for one in mine):
            out.print(f"No difference between {names[at]} and {names[0]} is shown.", markup=False)
    for line in legend:
        out.print(line, markup=False, soft_wrap=True)
    seeds = [f"seeds of the failures: {', '.join(map(str, found.fault_seeds))}"] if found.fault_seeds else []
    print_notes(out, [found.how, *seeds, *notes])


def _row(one: Difference) -> list[str]:
    interval = "none" if one.low is None or one.high is None else f"{change(one.low)} .. {change(one.high)}"
    values = format_seconds(one.against_s), format_seconds(one.value_s)
    return [METRICS[one.metric], *values, change(one.ratio), interval, one.verdict]


def change(ratio: float) -> str:
    """A ratio as a signed percentage."""
    return f"{100 * (ratio - 1):+.1f} %"
