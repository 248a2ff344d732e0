"""`berth plan`: choose a device type for each layer, and how many devices to rent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from berth.cli import plan_bench, plan_check, plan_frontier
from berth.cli.option_groups import expand_options
from berth.cli.output import check_output, write_text
from berth.cli.plan_live import LivePlanOptions, plan_against_live
from berth.cli.plan_options import (
    GoalOptions,
    MethodOptions,
    OutputOptions,
    ProblemOptions,
    SourceOptions,
    loaded_problem,
    plan_request,
    watch,
)
from berth.cli.verbs import NameOrCommand, Verbs
from berth.errors import InputError
from berth.report import terminal

if TYPE_CHECKING:
    from berth.plan.solve import SearchOptions, Solution
    from berth.report.plan_report import PlanReport

_MAX_FRONTIER_PLANS = 500


class ModelOrCommand(NameOrCommand):
    """`berth plan MODEL` and `berth plan check FILE`."""

    name_means = "model"


EXAMPLES = (
    "berth plan ctrdnn --cluster cloud-mix --throughput 100k/s",
    "berth plan ctrdnn --cluster cloud-mix --deadline 2h --out plan.yaml",
    "berth plan ctrdnn --cluster cloud-mix --throughput 3M/s --mode async --tables servers",
    "berth plan nce --devices cpu-core,T4 --max-usd 500 --examples 4e9",
    "berth plan --problem problem.json --json",
    "berth plan ctrdnn --against-live --deadline 6h --out plan.yaml",
)

app = Verbs(cls=ModelOrCommand, invoke_without_command=True, examples=EXAMPLES)
app.verb(*plan_check.EXAMPLES)(plan_check.check)
app.verb(*plan_frontier.EXAMPLES)(plan_frontier.frontier)
app.verb(*plan_bench.EXAMPLES)(plan_bench.bench)


@app.callback()
@expand_options
def plan(
    ctx: typer.Context,
    source: SourceOptions,
    goal: GoalOptions,
    problem: ProblemOptions,
    method: MethodOptions,
    output: OutputOptions,
    live: LivePlanOptions,
) -> None:
    """Find the cheapest mix of devices for a model at a given throughput, and explain the choice.

    The plan is the cheapest in a stated plan space, by a closed formula. The method exact proves it, and an event
    simulation tests it.

    MODEL is one of the zoo (see `berth profile`) or a layer profile (YAML).

    A problem in JSON replaces it: berth plan --problem FILE.

    If no plan holds the throughput, that is an error (exit code 2) that names the highest one that has a plan.

    With --json it is an answer: feasible is false, and the exit code is 0.
    """
    if ctx.invoked_subcommand is not None:
        return
    from berth.plan.solve import solve

    options = method.search_options()
    for option, file in output.files.items():
        check_output(file, output.force, option=option)
    if live.against_live:
        plan_against_live(source, goal, problem, method, output, live)
        return
    request = plan_request(source, goal, problem)
    options.check(request.max_usd)
    if output.compare and request.max_usd is not None:
        raise InputError("--compare needs a throughput", hint="leave out --compare or --max-usd")
    built = loaded_problem(request)
    solution = solve(request, built, options, watch)
    _show(solution, output, _comparison(solution, options) if output.compare else None)


def _comparison(solution: Solution, options: SearchOptions) -> list[Any] | None:
    """Return the results of every method on the problem, with the margin of its plan; None if it has no plan."""
    from berth.plan.bench import compare_methods
    from berth.plan.search.method import METHODS

    plan = solution.outcome.plan
    if plan is None:
        return None
    sized = solution.problem.at(plan.problem.throughput)
    results: list[Any] = compare_methods(sized, options.budget, tuple(METHODS))
    return results


def _show(solution: Solution, output: OutputOptions, compared: list[Any] | None) -> None:
    """Write the files and print the answer; a problem without a plan is an answer only in JSON."""
    from berth.plan.problem_json import answer
    from berth.report.plan import print_plan
    from berth.report.plan_report import plan_report

    more = {} if compared is None else {"compare": _compared_document(compared)}
    if output.as_json and solution.outcome.plan is None:
        terminal.print_json(answer(solution.outcome, solution.infeasible))
        return
    if solution.error is not None:
        if output.as_json:
            terminal.print_json(_refuted_document(solution, solution.error))
        raise solution.error
    stated, files = solution.request.problem is not None, output.files
    if output.as_json and stated and not files and solution.refinement is None:
        terminal.print_json(answer(solution.outcome) | more)
        return
    report = plan_report(solution, checked="--certificate" in files)
    _write_files(report, files)
    if output.as_json:
        terminal.print_json(answer(solution.final) | ({} if stated else report.document()) | more)
        return
    out = terminal.console()
    print_plan(out, report)
    if compared is not None:
        from berth.report.plan_bench import compare_table

        out.print()
        out.print(compare_table(compared))
    lines = [f"wrote {file}" for file in files.values()]
    if "--out" in files:
        lines.append(f"`berth plan check {files['--out']}` checks it after an edit.")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def _compared_document(compared: list[Any]) -> Any:
    from berth.report.plan_bench import compare_document

    return compare_document(compared)


def _refuted_document(solution: Solution, error: InputError) -> dict[str, Any]:
    """Return the answer for a problem whose plans the event simulation refutes: none of them is recommended."""
    from berth.plan.problem_json import answer
    from berth.report.plan_report import objective_document

    refined = solution.refinement
    more = {"objective": objective_document(refined)} if refined else {}
    figures = {"reason": error.what, "simulated_throughput": solution.simulated_throughput}
    return answer(replace(solution.final, plan=None)) | figures | more


def _write_files(report: PlanReport, files: dict[str, str]) -> None:
    """Write the files that were asked for; `files` maps an option to its path."""
    from berth.plan.files import write_plan
    from berth.plan.proof import proof_document

    solution = report.solution
    if path := files.get("--out"):
        refinement = solution.refinement
        write_plan(path, solution.request, solution.final, refinement.best if refinement else None)
    if path := files.get("--certificate"):
        document = proof_document(solution.outcome)
        write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    if path := files.get("--job-profile"):
        _write_job_profile(path, report)
    if path := files.get("--html"):
        _write_page(path, report)


def _write_job_profile(path: str, report: PlanReport) -> None:
    from berth.plan.job import planned_job
    from berth.plan.profile.job import write_job_profile

    plan = report.solution.final.plan
    if plan is None or plan.problem.source is None:
        raise InputError("a JSON problem has no job profile", hint="name a model instead of --problem")
    write_job_profile(planned_job(plan)[0], path)


def _write_page(path: str, report: PlanReport) -> None:
    from berth.plan.frontier import frontier
    from berth.report.plan_frontier import frontier_chart
    from berth.report.plan_html import plan_page

    problem = report.solution.problem
    plans = frontier(problem, limit=_MAX_FRONTIER_PLANS)
    write_text(path, plan_page(report, frontier_chart(problem, plans) if plans else None))
