"""A job's story in the terminal: one line per thing that happened, its reason below it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from berth.cluster.model import Cluster
from berth.report.simulation import print_notes
from berth.report.terminal import bar, table
from berth.simulate.explain_alternatives import Alternative
from berth.simulate.explain_job import Chapter, Story
from berth.units import format_count, format_seconds, format_usd, format_wait
from berth.workload.shapes import devices_text

_INDENT = 13
_SHOWN = 12  # racks, and chapters at either end
_OTHERS = 5
_REASONS = 6  # of one wait


def print_story(out: Console, story: Story, policy: str, cluster: Cluster, notes: Sequence[str] = ()) -> None:
    """Everything, in order of time."""
    if story.alternatives:
        _offer(out, story, policy)
    else:
        _gang(out, story, policy, cluster)
    if story.jct_s is None:
        out.print("  never finishes: nothing more can happen, and it still waits")
    else:
        jct, waited = format_wait(story.jct_s), format_wait(story.waited_s)
        out.print(f"  finished {jct} after its submission; {waited} of that it waited")
    if story.exposed_gpu_s >= 1.0:
        out.print(f"  the network cost it {format_wait(story.exposed_gpu_s)} of GPU time")
    if story.lost_gpu_s >= 1.0:
        out.print(f"  evictions and moves cost it {format_wait(story.lost_gpu_s)} of GPU time")
    out.print()
    if story.alternatives:
        _alternatives(out, story.alternatives)
    _line(out, story.submit_s, "submitted")
    for chapter in story.chapters[:_SHOWN]:
        _chapter(out, chapter)
    left_out = len(story.chapters) - 2 * _SHOWN
    if left_out > 0:
        out.print(f"{'':{_INDENT}}... {left_out} more; --json has all", style="dim")
    for chapter in story.chapters[max(_SHOWN, len(story.chapters) - _SHOWN) :]:
        _chapter(out, chapter)
    out.print()
    _racks(out, story, cluster)
    print_notes(out, notes)


def _gang(out: Console, story: Story, policy: str, cluster: Cluster) -> None:
    """The head of a plain gang."""
    assert story.gpus is not None
    assert story.work_s is not None
    out.print(Text(f"job {story.job}: {story.gpus} x {story.model}, policy {policy}", style="bold"))
    gpus = format_count(story.gpus, "GPU")
    device = f" on {cluster.device_types[0].name}" if len(cluster.device_types) > 1 else ""
    out.print(f"  asks for {gpus} for {format_wait(story.work_s)} at the nearest place{device}")


def _offer(out: Console, story: Story, policy: str) -> None:
    """The head of a job with alternatives."""
    count = format_count(len(story.alternatives), "alternative")
    out.print(Text(f"job {story.job}: {count}, policy {policy}", style="bold"))
    assert story.work is not None
    out.print(f"  {story.work.amount:,.10g} {story.work.unit} to do")
    if story.deadline_s is not None:
        missed = story.jct_s is None or story.jct_s > story.deadline_s
        deadline = f"a deadline of {format_wait(story.deadline_s)} after its submission"
        out.print(f"  {deadline}, which it {'missed' if missed else 'met'}")


def _alternatives(out: Console, alternatives: Sequence[Alternative]) -> None:
    """A row for each: what it asks for, takes and costs at its nearest place, and when the job took it."""
    columns = ["alternative", "parts", "within", "step", "takes", "costs", "taken"]
    rows = [
        [
            one.name,
            ", ".join(_part(part) for part in one.parts),
            one.tier or "-",
            "-" if one.step_s is None else format_seconds(one.step_s),
            "-" if one.run_s is None else format_wait(one.run_s),
            "-" if one.usd is None else format_usd(one.usd),
            "never fits" if one.never_fits else _times(one.starts_s),
        ]
        for one in alternatives
    ]
    plain = all(len(one.parts) == 1 and _part(one.parts[0]) == one.name for one in alternatives)
    unpriced = all(one.usd is None for one in alternatives)
    kept = [at for at in range(len(columns)) if not ((at == 1 and plain) or (at == 5 and unpriced))]
    left = 2 if plain else 3
    out.print(table("", [columns[at] for at in kept], [[row[at] for at in kept] for row in rows], left=left))
    for one in alternatives:
        if one.never_fits:
            out.print(f"  {one.name} never fits: {one.never_fits}", markup=False)
    if any(one.never_fits for one in alternatives):
        out.print()


def _part(part: Mapping[str, Any]) -> str:
    """`40 cpu-core in one rack`: its devices, and the tier that it is tied to."""
    devices = devices_text(part["devices"])
    return f"{devices} in one {part['tier']}" if "tier" in part else devices


def _times(starts_s: Sequence[float]) -> str:
    """When it was taken first, and how often after that."""
    if not starts_s:
        return "-"
    return clock(starts_s[0]) + (f" and {len(starts_s) - 1} x more" if len(starts_s) > 1 else "")


def _chapter(out: Console, one: Chapter) -> None:
    if one.what in ("waited", "never started"):
        how_long = format_wait(one.seconds) if one.what == "waited" else "forever"
        _line(out, one.time_s, f"waits {how_long}")
        for because in one.because[:_REASONS]:
            _below(out, f"{format_wait(because.seconds)}: {because.reason.sentence}")
        if len(one.because) > _REASONS:
            _below(out, f"... {len(one.because) - _REASONS} more reasons; --json has all")
    elif one.what in ("started", "moved"):
        _line(
            out, one.time_s, f"{'starts' if one.what == 'started' else 'moves'}{_as(one)} on {_places(one)}"
        )
        _below(out, one.sentence)
        if one.slowdown is not None and one.slowdown >= 1.005:
            _below(out, f"even alone, an iteration takes {one.slowdown:.2f} times as long there as near")
        if one.cost_s:
            _below(out, f"restoring its state takes {format_wait(one.cost_s)} of GPU time")
        _others(out, "made way for it", one)
    elif one.what == "evicted":
        _line(out, one.time_s, f"is evicted after {format_wait(one.seconds)}{_as(one)}")
        _below(out, one.sentence)
        _others(out, "took its place", one)
    else:
        _line(out, one.time_s, f"is finished, after {format_wait(one.seconds)} there{_as(one)}")


def _as(one: Chapter) -> str:
    """The alternative, for a job that has some."""
    return f" as {one.shape}" if one.shape else ""


def clock(time_s: float) -> str:
    """Time since the trace began, to the second: `1d08:14:05`."""
    days, rest = divmod(round(time_s), 86_400)
    return f"{f'{days}d' if days else ''}{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _line(out: Console, time_s: float, text: str) -> None:
    shown = textwrap.fill(text, out.width - _INDENT, break_on_hyphens=False, subsequent_indent=" " * _INDENT)
    out.print(Text(f"{clock(time_s):>{_INDENT - 2}}  ", style="cyan") + Text(shown))


def _below(out: Console, text: str) -> None:
    indent = " " * (_INDENT + 2)
    out.print(
        textwrap.fill(
            text, out.width, break_on_hyphens=False, initial_indent=indent, subsequent_indent=indent
        ),
        style="dim",
        markup=False,
    )


def _places(one: Chapter) -> str:
    machines = ", ".join(f"{name} ({count})" for name, count in one.places[:8])
    more = f" and {len(one.places) - 8} more" if len(one.places) > 8 else ""
    within = f", within one {one.tier}" if len(one.places) > 1 else ""
    return f"{machines}{more}{within}"


def _others(out: Console, did: str, one: Chapter) -> None:
    if one.others:
        named = ", ".join(one.others[:_OTHERS]) + (" ..." if len(one.others) > _OTHERS else "")
        _below(out, f"{format_count(len(one.others), 'job')} {did}: {named}")


def _racks(out: Console, story: Story, cluster: Cluster) -> None:
    """What was free where, when the job first started."""
    word = cluster.tiers[cluster.rack_level].name
    several = len({rack.device for rack in story.found}) > 1
    order = {rack.device: at for at, rack in reversed(list(enumerate(story.found)))}
    fullest_last = sorted(story.found, key=lambda rack: (order[rack.device], -rack.free))
    rows = [
        [
            rack.name,
            *([rack.device] if several else []),
            bar(rack.free, rack.devices, 16),
            f"{rack.free} of {rack.devices}",
            str(rack.most_in_one),
        ]
        for rack in fullest_last[:_SHOWN]
    ]
    out.print(Text("Free just before its first start", style="bold"))
    columns = [word, *(["type"] if several else []), "", "free", "most in one machine"]
    out.print(table("", columns, rows, left=len(columns) - 2))
    if len(story.found) > _SHOWN:
        out.print(f"and {len(story.found) - _SHOWN} more", style="dim")
