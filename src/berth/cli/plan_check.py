"""`berth plan check`: a plan, perhaps edited by hand, computed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import plan_options as option
from berth.cli.options import AsJson
from berth.errors import SpecError

if TYPE_CHECKING:
    from berth.plan.files import Checked

EXAMPLES = ("berth plan check plan.yaml", "berth plan check proof.json --json")


def check(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A plan (YAML) of --out, or a proof (JSON) of --certificate."),
    ],
    as_json: AsJson = False,
) -> None:
    """Compute a plan's throughput and cost anew, and say what it breaks and where (exit code 2)."""
    from berth.plan.files import check_plan
    from berth.report import terminal

    option.warm_up()
    if file.endswith(".json"):
        _check_proof(file, as_json)
        return
    checked = check_plan(file)
    if as_json:
        terminal.print_json(_document(checked))
    if checked.broken:
        raise _error(checked)
    if not as_json:
        _print(file, checked)


def _check_proof(file: str, as_json: bool) -> None:
    from berth.plan.proof import check_proof
    from berth.report import terminal
    from berth.report.plan import print_proof

    proof = check_proof(file)
    if as_json:
        terminal.print_json({"holds": not proof.wrong, "wrong": proof.wrong, "cost_usd": proof.plan.cost_usd})
    if proof.wrong:
        raise SpecError("\n".join(proof.wrong), where=file)
    if not as_json:
        print_proof(terminal.console(), file, proof)


def _error(checked: Checked) -> SpecError:
    """All that is broken in one message: the first at its place, the others below."""
    (where, what), *others = checked.broken
    return SpecError("\n".join([what, *(f"{place}: {text}" for place, text in others)]), where=where)


def _print(file: str, checked: Checked) -> None:
    from berth.report import terminal
    from berth.report.plan import print_checked

    print_checked(terminal.console(), file, checked)


def _document(checked: Checked) -> dict[str, Any]:
    from berth.plan.document import stage_documents

    plan = checked.plan
    return {
        "holds": not checked.broken,
        "broken": [{"where": where, "what": what} for where, what in checked.broken],
        "stages": stage_documents(plan),
        "throughput": plan.throughput,
        "usd_per_hour": plan.usd_per_hour,
        "cost_usd": plan.cost_usd,
        "notes": list(checked.notes),
    }
