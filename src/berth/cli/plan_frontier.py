"""`berth plan frontier`: the cost of every throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from berth.cli.option_groups import expand_options
from berth.cli.options import AsJson, Force, Html, option
from berth.cli.output import check_output, write_text
from berth.cli.plan_options import AnyRate, ProblemOptions, SourceOptions, loaded_problem, plan_request
from berth.errors import InputError
from berth.report import terminal

if TYPE_CHECKING:
    from berth.report.plan_frontier import FrontierChart

EXAMPLES = ("berth plan frontier ctrdnn --cluster cloud-mix --html frontier.html",)


@expand_options
def frontier(
    source: SourceOptions,
    problem: ProblemOptions,
    limit: Annotated[int, option("N", "Stop after this many plans.", min=1)] = 2000,
    html: Html = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show the cheapest plan for every possible throughput, next to the fixed plans."""
    from berth.plan.frontier import frontier as solve
    from berth.report.plan_frontier import frontier_chart, print_frontier

    check_output(html, force, option="--html")
    request = plan_request(source, AnyRate(), problem)
    built = loaded_problem(request)
    plans = solve(built, limit=limit)
    if not plans:
        raise InputError(
            "no plan is feasible at any throughput", hint="relax the pins, the limits or the memory"
        )
    chart = frontier_chart(built, plans)
    examples = f"{request.examples:,.0f}"
    if html:
        from berth.report.plan_html import frontier_page

        facts = {"model": request.subject, "on": request.devices_from, "examples": examples}
        write_text(html, frontier_page(facts, chart, built))
    if as_json:
        terminal.print_json(_document(chart))
        return
    out = terminal.console()
    print_frontier(out, f"{request.subject} on {request.devices_from}: cost of {examples} examples", chart)
    if html:
        out.print(f"wrote {html}", markup=False, soft_wrap=True)


def _document(chart: FrontierChart) -> dict[str, Any]:
    from berth.plan.problem_json import stage_documents

    plans = [
        {
            "throughput": plan.throughput,
            "usd_per_hour": plan.usd_per_hour,
            "cost_usd": plan.cost_usd,
            "stages": stage_documents(plan),
        }
        for plan in chart.plans
    ]
    return {"plans": plans, "rates": chart.rates, "fixed_usd": chart.fixed}
