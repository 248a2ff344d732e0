"""`berth plan`: choose a device type for each layer, and how many devices to rent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from berth.cli import plan_bench, plan_check, plan_frontier
from berth.cli.option_groups import expand_options
from berth.cli.output import check_output
from berth.cli.plan_options import (
    GoalOptions,
    MethodOptions,
    OutputOptions,
    ProblemOptions,
    SourceOptions,
    plan_request,
    warm_up,
    watch,
)
from berth.cli.verbs import Group, Verbs
from berth.errors import InputError, nearest

if TYPE_CHECKING:
    from berth.plan.solve import Solution


class ModelOrCommand(Group):
    """Accept `berth plan MODEL --option` and `berth plan check FILE`: a word that is not a command is the model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a command an empty model; otherwise allow options on both sides of the model."""
        if args and args[0] in self.commands:
            return super().parse_args(ctx, ["", *args])
        first = args[0] if args else ""
        ctx.allow_interspersed_args = True
        rest = super().parse_args(ctx, args)
        if ctx._protected_args:
            words, meant = " ".join([*ctx._protected_args, *rest]), nearest(first, self.commands)
            raise InputError(
                f"nothing is expected after the model: {words}",
                hint=f"did you mean {meant!r}?" if meant else "see berth plan --help",
            )
        return rest


EXAMPLES = (
    "berth plan ctrdnn --cluster cloud-mix --throughput 100k/s",
    "berth plan ctrdnn --cluster cloud-mix --deadline 2h --out plan.yaml",
    "berth plan nce --devices cpu-core,T4 --max-usd 500 --examples 4e9",
    "berth plan --problem problem.json --json",
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
) -> None:
    """Find the cheapest mix of devices for a model at a given throughput, and explain the choice.

    The plan is the cheapest in a stated plan space, by a closed formula. The method exact proves it; --objective
    simulate tests it.

    MODEL is one of the zoo (see `berth profile`) or a layer profile (YAML).

    A problem in JSON replaces it: berth plan --problem FILE.

    If no plan holds the throughput, that is an error (exit code 2) that names the highest one that has a plan.

    With --json it is an answer: feasible is false, and the exit code is 0.
    """
    if ctx.invoked_subcommand is not None:
        return
    from berth.plan.request import build_problem
    from berth.plan.solve import solve

    options = method.search_options()
    for option, file in output.files.items():
        check_output(file, output.force, option=option)
    request = plan_request(source, goal, problem)
    options.check(request.max_usd)
    built = build_problem(request)
    warm_up(built)
    _show(solve(request, built, options, watch), output)


def _show(solution: Solution, output: OutputOptions) -> None:
    """Write the files and print the answer; a problem without a plan is an answer only in JSON."""
    from berth.cli.plan_files import write_files
    from berth.plan.problem_json import answer
    from berth.report import terminal
    from berth.report.plan import print_plan
    from berth.report.plan_report import objective_document, plan_report

    if output.as_json and solution.outcome.plan is None:
        terminal.print_json(answer(solution.outcome, solution.infeasible))
        return
    if solution.error is not None:
        if output.as_json and solution.refinement is not None:
            judged = {"reason": solution.error.what, "objective": objective_document(solution.refinement)}
            terminal.print_json(answer(solution.final) | judged)
        raise solution.error
    stated, files = solution.request.problem is not None, output.files
    if output.as_json and stated and not files and solution.refinement is None:
        terminal.print_json(answer(solution.outcome))
        return
    report = plan_report(solution)
    write_files(report, files)
    if output.as_json:
        terminal.print_json(answer(solution.final) | ({} if stated else report.document()))
        return
    out = terminal.console()
    print_plan(out, report)
    lines = [f"wrote {file}" for file in files.values()]
    if "--out" in files:
        lines.append(f"`berth plan check {files['--out']}` checks it after an edit.")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
