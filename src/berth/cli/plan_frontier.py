"""`berth plan frontier`: what throughput costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import plan_options as option
from berth.cli.scenario import check_output
from berth.errors import InputError

if TYPE_CHECKING:
    from berth.report.plan_frontier import Picture

EPILOG = "Example: berth plan frontier ctrdnn --cluster cloud-mix --html frontier.html"


def frontier(
    model: option.Model = None,
    problem: option.ProblemFile = None,
    cluster: option.ClusterName = None,
    devices: option.Devices = None,
    samples: option.Samples = None,
    epochs: option.Epochs = None,
    fixed: option.FixedPrice = None,
    tables: option.Tables = "servers",
    link: option.Link = None,
    pin: option.Pins = None,
    forbid: option.Forbids = None,
    most: Annotated[int, typer.Option(metavar="N", help="Stop after so many plans.")] = 2000,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write it as one HTML file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    as_json: option.AsJson = False,
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
        samples,
        epochs,
        fixed,
        tables,
        pin,
        forbid,
        link,
    )
    posed = pose(wanted)
    option.warm_up(posed.problem)
    plans = solve(posed.problem, most=most)
    if not plans:
        raise InputError(
            "no plan is feasible at any throughput", hint="pins, limits and memory leave nothing"
        )
    shown = picture(posed.problem, plans)
    heading = f"{wanted.model or wanted.problem} on {wanted.place}: cost of {wanted.examples:,.0f} examples"
    if html:
        from berth.cli.plan_files import store
        from berth.report.plan_html import frontier_page

        facts = {"model": str(wanted.model or wanted.problem), "on": wanted.place}
        store(html, frontier_page(facts | {"examples": f"{wanted.examples:,.0f}"}, shown, posed))
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
