"""Options of the planning commands, grouped by concern, and what they become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from berth.cli import complete
from berth.cli.options import AsJson, Force, Html, JobProfileFile, argument, flag, option
from berth.cli.progress import compiling, progress_bar
from berth.cli.quantities import dollars, names, read, read_positive, share, whole_number, whole_numbers
from berth.errors import InputError
from berth.native.interrupts import interrupt_safely
from berth.units import amount, bytes_per_second, per_second, seconds, usd_per_hour

if TYPE_CHECKING:
    from berth.plan.problem import Problem
    from berth.plan.request import PlanRequest
    from berth.plan.search.method import Progress
    from berth.plan.solve import SearchOptions
    from berth.plan.world import WorldOptions

AUTO = "auto"
_OF_MODELS = (
    "mode", "batch", "batch_per_replica", "staleness", "micro", "rows", "tables", "whole_machines", "bandwidth",
)  # fmt: skip
_NOT_IN_SYNC = {"--staleness": "replicas wait for each other in sync: staleness is 0"}
_NOT_IN_ASYNC = {
    "--batch": "each replica has its own batch: --batch-per-replica",
    "--micro": "asynchronous replicas do not divide their batch",
}
_EXAMPLES = 1e9


@dataclass(frozen=True)
class SourceOptions:
    """What to plan, and on which devices."""

    model: Annotated[
        str | None, argument("MODEL", "A model of the zoo, or a layer profile (YAML).", complete=complete.zoo)
    ] = None
    problem: Annotated[str | None, option("FILE", "A problem in JSON instead of MODEL.")] = None
    cluster: Annotated[
        str | None,
        option(
            "CLUSTER", "A shape, a preset or a file: its devices are the limits.", complete=complete.clusters
        ),
    ] = None
    devices: Annotated[str | None, option("A,B", "Device types without limits, instead of a cluster.")] = None

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

    throughput: Annotated[str | None, option("RATE", "Examples per second, at least (100k/s).")] = None
    deadline: Annotated[str | None, option("TIME", "Instead: finish the whole training within 24h.")] = None
    max_usd: Annotated[
        str | None, option("USD", "Instead: the fastest plan for at most this, readers and servers included.")
    ] = None

    def rate(self, examples: float, stated: float | None) -> float:
        """Return the throughput to hold; `stated` is that of a JSON problem."""
        from berth.plan.request import ANY_RATE

        if self.throughput is not None and self.deadline is not None:
            raise InputError("--throughput and --deadline contradict each other", hint="keep one of them")
        if self.throughput is not None:
            return read_positive("--throughput", per_second, self.throughput)
        if self.deadline is not None:
            return examples / read_positive("--deadline", seconds, self.deadline)
        if self.max_usd is not None:
            return ANY_RATE
        if stated is not None:
            return stated
        raise InputError(
            "no throughput is given", hint="give --throughput 100k/s, --deadline 24h or --max-usd 500"
        )


class AnyRate(GoalOptions):
    """No goal: the frontier has a plan for every throughput."""

    def rate(self, examples: float, stated: float | None) -> float:
        """Return a throughput that every plan holds."""
        from berth.plan.request import ANY_RATE

        return ANY_RATE


@dataclass(frozen=True)
class ProblemOptions:
    """What a plan costs and where layers may run."""

    examples: Annotated[str | None, option("N", "Examples of one epoch.", shown="1e9")] = None
    epochs: Annotated[str | None, option("N", "Number of epochs.", shown="1")] = None
    mode: Annotated[
        str, option("MODE", "sync (one batch of all replicas) or async (each replica on its own).")
    ] = "sync"
    batch: Annotated[
        str | None,
        option("N", "sync: examples of one step of all replicas.", shown="16 x the profile's"),
    ] = None
    batch_per_replica: Annotated[
        str | None,
        option(
            "N",
            "async: the batch of each replica. sync: double the batch until every replica has N.",
            shown="async: the profile's",
        ),
    ] = None
    staleness: Annotated[
        int | None, option("N", "async: steps by which a gradient may be old.", min=0, shown="any")
    ] = None
    micro: Annotated[str, option("N,N", "sync: numbers of micro-batches to choose from.")] = AUTO
    rows: Annotated[str | None, option("N", "Rows of all embedding tables.", shown="the model's")] = None
    tables: Annotated[
        str,
        option(
            "PLACE,PLACE", "Where tables may be: servers, disk (servers with a disk tier), machine, replicas."
        ),
    ] = AUTO
    whole_machines: Annotated[bool, flag("Rent machines instead of single devices.", "--whole-machines")] = (
        False
    )
    bandwidth: Annotated[
        str | None,
        option("RATE", "Network bandwidth of each device, 390MB/s.", shown="its share of its machine's NIC"),
    ] = None
    fixed: Annotated[
        str | None, option("$/H", "Price of what does not scale, $1.5/h.", shown="a coordinator core")
    ] = None
    pin: Annotated[
        list[str] | None,
        option("LAYER=TYPE", "Run these layers there: a name, a prefix, a kind, or a..b. Repeatable."),
    ] = None
    forbid: Annotated[list[str] | None, option("TYPE", "Run no layer on this type. Repeatable.")] = None

    def check(self, *, stated: bool) -> None:
        """Refuse options that a JSON problem or the mode gives no meaning."""
        given = [name for name, value, default in self._of_models() if value != default]
        if stated and given:
            raise InputError(
                f"--problem states everything itself, so {' and '.join(given)} can't change it",
                hint="these options are for a MODEL",
            )
        wrong = _NOT_IN_ASYNC if self.mode == "async" else _NOT_IN_SYNC
        for name in given:
            if name in wrong:
                raise InputError(f"{name} has no meaning with --mode {self.mode}", hint=wrong[name])

    def _of_models(self) -> Iterator[tuple[str, object, object]]:
        """Yield the options that only make sense for a model: name, value, default."""
        for name in _OF_MODELS:
            default = next(one.default for one in fields(self) if one.name == name)
            yield f"--{name.replace('_', '-')}", getattr(self, name), default

    def world(self) -> WorldOptions:
        """Return how the model is to be trained."""
        from berth.plan.world import TABLES, WorldOptions

        def whole(name: str, text: str | None) -> int | None:
            return None if text is None else whole_number(name, text)

        rate, rows, micro = self.bandwidth, self.rows, self.micro
        given: dict[str, Any] = {} if micro == AUTO else {"micro": whole_numbers("--micro", micro)}
        return WorldOptions(
            mode=self.mode,
            batch=whole("--batch", self.batch),
            batch_per_replica=whole("--batch-per-replica", self.batch_per_replica),
            staleness=self.staleness,
            rows=None if rows is None else read_positive("--rows", amount, rows),
            tables=TABLES if self.tables == AUTO else names("--tables", self.tables, "servers,machine") or (),
            whole_machines=self.whole_machines,
            nic_share=None if rate is None else read_positive("--bandwidth", bytes_per_second, rate),
            **given,
        )


@dataclass(frozen=True)
class MethodOptions:
    """How to search, and by which objective."""

    prefer: Annotated[
        list[str] | None, option("TYPE", "Prefer this type alone; repeated: together with the next one ...")
    ] = None
    within: Annotated[str, option("SHARE", "... if that costs at most this much more.")] = "5%"
    method: Annotated[
        str,
        option(
            "METHOD",
            "exact, berth-lstm, reinforce-lstm, brute, bayes, genetic, greedy, random, cpu-only, gpu-only, "
            "heuristic, static-cpu-gpu, static-servers ...",
        ),
    ] = "exact"
    budget: Annotated[int, option("N", "Plans a search may evaluate (dollars: --max-usd).", min=1)] = 6400
    cpu_time: Annotated[str, option("TIME", "CPU time of a search.")] = "60s"
    seed: Annotated[int, option("N", "Random seed of a search.", min=0)] = 0
    objective: Annotated[
        str,
        option(
            "OBJECTIVE",
            "formula, or simulate (search by an event simulation of the training steps).",
        ),
    ] = "formula"

    def search_options(self) -> SearchOptions:
        """Return the options as the planner takes them."""
        from berth.plan.search.method import Budget
        from berth.plan.solve import SearchOptions

        budget = Budget(self.budget, read_positive("--cpu-time", seconds, self.cpu_time), self.seed)
        within = share("--within", self.within)
        return SearchOptions(self.method, budget, tuple(self.prefer or ()), within, self.objective)


@dataclass(frozen=True)
class OutputOptions:
    """Files to write, and how to print."""

    out: Annotated[str | None, option("FILE", "Write the plan (YAML).")] = None
    html: Html = None
    certificate: Annotated[str | None, option("FILE", "Write problem, plan and proof (JSON).")] = None
    job_profile: JobProfileFile = None
    compare: Annotated[
        bool, flag("Solve the problem with every method too, and compare them.", "--compare")
    ] = False
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

    source.check()
    problem.check(stated=source.problem is not None)
    stated = None if source.problem is None else read_problem(source.problem)
    samples, epochs = (stated.samples, stated.epochs) if stated else (_EXAMPLES, 1.0)
    if problem.examples is not None:
        samples = read_positive("--examples", amount, problem.examples)
    if problem.epochs is not None:
        epochs = read_positive("--epochs", amount, problem.epochs)
    return PlanRequest(
        throughput=goal.rate(samples * epochs, stated.throughput if stated else None),
        samples=samples,
        epochs=epochs,
        model=source.model,
        cluster=source.cluster,
        devices=names("--devices", source.devices, "cpu-core,T4"),
        problem=source.problem,
        fixed=None if problem.fixed is None else read("--fixed", usd_per_hour, problem.fixed),
        world=problem.world(),
        pins=tuple(problem.pin or ()),
        forbid=tuple(problem.forbid or ()),
        max_usd=None if goal.max_usd is None else dollars("--max-usd", goal.max_usd),
    )


def loaded_problem(request: PlanRequest) -> Problem:
    """Return the problem of a request, with the kernels loaded; bad input is reported before they are compiled."""
    from berth.plan.request import build_problem

    if request.searches_batch:
        warm_up()
    problem = build_problem(request)
    warm_up()
    return problem


def warm_up() -> None:
    """Load the kernels; the first run on a machine compiles them and says so. From then on Ctrl-C waits for them."""
    from berth.plan.warmup import load_kernels

    interrupt_safely()
    with compiling("plan", "*.nbi"):
        load_kernels()


@contextmanager
def watch(phase: str) -> Iterator[Progress | None]:
    """Show a progress bar with the best plan so far."""
    with progress_bar(phase) as show:
        if show is None:
            yield None
        else:
            yield lambda done, total, best: show(done, total, f"{phase}, best ${best:,.4g}")
