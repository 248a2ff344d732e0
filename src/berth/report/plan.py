"""A plan in a terminal: what could be chosen, the stages of the choice, and why."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from berth.plan.explain import Candidate, layers_of, limited_by, mix
from berth.plan.files import Checked
from berth.plan.objective.judged import Judged
from berth.plan.objective.refine import Refined
from berth.plan.plan import Plan
from berth.plan.proof import Proof
from berth.report.plan_story import Story
from berth.report.terminal import bar, table
from berth.units import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_usd,
    format_usd_per_hour,
)

_MARK = "▶"
_BAR = 14
_LEAST_GAIN = 0.0005  # what rounds to 0.0%
_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("  plan", "left"), ("devices", "left"), ("rate", "right"), ("$/h", "right"), ("cost", "right"),
    ("limited by", "left"),
)  # fmt: skip


def print_plan(out: Console, story: Story) -> None:
    """The candidates, the stages, the reasons, and what must be known to read them."""
    out.print(Text(story.heading, style="bold"))
    out.print(_candidates(story.found))
    out.print(Text(_stages_title(story.plan), style="bold"))
    for line in stage_lines(story.plan, story.crossing_bytes):
        out.print(line, markup=False, no_wrap=True, crop=False)
    out.print()
    out.print(Text("Why", style="bold"))
    for sentence in story.why:
        print_item(out, sentence)
    for note in story.notes:
        print_item(out, note, "note: ")
    if story.refined is not None:
        _print_refined(out, story, story.refined)


JUDGED_TITLE = "Judged by --objective"
JUDGED_COLUMNS = ("plan", "devices", "rate", "cost")


def _print_refined(out: Console, story: Story, refined: Refined) -> None:
    out.print()
    out.print(table(JUDGED_TITLE, JUDGED_COLUMNS, judged_rows(story.plan, refined), left=2))
    print_item(out, judged_note(story.plan, refined), "")


def judged_rows(plan: Plan, refined: Refined) -> list[list[str]]:
    """The formula's plan and the best one found, both as the objective judges them."""
    best = refined.outcome.plan
    assert best is not None, "a refuted plan is an error, and is not printed"
    own = tuple(stage.units for stage in plan.stages)
    name = "the plan above" if refined.start.units in ((), own) else "its stages, other units"
    return [
        [name, *_judged(refined.start, plan)],
        [f"best of {refined.outcome.evaluations:,} ({refined.outcome.method})", *_judged(refined.best, best)],
    ]


def judged_note(plan: Plan, refined: Refined) -> str:
    """Where the objective's figures are from, and what the search gained."""
    if refined.gain is None:
        wanted = format_rate(plan.problem.throughput)
        return f"{refined.best.note}; the formula's plan does not hold {wanted}, the best one does"
    saved = f"saves {refined.gain:.1%}" if refined.gain >= _LEAST_GAIN else "finds no cheaper plan"
    return f"{refined.best.note}; the search {saved}"


def _judged(one: Judged, plan: Plan) -> list[str]:
    if not one.feasible:
        return ["too slow with any units", format_rate(one.throughput), "-"]
    kinds = (stage.type_name for stage in plan.stages)
    units = " + ".join(f"{count} {kind}" for count, kind in zip(one.units, kinds, strict=True))
    return [units, format_rate(one.throughput), money(one.cost_usd)]


def print_item(out: Console, text: str, lead: str = "- ") -> None:
    """One hanging paragraph."""
    out.print(
        textwrap.fill(text, out.width, initial_indent=lead, subsequent_indent=" " * len(lead)), markup=False
    )


def _candidates(found: Sequence[Candidate]) -> Table:
    """Close together, so that the names of several devices stand on one line."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, justify in _COLUMNS:
        result.add_column(name, justify=justify, overflow="fold")
    for one in found:
        result.add_row(*(Text(cell) for cell in _row(one)), style="bold" if one.chosen else None)
    return result


def _row(one: Candidate) -> list[str]:
    name = f"{_MARK} {one.name}" if one.chosen else f"  {one.name}"
    if one.plan is None:
        return [name, refused(one), "-", "-", "-", ""]
    plan = one.plan
    rate, usd = format_rate(plan.throughput), f"{plan.usd_per_hour:,.2f}"
    return [name, mix(plan), rate, usd, money(plan.cost_usd), limited_by(plan)]


def refused(one: Candidate) -> str:
    """Why a candidate has no plan, in few words."""
    return one.note.replace("no such plan is feasible", "not feasible") or "not feasible"


def money(usd: float) -> str:
    """Cents where they matter."""
    return format_usd(usd) if usd < 10_000 else f"${usd:,.0f}"


def _stages_title(plan: Plan) -> str:
    count = f"{len(plan.stages)} stages" if len(plan.stages) > 1 else "One stage"
    return f"{count}; {format_seconds(plan.hours * 3600)} for the whole training at {format_rate(plan.throughput)}"


def stage_lines(plan: Plan, crossing_bytes: Sequence[float] | None = None) -> list[str]:
    """A line per stage with a bar of its time per example, and what crosses between two."""
    slowest = plan.stage_s
    names = [layers_of(plan.problem, stage.first, stage.last) for stage in plan.stages]
    units = [f"{stage.units} x {stage.type_name}" for stage in plan.stages]
    wide, long = min(34, max(map(len, names))), max(map(len, units))
    lines = []
    for row, stage in enumerate(plan.stages):
        name = names[row] if len(names[row]) <= wide else names[row][: wide - 1] + "…"
        filled = bar(stage.time_s, slowest, _BAR)
        mark = " ◀ pace" if row == plan.bottleneck and len(plan.stages) > 1 else ""
        time = f"{stage.limited_by:<7} {format_seconds(stage.time_s):>7}"
        lines.append(f" {row + 1}  {name:<{wide}}  {units[row]:<{long}}  {time} {filled}{mark}")
        if row + 1 < len(plan.stages):
            crossing = (
                f" {format_bytes(crossing_bytes[stage.last])} per example"
                if crossing_bytes is not None
                else ""
            )
            lines.append(f" │ {crossing}".rstrip())
    return lines


def print_checked(out: Console, file: str, checked: Checked) -> None:
    """A plan that keeps everything it must."""
    plan = checked.plan
    wanted = format_rate(plan.problem.throughput)
    out.print(Text(f"{file} holds: {format_rate(plan.throughput)} of {wanted} wanted", style="bold"))
    for line in stage_lines(plan):
        out.print(line, markup=False, no_wrap=True, crop=False)
    out.print(
        f"{mix(plan)}: {format_usd_per_hour(plan.usd_per_hour)}, {money(plan.cost_usd)} for the whole training",
        markup=False,
    )
    for note in checked.notes:
        print_item(out, note, "note: ")


def print_proof(out: Console, file: str, proof: Proof) -> None:
    """A proof that holds."""
    problem = proof.plan.problem
    lower = problem.epochs * problem.samples / 3600 * proof.certificate.lower
    said = f"{mix(proof.plan)} holds {format_rate(proof.plan.throughput)} for {money(proof.plan.cost_usd)}"
    out.print(Text(f"{file} holds: {format_count(len(proof.certificate.steps), 'step')}", style="bold"))
    print_item(out, f"{said}, and no plan in its plan space costs less than {money(lower)}", "")
