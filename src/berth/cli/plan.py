"""`berth plan`: which kind of device should run each layer, and how many to rent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import plan_bench, plan_check, plan_frontier
from berth.cli import plan_options as option
from berth.cli.options import AsJson, Force, Html, JobProfileFile
from berth.cli.output import check_output
from berth.cli.verbs import Group, Verbs
from berth.errors import InputError, nearest

if TYPE_CHECKING:
    from berth.plan.choose import Asked
    from berth.plan.wanted import Wanted
    from berth.report.plan_story import Story


class ModelOrCommand(Group):
    """`berth plan MODEL --option` and `berth plan check FILE` alike: a word that is no command is the model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Gives a command an empty model; else lets options stand on both sides of the model."""
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

Out = Annotated[str | None, typer.Option(metavar="FILE", help="Write the plan (YAML).")]
Proof = Annotated[str | None, typer.Option(metavar="FILE", help="Write problem, plan and proof (JSON).")]


@app.callback()
def plan(
    ctx: typer.Context,
    model: option.Model = None,
    problem: option.ProblemFile = None,
    cluster: option.ClusterName = None,
    devices: option.Devices = None,
    throughput: option.Throughput = None,
    deadline: option.Deadline = None,
    max_usd: option.MaxUsd = None,
    examples: option.Examples = None,
    epochs: option.Epochs = None,
    fixed: option.FixedPrice = None,
    tables: option.Tables = "servers",
    bandwidth: option.Bandwidth = None,
    pin: option.Pins = None,
    forbid: option.Forbids = None,
    prefer: option.Prefers = None,
    within: option.Within = "5%",
    method: option.MethodName = "exact",
    budget: option.Evaluations = 6400,
    cpu_time: option.CpuTime = "60s",
    seed: option.Seed = 0,
    objective: option.ObjectiveName = "formula",
    out: Out = None,
    html: Html = None,
    certificate: Proof = None,
    job_profile: JobProfileFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Find the cheapest mix of devices for a model at a wanted throughput, and say why.

    The cheapest in a stated plan space, by a closed formula; exact proves it, --objective simulate tests the plan.

    MODEL is one of the zoo (see `berth profile`) or a profile of layers (YAML).

    A bare problem (JSON) may stand instead: berth plan --problem FILE.

    What no plan can hold is an error (exit code 2), with the nearest that can be.

    With --json it is an answer: feasible is false, and the exit code 0.
    """
    if ctx.invoked_subcommand is not None:
        return
    option.check_objective(objective, max_usd)
    files = {"--out": out, "--html": html, "--certificate": certificate, "--job-profile": job_profile}
    for name, file in files.items():
        check_output(file, force, option=name)
    wanted = option.wanted(
        model,
        problem,
        cluster,
        devices,
        throughput,
        deadline,
        max_usd,
        examples,
        epochs,
        fixed,
        tables,
        pin,
        forbid,
        bandwidth,
    )
    asked = option.asked(method, budget, cpu_time, seed, prefer, within, max_usd)
    _answer(wanted, asked, objective, {name: file for name, file in files.items() if file}, as_json)


def _answer(wanted: Wanted, asked: Asked, objective: str, files: dict[str, str], as_json: bool) -> None:
    from dataclasses import replace

    from berth.cli.plan_files import write_files
    from berth.plan.choose import by_formula, choose, reason, refined, refusal, refuted
    from berth.plan.document import answer
    from berth.plan.wanted import pose
    from berth.report import terminal
    from berth.report.plan_story import tell

    posed = pose(wanted)
    option.warm_up(posed.problem)
    with option.searching(asked.method) as progress:
        how = asked if objective == "formula" else by_formula(asked)
        outcome = choose(posed.problem, how, progress, posed.serving_usd)
    if outcome.plan is None:
        if not as_json:
            raise refusal(posed.problem, outcome)
        terminal.print_json(answer(outcome, reason(posed.problem, outcome)))
        return
    if as_json and wanted.problem is not None and not files and objective == "formula":
        terminal.print_json(answer(outcome))
        return
    story = tell(wanted, posed, outcome)
    if objective != "formula":
        with option.searching(f"{asked.method}, {objective}") as progress:
            found = refined(posed, wanted.model, outcome, asked, objective, progress)
        story = replace(story, refined=found)
        if not found.best.feasible:
            error = refuted(outcome.plan, found, objective.partition(":")[0])
            if as_json:
                terminal.print_json(answer(found.outcome) | story.judged(error.what))
            raise error
    write_files(story, files)
    if as_json:
        terminal.print_json(answer(story.final) | ({} if wanted.problem else story.document()))
        return
    _print(story, files)


def _print(story: Story, files: dict[str, str]) -> None:
    from berth.report import terminal
    from berth.report.plan import print_plan

    out = terminal.console()
    print_plan(out, story)
    for file in files.values():
        out.print(f"wrote {file}", markup=False, soft_wrap=True)
    if "--out" in files:
        out.print(
            f"`berth plan check {files['--out']}` checks it after an edit.", markup=False, soft_wrap=True
        )
