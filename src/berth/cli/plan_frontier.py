"""`berth plan frontier`: what throughput costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import plan_options as option
from berth.cli.options import AsJson, Force, Html
from berth.cli.output import check_output, write_text
from berth.errors import InputError

if TYPE_CHECKING:
    from berth.report.plan_frontier import Picture

EXAMPLES = ("berth plan frontier ctrdnn --cluster cloud-mix --html frontier.html",)


def frontier(
    model: option.Model = None,
    problem: option.ProblemFile = None,
    cluster: option.ClusterName = None,
    devices: option.Devices = None,
    examples: option.Examples = None,
    epochs: option.Epochs = None,
    fixed: option.FixedPrice = None,
    tables: option.Tables = "servers",
    bandwidth: option.Bandwidth = None,
    pin: option.Pins = None,
    forbid: option.Forbids = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Stop after so many plans.")] = 2000,
    html: Html = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show the cheapest plan for every throughput there can be, with the fixed plans beside it."""
    from berth.plan.frontier import frontier as solve
    from berth.plan.wanted import pose
    from berth.report.plan_frontier import picture

    check_output(html, force, option="--html")
    wanted = option.wanted(
        model,
        problem,
        cluster,
        devices,
        option.ANY_RATE,
        None,
        None,
        examples,
        epochs,
        fixed,
        tables,
        pin,
        forbid,
        bandwidth,
    )
    posed = pose(wanted)
    option.warm_up(posed.problem)
    plans = solve(posed.problem, most=limit)
    if not plans:
        raise InputError(
            "no plan is feasible at any throughput", hint="pins, limits and memory leave nothing"
        )
    shown = picture(posed.problem, plans)
    heading = f"{wanted.model or wanted.problem} on {wanted.place}: cost of {wanted.examples:,.0f} examples"
    if html:
        from berth.report.plan_html import frontier_page

        facts = {"model": str(wanted.model or wanted.problem), "on": wanted.place}
        write_text(html, frontier_page(facts | {"examples": f"{wanted.examples:,.0f}"}, shown, posed))
    _show(heading, shown, html, as_json)


def _show(heading: str, shown: Picture, html: str | None, as_json: bool) -> None:
    from berth.report import terminal
    from berth.report.plan_frontier import print_frontier

    if as_json:
        terminal.print_json(_document(shown))
        return
    out = terminal.console()
    print_frontier(out, heading, shown)
    if html:
        out.print(f"wrote {html}", markup=False, soft_wrap=True)


def _document(shown: Picture) -> dict[str, Any]:
    from berth.plan.document import stage_documents

    plans = [
        {
            "throughput": plan.throughput,
            "usd_per_hour": plan.usd_per_hour,
            "cost_usd": plan.cost_usd,
            "stages": stage_documents(plan),
        }
        for plan in shown.plans
    ]
    return {"plans": plans, "rates": shown.rates, "fixed_usd": shown.fixed}
