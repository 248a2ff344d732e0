"""A plan in the terminal: the candidates, the stages of the chosen plan, and the reasons."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from berth.plan.candidates import Candidate
from berth.plan.check_file import CheckedPlan
from berth.plan.objective.protocol import Evaluation
from berth.plan.objective.refine import Refinement
from berth.plan.plan import Plan
from berth.plan.proof import Proof
from berth.plan.rental import RentedPool, cost_per_billion, throughput_range
from berth.plan.request import ANY_RATE
from berth.plan.stage_reasons import device_mix, layer_range, limit_of, limited_by, slowest
from berth.report.fitting import FittingTable
from berth.report.plan_report import PlanReport
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
_SAME = 1e-9
_BAR = 12
_MIN_GAIN = 0.0005  # less is printed as 0.0%
_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("  plan", "left"), ("devices", "left"), ("rate", "right"), ("$/h", "right"), ("cost", "right"),
    ("limited by", "left"),
)  # fmt: skip


def print_plan(out: Console, report: PlanReport) -> None:
    """Print the candidates, the stages, the reasons and the notes."""
    out.print(Text(report.heading, style="bold"))
    out.print(report.training, markup=False)
    out.print(_candidates(report.candidates))
    out.print(Text(_stages_title(report.plan), style="bold"))
    for row, line in enumerate(stage_lines(report.plan)):
        out.print(line, markup=False, no_wrap=True, crop=False)
        print_item(out, report.stage_reasons[row], " " * 4)
        if report.crossing_bytes is not None and row + 1 < len(report.plan.stages):
            moved = report.crossing_bytes[report.plan.stages[row].last]
            out.print(f" │  {format_bytes(moved)} per example", markup=False)
    for line in figure_lines(report):
        print_item(out, line, "")
    out.print(table("Rented", RENTED_COLUMNS, rented_rows(report), left=2))
    out.print(Text("Why", style="bold"))
    for sentence in report.reasons:
        print_item(out, sentence)
    for note in report.notes:
        print_item(out, note, "note: ")
    if report.solution.refinement is not None:
        _print_refinement(out, report.plan, report.solution.refinement)


OBJECTIVE_TITLE = "Evaluated by --objective"
OBJECTIVE_COLUMNS = ("plan", "devices", "rate", "cost")


def _print_refinement(out: Console, plan: Plan, refinement: Refinement) -> None:
    out.print()
    out.print(table(OBJECTIVE_TITLE, OBJECTIVE_COLUMNS, objective_rows(plan, refinement), left=2))
    print_item(out, objective_note(plan, refinement), "")


def objective_rows(plan: Plan, refinement: Refinement) -> list[list[str]]:
    """Return table rows for the formula's plan and the best one found, both by the objective."""
    own = tuple(stage.replicas for stage in plan.stages)
    name = "the plan above" if refinement.start.replicas in ((), own) else "its stages, other replicas"
    return [
        [name, *_evaluation_cells(refinement.start)],
        [
            f"best of {refinement.outcome.evaluations:,} ({refinement.outcome.method})",
            *_evaluation_cells(refinement.best),
        ],
    ]


def objective_note(plan: Plan, refinement: Refinement) -> str:
    """Return where the objective's figures come from, and what the search gained."""
    if refinement.gain is None:
        wanted = format_rate(plan.problem.throughput)
        return f"{refinement.best.note}; the formula's plan does not hold {wanted}, the best one does"
    saved = f"saves {refinement.gain:.1%}" if refinement.gain >= _MIN_GAIN else "finds no cheaper plan"
    return f"{refinement.best.note}; the search {saved}"


def _evaluation_cells(one: Evaluation) -> list[str]:
    if one.plan is None:
        return ["too slow with any replicas", format_rate(one.throughput), "-"]
    return [device_mix(one.plan), format_rate(one.throughput), money(one.cost_usd)]


def print_item(out: Console, text: str, lead: str = "- ") -> None:
    """Print a paragraph with a hanging indent."""
    out.print(
        textwrap.fill(
            text, out.width, break_on_hyphens=False, initial_indent=lead, subsequent_indent=" " * len(lead)
        ),
        markup=False,
    )


def _candidates(found: Sequence[Candidate]) -> Table:
    """Return a narrow table, so that the names of several devices fit on one line."""
    result = FittingTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
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
    return [name, device_mix(plan), rate, usd, money(plan.cost_usd), limited_by(plan)]


def refused(one: Candidate) -> str:
    """Return in a few words why a candidate has no plan."""
    return one.note.replace("no such plan is feasible", "not feasible") or "not feasible"


def money(usd: float) -> str:
    """Format dollars, with cents below $10,000."""
    return format_usd(usd) if usd < 10_000 else f"${usd:,.0f}"


def _stages_title(plan: Plan) -> str:
    count = f"{len(plan.stages)} stages" if len(plan.stages) > 1 else "One stage"
    return f"{count}; {format_seconds(plan.hours * 3600)} for the whole training at {format_rate(plan.throughput)}"


def stage_lines(plan: Plan) -> list[str]:
    """Return a line per stage with a bar of its time per example."""
    longest = plan.stage_s
    names = [layer_range(plan.problem, stage.first, stage.last) for stage in plan.stages]
    counts = [f"{stage.replicas} x {stage.type_name}" for stage in plan.stages]
    wide, long = min(34, max(map(len, names))), max(map(len, counts))
    lines = []
    for row, stage in enumerate(plan.stages):
        name = names[row] if len(names[row]) <= wide else names[row][: wide - 1] + "…"
        filled = bar(stage.time_s, longest, _BAR)
        mark = " ◀ slowest" if row == slowest(plan) and len(plan.stages) > 1 else ""
        time = f"{limit_of(plan, stage):<7} {format_seconds(stage.time_s):>7}"
        lines.append(f" {row + 1}  {name:<{wide}}  {counts[row]:<{long}}  {time} {filled}{mark}")
    return lines


def figure_lines(report: PlanReport) -> list[str]:
    """Return the plan's figures: price, cost, the range of its throughput, the event simulation."""
    plan = report.plan
    lines = [
        f"{format_usd_per_hour(plan.usd_per_hour)}; {money(plan.cost_usd)} for the whole training, "
        f"{money(cost_per_billion(plan))} per billion examples"
    ]
    if (span := throughput_range(plan)) is not None:
        low, high = (format_rate(rate) for rate in span)
        rates = low if low == high else f"{low} to {high}"
        wanted = report.solution.problem.throughput
        missed = span[0] < wanted * (1 - _SAME) and wanted > ANY_RATE
        misses = f"; the lower end misses the {format_rate(wanted)} asked for" if missed else ""
        lines.append(f"within the uncertainty of the devices' times: {rates}{misses}")
    if report.simulation is not None:
        lines.append(report.simulation)
    return lines


RENTED_COLUMNS = ("for", "devices", "machines", "NIC", "$/h")


def rented_rows(report: PlanReport) -> list[list[str]]:
    """Return a table row for everything that is rented, and the total."""
    rows = [
        [
            pool.what,
            _paid(pool),
            _machines(pool),
            "-" if pool.nic_load is None else f"{pool.nic_load:.0%}",
            f"{pool.usd_per_hour:,.2f}",
        ]
        for pool in report.rented
    ]
    return [*rows, ["all", "", "", "", f"{report.plan.usd_per_hour:,.2f}"]]


def _machines(pool: RentedPool) -> str:
    """Return the machines that devices need, and how full these are."""
    if pool.machines is None:
        return "-"
    whole = math.ceil(pool.machines)
    return f"{whole}, {pool.machines / whole:.0%} full"


def _paid(pool: RentedPool) -> str:
    if not pool.count:
        return "-"
    used = f", {pool.count} used" if pool.paid > pool.count else ""
    return f"{pool.paid} {pool.type_name}{used}"


def print_checked(out: Console, file: str, checked: CheckedPlan) -> None:
    """Print a checked plan without violations."""
    plan = checked.plan
    wanted = format_rate(plan.problem.throughput)
    out.print(Text(f"{file} holds: {format_rate(plan.throughput)} of {wanted} wanted", style="bold"))
    for line in stage_lines(plan):
        out.print(line, markup=False, no_wrap=True, crop=False)
    out.print(
        f"{device_mix(plan)}: {format_usd_per_hour(plan.usd_per_hour)}, {money(plan.cost_usd)} for the whole training",
        markup=False,
    )
    for note in checked.notes:
        print_item(out, note, "note: ")


def print_proof(out: Console, file: str, proof: Proof) -> None:
    """Print a proof that holds."""
    problem = proof.plan.problem
    lower = problem.epochs * problem.samples / problem.batch / 3600 * proof.certificate.lower
    said = f"{device_mix(proof.plan)} holds {format_rate(proof.plan.throughput)} for {money(proof.plan.cost_usd)}"
    out.print(Text(f"{file} holds: {format_count(proof.certificate.steps, 'step')}", style="bold"))
    print_item(out, f"{said}, and no plan in its plan space costs less than {money(lower)}", "")
