"""`berth plan check`: compute a plan file again, perhaps after an edit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from berth.cli.options import AsJson, argument
from berth.cli.plan_options import warm_up
from berth.errors import SpecError
from berth.report import terminal

if TYPE_CHECKING:
    from berth.plan.check_file import CheckedPlan

EXAMPLES = ("berth plan check plan.yaml", "berth plan check proof.json --json")


def check(
    file: Annotated[str, argument("FILE", "A plan (YAML) from --out, or a proof (JSON) from --certificate.")],
    as_json: AsJson = False,
) -> None:
    """Compute a plan's throughput and cost again, and list its violations with their lines (exit code 2)."""
    from berth.plan.check_file import check_plan
    from berth.report.plan import print_checked

    warm_up()
    if file.endswith(".json"):
        _check_proof(file, as_json)
        return
    checked = check_plan(file)
    if as_json:
        terminal.print_json(_document(checked))
    if checked.violations:
        raise _error(checked)
    if not as_json:
        print_checked(terminal.console(), file, checked)


def _check_proof(file: str, as_json: bool) -> None:
    from berth.plan.proof import check_proof
    from berth.report.plan import print_proof

    proof = check_proof(file)
    if as_json:
        terminal.print_json(
            {
                "holds": not proof.errors,
                "wrong": proof.errors,
                "cost_usd": proof.plan.cost_usd,
                "lower_bound_usd": proof.lower_bound_usd,
            }
        )
    if proof.errors:
        raise SpecError("\n".join(proof.errors), where=file)
    if not as_json:
        print_proof(terminal.console(), file, proof)


def _error(checked: CheckedPlan) -> SpecError:
    """Return all violations in one message: the first as the error, the others below it."""
    (where, what), *others = checked.violations
    return SpecError("\n".join([what, *(f"{place}: {text}" for place, text in others)]), where=where)


def _document(checked: CheckedPlan) -> dict[str, Any]:
    from berth.plan.problem_json import stage_documents

    plan = checked.plan
    return {
        "holds": not checked.violations,
        "broken": [{"where": where, "what": what} for where, what in checked.violations],
        "stages": stage_documents(plan),
        "throughput": plan.throughput,
        "usd_per_hour": plan.usd_per_hour,
        "cost_usd": plan.cost_usd if math.isfinite(plan.cost_usd) else None,
        "notes": list(checked.notes),
    }
