"""Results of simulations side by side: metrics down, policies across, the best of each row marked."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from berth.report.fitting import FittingTable
from berth.report.terminal import table
from berth.simulate.compared import COMPARED, Unit
from berth.simulate.comparison import Comparison, Difference
from berth.simulate.metrics import Summary
from berth.units import format_seconds

MAX_COLUMNS = 5
_BEST = "*"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row: its name, its value, how it is written, and whether less of it is better; None: neither is."""

    name: str
    short: str
    value: Callable[[Summary], float | None]
    text: Callable[[float], str]
    less_is_better: bool | None = None


def _hours(gpu_s: float) -> str:
    hours = gpu_s / 3600
    if hours < 0.005:
        return "0"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2f}" if hours < 1 else f"{hours:.3g}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _ratio(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _whole(count: float) -> str:
    return f"{count:,.0f}"


def _dollars(usd: float) -> str:
    if usd >= 1e6:
        return f"${usd / 1e6:,.2f}M"
    return f"${usd:,.0f}" if usd >= 100 else f"${usd:,.2f}"


METRICS = (
    Metric("jobs finished", "jobs", lambda s: s.finished, _whole),
    Metric("mean JCT", "mean JCT", lambda s: s.mean_jct_s, format_seconds, True),
    Metric("p50 JCT", "p50", lambda s: s.p50_jct_s, format_seconds, True),
    Metric("p95 JCT", "p95", lambda s: s.p95_jct_s, format_seconds, True),
    Metric("p99 JCT", "p99", lambda s: s.p99_jct_s, format_seconds, True),
    Metric("makespan", "makespan", lambda s: s.makespan_s, format_seconds, True),
    Metric("mean wait", "mean wait", lambda s: s.mean_wait_s, format_seconds, True),
    Metric("p95 wait", "p95 wait", lambda s: s.p95_wait_s, format_seconds, True),
    Metric("p99 wait", "p99 wait", lambda s: s.p99_wait_s, format_seconds, True),
    Metric("mean slowdown", "slowdown", lambda s: s.mean_slowdown, _ratio, True),
    Metric("p95 slowdown", "p95 slowdown", lambda s: s.p95_slowdown, _ratio, True),
    Metric("fairness (Jain)", "fairness", lambda s: s.fairness, _ratio, False),
    Metric("goodput", "goodput", lambda s: s.goodput, _percent, False),
    Metric("GPU use", "GPU use", lambda s: s.gpu_utilisation, _percent),
    Metric("fragmentation", "fragm.", lambda s: s.fragmentation, _percent, True),
    Metric("exposed comm. GPU-h", "comm. GPU-h", lambda s: s.exposed_comm_gpu_s, _hours, True),
    Metric("comm. of a job", "comm.", lambda s: s.mean_comm_s, format_seconds, True),
    Metric("evictions", "evicted", lambda s: s.evictions, _whole, True),
    Metric("moves", "moved", lambda s: s.moves, _whole),
    Metric("lost GPU-h", "lost GPU-h", lambda s: s.lost_gpu_s, _hours, True),
    Metric("cost", "cost", lambda s: s.cost_usd, _dollars, True),
)
_UPPER = ("mean JCT", "p50", "p95", "p99", "makespan", "mean wait", "p99 wait")
_LOWER = ("goodput", "fragm.", "comm. GPU-h", "evicted", "lost GPU-h", "cost")


def metrics_of(results: Sequence[Summary]) -> list[Metric]:
    """All metrics that these results have, the tiers' shares before the cost."""
    tiers = [
        Metric(f"gang time at {name}", name, lambda s, name=name: s.tier_share.get(name), _percent)  # type: ignore[misc]
        for name in results[0].tier_share
        if len(results[0].tier_share) > 1
    ]
    moved = any(result.moves for result in results)
    known = [metric for metric in METRICS[:-1] if metric.name != "moves" or moved]
    return [*known, *tiers, METRICS[-1]]


def print_results(
    out: Console, results: Sequence[Summary], heading: str, notes: Sequence[str], written: Sequence[str] = ()
) -> None:
    """One table (two stacked ones for many policies), and below it what one must know to read it."""
    out.print(Text(heading, style="bold"))
    names, legend = labels([result.policy for result in results])
    metrics = metrics_of(results)
    if len(results) <= MAX_COLUMNS:
        rows = [[metric.name, *_cells(metric, results)] for metric in metrics]
        out.print(table("", ["", *names], rows))
    else:
        upper = [metric for metric in metrics if metric.short in _UPPER]
        lower = [metric for metric in METRICS if metric.short in _LOWER]
        out.print(_rows_of_policies(names, upper, results))
        out.print(_rows_of_policies(names, lower, results, tiers=True))
        if len(results[0].tier_share) > 1:
            out.print(f"tiers: GPU time of gangs at {'/'.join(results[0].tier_share)}.", style="dim")
    if len(results) > 1:
        out.print(f"{_BEST} best of its kind. JCT: completion time, from submission to end.", style="dim")
    for line in legend:
        out.print(line, markup=False, soft_wrap=True)
    print_notes(out, notes)
    for file in written:
        out.print(f"wrote {file}", markup=False, soft_wrap=True)


def _rows_of_policies(
    names: Sequence[str], metrics: Sequence[Metric], results: Sequence[Summary], *, tiers: bool = False
) -> Table:
    """Policies down, metrics across, close together; tiers share one column."""
    result = FittingTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    result.add_column("policy", overflow="fold")
    columns = [(metric.short, _cells(metric, results)) for metric in metrics]
    if tiers and len(results[0].tier_share) > 1:
        columns.insert(-1, ("tiers", [_tier_mix(one) for one in results]))
    for title, _ in columns:
        result.add_column(title, justify="right", overflow="fold")
    for at, name in enumerate(names):
        result.add_row(Text(name), *(Text(cells[at]) for _, cells in columns))
    return result


def _tier_mix(result: Summary) -> str:
    return "/".join(f"{100 * share:.0f}" for share in result.tier_share.values()) + "%"


def labels(policies: Sequence[str]) -> tuple[list[str], list[str]]:
    """Short names for columns, and a legend where constants were left out of them."""
    short = [policy.rsplit("/", 1)[-1].split(".py:", 1)[-1].split(":", 1)[0] for policy in policies]
    names: list[str] = []
    legend: list[str] = []
    for policy, name in zip(policies, short, strict=True):
        if policy == name:
            names.append(name)
            continue
        number = len(legend) + 1
        names.append(f"{name} ({number})")
        legend.append(f"({number}) {policy}")
    return names, legend


def best(metric: Metric, results: Sequence[Summary]) -> list[bool]:
    """Which results are the best of a row, as it is written; none, if all are equal."""
    # if jobs never finish, the figures of the others are not comparable
    values = [None if result.unfinished else metric.value(result) for result in results]
    known = [value for value in values if value is not None]
    if metric.less_is_better is None or len(known) < 2:
        return [False] * len(results)
    first = metric.text(min(known) if metric.less_is_better else max(known))
    found = [value is not None and metric.text(value) == first for value in values]
    return [False] * len(results) if all(found) else found


def _value(metric: Metric, result: Summary) -> float | None:
    """What is written; of a run in which nothing finished only how much and how often."""
    known = result.finished or not result.unfinished or metric.text is _whole
    return metric.value(result) if known else None


def _cells(metric: Metric, results: Sequence[Summary]) -> list[str]:
    marks = best(metric, results)
    values = [_value(metric, result) for result in results]
    texts = ["-" if value is None else metric.text(value) for value in values]
    return [(_BEST if mark else "") + text for text, mark in zip(texts, marks, strict=True)]


def print_notes(out: Console, notes: Sequence[str]) -> None:
    """One hanging paragraph each."""
    for note in notes:
        text = textwrap.fill(
            note, out.width, break_on_hyphens=False, initial_indent="note: ", subsequent_indent="      "
        )
        out.print(text, markup=False)


def print_comparison(
    out: Console, found: Comparison, notes: Sequence[str], files: Sequence[str] = ()
) -> None:
    """A table per policy, and a sentence about all of its metrics."""
    policies = [result.policy for result in found.results[0]]
    names, legend = labels(policies)
    for at, policy in enumerate(policies[1:], start=1):
        mine = [one for one in found.differences if one.policy == policy]
        out.print(Text(f"{names[at]} against {names[0]}", style="bold"))
        columns = ["", names[0], names[at], "change", "95 % interval", ""]
        out.print(table("", columns, [difference_row(one) for one in mine]))
        out.print(comparison_verdict(mine, names[at], names[0]), markup=False)
    for line in legend:
        out.print(line, markup=False, soft_wrap=True)
    seeds = [f"seeds of the failures: {', '.join(map(str, found.fault_seeds))}"] if found.fault_seeds else []
    print_notes(out, [found.how, *seeds, *notes])
    for file in files:
        out.print(f"wrote {file}", markup=False, soft_wrap=True)


def comparison_verdict(differences: Sequence[Difference], name: str, base: str) -> str:
    """Return one sentence: in how many metrics a policy is better than the first, and in which worse."""
    better, worse = ([one for one in differences if one.verdict == word] for word in ("better", "worse"))
    if any(one.verdict == "no interval" for one in differences):
        return f"Too few traces to say whether {name} is better than {base}."
    if not better and not worse:
        return f"No difference between {name} and {base} is shown."
    parts = [f"{_how_many(better, differences)} better"] if better else []
    parts += [f"{_how_many(worse, differences)} worse"] if worse else []
    if len(better) + len(worse) < len(differences):
        parts.append("the rest within noise")
    return f"{name} against {base}: {'; '.join(parts)}."


def mean_sentence(differences: Sequence[Difference], name: str, base: str) -> str:
    """Return one sentence with the mean completion times of two policies and the interval of the change."""
    mean = next(one for one in differences if one.metric == "mean_jct_s")
    _, before, after, _, interval, _ = difference_row(mean)
    known = f"; the 95 % interval of the change is {interval} %" if mean.low is not None else ""
    return f"The mean JCT is {after} under {name} and {before} under {base}{known}."


def _how_many(some: Sequence[Difference], of: Sequence[Difference]) -> str:
    """`mean JCT (-26.8 %) and 6 other figures`; up to three are named."""
    first = f"{COMPARED[some[0].metric].name} ({_change(some[0].ratio)})"
    if len(some) == len(of):
        return f"{first} and all {len(of) - 1} other figures" if len(of) > 1 else first
    if len(some) <= 3:
        return ", ".join(f"{COMPARED[one.metric].name} ({_change(one.ratio)})" for one in some)
    return f"{first} and {len(some) - 1} other figures"


def difference_row(one: Difference) -> list[str]:
    """Metric, both values, change, interval and verdict, as printed."""
    interval = (
        "none"
        if one.low is None or one.high is None
        else f"{_percent_change(one.low)} .. {_percent_change(one.high)}"
    )
    metric = COMPARED[one.metric]
    values = format_metric(metric.unit, one.against_value), format_metric(metric.unit, one.value)
    return [metric.name, *values, _change(one.ratio), interval, one.verdict]


def format_metric(unit: Unit, value: float) -> str:
    """A figure as reports print it."""
    texts: dict[Unit, Callable[[float], str]] = {"s": format_seconds, "share": _percent, "ratio": _ratio}
    return texts[unit](value)


def _change(ratio: float) -> str:
    """A ratio as a signed percentage."""
    return f"{_percent_change(ratio)} %"


def _percent_change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"
