"""Prints the figures of a trace: facts, distributions and offered load."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console

from berth.report.terminal import area, bar, table
from berth.units import format_count, format_seconds
from berth.workload.summary import PERCENTILES, Distribution, Share, TraceSummary
from berth.workload.trace import BadRows, Trace

_BAR = 22


def print_trace(out: Console, trace: Trace, summary: TraceSummary, cluster: dict[str, Any] | None) -> None:
    """Everything, top down: facts, bad rows, notes, distributions, load."""
    out.print(
        f"[bold]{format_count(len(trace), 'job')}[/bold] from {trace.source} (format: {trace.format})",
        soft_wrap=True,
    )
    for line in _facts(trace, summary, cluster):
        out.print(f"  {line}")
    print_bad(out, trace.source, trace.rows, trace.bad)
    print_notes(out, trace.notes)
    out.print()
    out.print(_spreads(summary))
    out.print(_shares("Jobs by size (GPUs)", "size", summary.sizes))
    out.print(_shares("Jobs by duration", "duration", summary.durations))
    if summary.models:
        out.print(_shares("Jobs by model", "model", summary.models))
    if len(summary.load_gpus):
        _print_load(out, trace, summary)


def print_bad(out: Console, source: str, rows: int, bad: BadRows, shown: int = 3) -> None:
    """Print the number of bad rows by cause, and the first ones."""
    if not bad.total:
        return
    out.print(f"  [bold yellow]{bad.total:,} of {format_count(rows, 'row')} left out[/bold yellow]")
    for cause, count in bad.counts.items():
        out.print(f"    {count:>9,}  {cause}", markup=False)
    for row in bad.first[:shown]:
        out.print(f"    {row.place(source)}: {row}", markup=False, soft_wrap=True)


def print_notes(out: Console, notes: Sequence[str]) -> None:
    """Print what was changed while reading the trace."""
    for note in notes:
        text = textwrap.fill(
            note, out.width, break_on_hyphens=False, initial_indent="  note: ", subsequent_indent="        "
        )
        out.print(text, markup=False)


def _facts(trace: Trace, summary: TraceSummary, cluster: dict[str, Any] | None) -> list[str]:
    start = f" from {trace.origin:%Y-%m-%d %H:%M:%S}" if trace.origin else ""
    lines = [f"submitted over {format_seconds(summary.span_s)}{start}"]
    groups = ((summary.users, "user"), (summary.vcs, "virtual cluster"))
    if any(count for count, _ in groups):
        lines.append(", ".join(format_count(count, noun) for count, noun in groups if count))
    hours = summary.gpu_s / 3600
    worth = f", {summary.mean_load_gpus:,.1f} GPUs' worth over that time" if summary.span_s else ""
    lines.append(f"asks for {f'{hours:,.0f}' if hours >= 100 else f'{hours:.3g}'} GPU-hours{worth}")
    lines.append(f"at the peak {format_count(summary.peak_gpus, 'GPU')} at once")
    return lines + (_on_cluster(cluster) if cluster else [])


def _on_cluster(cluster: dict[str, Any]) -> list[str]:
    load = f"{cluster['load']:.2f}" if cluster["load"] is not None else "not defined, all jobs come at once"
    lines = [f"offered load on {cluster['name']} ({format_count(cluster['gpus'], 'GPU')}): {load}"]
    if cluster["too_large"]:
        lines.append(f"larger than {cluster['name']}: {format_count(cluster['too_large'], 'job')}")
    return lines


def _spreads(summary: TraceSummary) -> Any:
    columns = ["", "least", *(f"p{cut}" for cut in PERCENTILES), "largest", "mean"]
    rows = [
        ["GPUs per job", *_cells(summary.size, lambda value: f"{value:,.0f}"), f"{summary.size.mean:,.2f}"],
        _time_row("duration", summary.duration_s),
    ]
    if summary.interarrival_s:
        rows.append(_time_row("between jobs", summary.interarrival_s))
    return table("Distribution", columns, rows)


def _time_row(label: str, spread: Distribution) -> list[str]:
    return [label, *_cells(spread, format_seconds), format_seconds(spread.mean)]


def _cells(spread: Distribution, show: Any) -> list[str]:
    return [show(value) for value in (spread.least, *spread.percentiles, spread.largest)]


def _shares(title: str, label: str, shares: Sequence[Share]) -> Any:
    jobs = sum(share.jobs for share in shares)
    gpu_s = sum(share.gpu_s for share in shares)
    most = max(share.jobs for share in shares)
    rows = [
        [
            share.label,
            bar(share.jobs, most, _BAR),
            f"{share.jobs:,}",
            f"{share.jobs / jobs:.1%}",
            f"{share.gpu_s / gpu_s:.1%}",
        ]
        for share in shares
    ]
    return table(title, [label, "", "jobs", "of jobs", "of GPU time"], rows, left=2)


def _print_load(out: Console, trace: Trace, summary: TraceSummary) -> None:
    out.print("[bold]Load: GPUs asked for at once, if every job started when submitted[/bold]")
    highest = float(summary.load_gpus.max())
    for index, line in enumerate(area(summary.load_gpus.tolist(), height=6)):
        label = f"{highest:,.0f}" if index == 0 else ""
        out.print(f"{label:>9} ┤{line}")
    out.print(f"{0:>9} └{'─' * len(summary.load_gpus)}")
    left, right = "0", format_seconds(summary.span_s)
    if trace.origin:
        end = trace.origin + timedelta(seconds=summary.span_s)
        left, right = f"{trace.origin:%Y-%m-%d}", f"{end:%Y-%m-%d}"
    out.print(f"{'':>10} {left}{right:>{len(summary.load_gpus) - len(left)}}")
