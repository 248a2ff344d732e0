"""Options of the planning commands, grouped by concern, and what they become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli import complete
from berth.cli.options import AsJson, Force, Html, JobProfileFile
from berth.cli.progress import COMPILING, progress_bar, spinner
from berth.cli.quantities import dollars, names, read, read_positive, share
from berth.errors import InputError

if TYPE_CHECKING:
    from berth.plan.problem import Problem
    from berth.plan.request import PlanRequest
    from berth.plan.search.method import Progress
    from berth.plan.solve import SearchOptions

_EXAMPLES = 1e9
_ANY_RATE = 1e-6  # examples per second: no lower bound in practice


@dataclass(frozen=True)
class SourceOptions:
    """What to plan, and on which devices."""

    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete.zoo,
            help="A model of the zoo, or a layer profile (YAML).",
        ),
    ] = None
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A problem in JSON instead of MODEL.")
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER",
            autocompletion=complete.clusters,
            help="A shape, a preset or a file: its devices are the limits.",
        ),
    ] = None
    devices: Annotated[
        str | None, typer.Option(metavar="A,B", help="Device types without limits, instead of a cluster.")
    ] = None

    def check(self) -> None:
        """Refuse options that contradict each other, and too few of them."""
        if self.problem is not None:
            if self.model or self.cluster or self.devices:
                raise InputError(
                    "--problem states everything itself", hint="leave out MODEL, --cluster and --devices"
                )
            return
        if not self.model:
            raise InputError("no model is given", hint="write it like: berth plan ctrdnn --cluster cloud-mix")
        if self.cluster and self.devices:
            raise InputError("--cluster and --devices contradict each other", hint="keep one of them")
        if not self.cluster and not self.devices:
            raise InputError(
                "no device is given", hint="give --cluster cloud-mix, or --devices cpu-core,T4 for no limits"
            )


@dataclass(frozen=True)
class GoalOptions:
    """How fast the training should be, or how much it may cost."""

    throughput: Annotated[
        str | None, typer.Option(metavar="RATE", help="Examples per second, at least (100k/s).")
    ] = None
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Instead: finish the whole training within 24h.")
    ] = None
    max_usd: Annotated[
        str | None,
        typer.Option(
            metavar="USD", help="Instead: the fastest plan for at most this, readers and servers included."
        ),
    ] = None

    def rate(self, examples: float, stated: float | None) -> float:
        """Return the throughput to hold; `stated` is that of a JSON problem."""
        from berth.units import per_second, seconds

        if self.throughput is not None and self.deadline is not None:
            raise InputError("--throughput and --deadline contradict each other", hint="keep one of them")
        if self.throughput is not None:
            return read_positive("--throughput", per_second, self.throughput)
        if self.deadline is not None:
            return examples / read_positive("--deadline", seconds, self.deadline)
        if self.max_usd is not None:
            return _ANY_RATE
        if stated is not None:
            return stated
        raise InputError(
            "no throughput is given", hint="give --throughput 100k/s, --deadline 24h or --max-usd 500"
        )


class AnyRate(GoalOptions):
    """No goal: the frontier has a plan for every throughput."""

    def rate(self, examples: float, stated: float | None) -> float:
        """Return a throughput that every plan holds."""
        return _ANY_RATE


@dataclass(frozen=True)
class ProblemOptions:
    """What a plan costs and where layers may run."""

    examples: Annotated[
        str | None, typer.Option(metavar="N", help="Examples of one epoch.", show_default="1e9")
    ] = None
    epochs: Annotated[str | None, typer.Option(metavar="N", help="Number of epochs.", show_default="1")] = (
        None
    )
    fixed: Annotated[
        str | None,
        typer.Option(
            metavar="$/H",
            help="Price of what does not scale, $1.5/h.",
            show_default="coordinator and cores for tables",
        ),
    ] = None
    tables: Annotated[
        str,
        typer.Option(
            metavar="servers|replicas",
            help="Where embedding tables are: on servers, or sharded over their stage's replicas.",
        ),
    ] = "servers"
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Bandwidth from one device to another type, 390MB/s.",
            show_default="the slowest NIC",
        ),
    ] = None
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER=TYPE",
            help="Run these layers there: a name, a prefix, a kind, or a..b. Repeatable.",
        ),
    ] = None
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="TYPE", help="Run no layer on this type. Repeatable.")
    ] = None


@dataclass(frozen=True)
class MethodOptions:
    """How to search, and by which objective."""

    prefer: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Prefer this type alone; repeated: together with the next one ..."),
    ] = None
    within: Annotated[
        str, typer.Option(metavar="SHARE", help="... if that costs at most this much more.")
    ] = "5%"
    method: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            help="exact, rl-lstm, rl-rnn, brute, bayes, genetic, greedy, cpu-only, gpu-only, heuristic, random.",
        ),
    ] = "exact"
    budget: Annotated[int, typer.Option(metavar="N", min=1, help="Plans a search may evaluate.")] = 6400
    cpu_time: Annotated[str, typer.Option(metavar="TIME", help="CPU time of a search.")] = "60s"
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed of a search.")] = 0
    objective: Annotated[
        str,
        typer.Option(
            metavar="OBJECTIVE",
            help="formula, simulate (the pipeline, event by event) or measure (short real runs, emulated).",
        ),
    ] = "formula"

    def search_options(self) -> SearchOptions:
        """Return the options as the planner takes them."""
        from berth.plan.search.method import Budget
        from berth.plan.solve import SearchOptions
        from berth.units import seconds

        budget = Budget(self.budget, read_positive("--cpu-time", seconds, self.cpu_time), self.seed)
        within = share("--within", self.within)
        return SearchOptions(self.method, budget, tuple(self.prefer or ()), within, self.objective)


@dataclass(frozen=True)
class OutputOptions:
    """Files to write, and how to print."""

    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the plan (YAML).")] = None
    html: Html = None
    certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write problem, plan and proof (JSON).")
    ] = None
    job_profile: JobProfileFile = None
    force: Force = False
    as_json: AsJson = False

    @property
    def files(self) -> dict[str, str]:
        """The files to write, by option."""
        names = ("out", "html", "certificate", "job_profile")
        given = {f"--{name.replace('_', '-')}": getattr(self, name) for name in names}
        return {option: path for option, path in given.items() if path}


def plan_request(source: SourceOptions, goal: GoalOptions, problem: ProblemOptions) -> PlanRequest:
    """Return the request of the options; the figures of a JSON problem hold unless an option changes them."""
    from berth.plan.problem_json import read_problem
    from berth.plan.request import PlanRequest
    from berth.units import amount, bytes_per_second, usd_per_hour

    source.check()
    if source.problem is not None and (problem.bandwidth is not None or problem.tables != "servers"):
        raise InputError("--problem states everything itself", hint="leave out --bandwidth and --tables")
    stated = None if source.problem is None else read_problem(source.problem)
    samples, epochs = (stated.samples, stated.epochs) if stated else (_EXAMPLES, 1.0)
    if problem.examples is not None:
        samples = read_positive("--examples", amount, problem.examples)
    if problem.epochs is not None:
        epochs = read_positive("--epochs", amount, problem.epochs)
    link = problem.bandwidth
    return PlanRequest(
        throughput=goal.rate(samples * epochs, stated.throughput if stated else None),
        samples=samples,
        epochs=epochs,
        model=source.model,
        cluster=source.cluster,
        devices=names("--devices", source.devices, "cpu-core,T4"),
        problem=source.problem,
        fixed=None if problem.fixed is None else read("--fixed", usd_per_hour, problem.fixed),
        tables=problem.tables,
        link=None if link is None else read_positive("--bandwidth", bytes_per_second, link),
        pins=tuple(problem.pin or ()),
        forbid=tuple(problem.forbid or ()),
        max_usd=None if goal.max_usd is None else dollars("--max-usd", goal.max_usd),
    )


def warm_up(problem: Problem | None = None) -> None:
    """Load the kernels; the first run on a machine compiles them and says so."""
    from berth.native import cache
    from berth.plan.explain import is_large
    from berth.plan.warmup import load_arc_kernels, load_kernels

    folder = cache.cache_folder() / f"plan-{cache.fingerprint('plan')}"
    cold = not any(folder.rglob("*.nbi"))
    with spinner(COMPILING, elsewhere=True) if cold else nullcontext():
        load_kernels()
        if problem is not None and is_large(problem):
            load_arc_kernels()


@contextmanager
def watch(phase: str) -> Iterator[Progress | None]:
    """Show a progress bar with the best plan so far."""
    with progress_bar(phase) as show:
        if show is None:
            yield None
        else:
            yield lambda done, total, best: show(done, total, f"{phase}, best ${best:,.4g}")
