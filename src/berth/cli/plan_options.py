"""What the planning verbs share: their options, and what those become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli import complete
from berth.cli.progress import COMPILING, progress_bar, spinner
from berth.cli.quantities import dollars, names, read, read_positive, share
from berth.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from berth.plan.choose import Asked
    from berth.plan.problem import Problem
    from berth.plan.search.method import Progress
    from berth.plan.wanted import Wanted

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", autocompletion=complete.zoo, help="A model of the zoo, or a layer profile (YAML)."
    ),
]
ProblemFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="A bare problem (JSON) instead of MODEL.")
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        autocompletion=complete.clusters,
        help="A shape, a preset or a file: its devices are the limits.",
    ),
]
Devices = Annotated[
    str | None, typer.Option(metavar="A,B", help="Device types without limits, instead of a cluster.")
]
Throughput = Annotated[
    str | None, typer.Option(metavar="RATE", help="Examples per second, at least (100k/s).")
]
Deadline = Annotated[str | None, typer.Option(metavar="TIME", help="Instead: the whole training within 24h.")]
MaxUsd = Annotated[
    str | None,
    typer.Option(
        metavar="USD", help="Instead: the fastest plan for at most this, readers and servers included."
    ),
]
Examples = Annotated[str | None, typer.Option(metavar="N", help="Examples of one epoch.", show_default="1e9")]
Epochs = Annotated[
    str | None, typer.Option(metavar="N", help="How often they are all seen.", show_default="1")
]
FixedPrice = Annotated[
    str | None,
    typer.Option(
        "--fixed",
        metavar="$/H",
        help="Price of what does not scale, $1.5/h.",
        show_default="coordinator and cores for tables",
    ),
]
Tables = Annotated[
    str,
    typer.Option(
        metavar="servers|units", help="Where embedding tables live: there, or on their stage's units."
    ),
]
Bandwidth = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help="What one unit sends to another type, 390MB/s.", show_default="the slowest port"
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", metavar="LAYER=TYPE", help="These layers run there: a name, its beginning, a kind, or a..b."
    ),
]
Forbids = Annotated[
    list[str] | None, typer.Option("--forbid", metavar="TYPE", help="No layer runs on it. Repeatable.")
]
Prefers = Annotated[
    list[str] | None,
    typer.Option(
        "--prefer", metavar="TYPE", help="Rather this type alone; repeated: or with the next one ..."
    ),
]
Within = Annotated[str, typer.Option(metavar="SHARE", help="... if that costs at most so much more.")]
MethodName = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="METHOD",
        help="exact, rl-lstm, rl-rnn, brute, bayes, genetic, greedy, cpu-only, gpu-only, heuristic, random.",
    ),
]
Evaluations = Annotated[
    int, typer.Option("--budget", metavar="N", min=1, help="Plans a search may evaluate.")
]
CpuTime = Annotated[str, typer.Option("--cpu-time", metavar="TIME", help="CPU time it may take.")]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of a search that draws.")]
ObjectiveName = Annotated[
    str,
    typer.Option(
        "--objective",
        metavar="TRUTH",
        help="formula, simulate (the pipeline, event by event) or measure (short real runs, emulated).",
    ),
]

_EXAMPLES = 1e9
ANY_RATE = "0.000001"  # examples per second: as good as none


def wanted(
    model: str | None,
    problem: str | None,
    cluster: str | None,
    devices: str | None,
    throughput: str | None,
    deadline: str | None = None,
    max_usd: str | None = None,
    examples: str | None = None,
    epochs: str | None = None,
    fixed: str | None = None,
    tables: str = "servers",
    pin: list[str] | None = None,
    forbid: list[str] | None = None,
    bandwidth: str | None = None,
) -> Wanted:
    """The options of the problem; a bare problem's own figures hold unless an option changes them."""
    from berth.plan.document import read_problem
    from berth.plan.wanted import Wanted
    from berth.units import amount, bytes_per_second, usd_per_hour

    _check_source(model, problem, cluster, devices)
    if problem is not None and (bandwidth is not None or tables != "servers"):
        raise InputError("--problem says everything itself", hint="leave out --bandwidth and --tables")
    bare = None if problem is None else read_problem(problem)
    seen = (bare.samples, bare.epochs) if bare else (_EXAMPLES, 1.0)
    count = seen[0] if examples is None else read_positive("--examples", amount, examples)
    times = seen[1] if epochs is None else read_positive("--epochs", amount, epochs)
    rate = _rate(throughput, deadline, max_usd, count * times, bare.throughput if bare else None)
    return Wanted(
        throughput=rate,
        samples=count,
        epochs=times,
        model=model,
        cluster=cluster,
        devices=names("--devices", devices, "cpu-core,T4"),
        problem=problem,
        fixed=None if fixed is None else read("--fixed", usd_per_hour, fixed),
        tables=tables,
        link=None if bandwidth is None else read_positive("--bandwidth", bytes_per_second, bandwidth),
        pins=tuple(pin or ()),
        forbid=tuple(forbid or ()),
        max_usd=None if max_usd is None else dollars("--max-usd", max_usd),
    )


def _check_source(model: str | None, problem: str | None, cluster: str | None, devices: str | None) -> None:
    if problem is not None:
        if model or cluster or devices:
            raise InputError(
                "--problem says everything itself", hint="leave out MODEL, --cluster and --devices"
            )
        return
    if not model:
        raise InputError("no model is named", hint="write it like: berth plan ctrdnn --cluster cloud-mix")
    if cluster and devices:
        raise InputError("--cluster and --devices contradict each other", hint="keep one of them")
    if not cluster and not devices:
        raise InputError(
            "no device is named", hint="give --cluster cloud-mix, or --devices cpu-core,T4 for no limits"
        )


def _rate(
    throughput: str | None, deadline: str | None, max_usd: str | None, examples: float, stated: float | None
) -> float:
    from berth.units import per_second, seconds

    if throughput is not None and deadline is not None:
        raise InputError("--throughput and --deadline contradict each other", hint="keep one of them")
    if throughput is not None:
        return read_positive("--throughput", per_second, throughput)
    if deadline is not None:
        return examples / read_positive("--deadline", seconds, deadline)
    if max_usd is not None:
        return per_second(ANY_RATE)
    if stated is not None:
        return stated
    raise InputError(
        "nothing says how fast it should be", hint="give --throughput 100k/s, --deadline 24h or --max-usd 500"
    )


def asked(
    method: str,
    budget: int,
    cpu_time: str,
    seed: int,
    prefer: list[str] | None,
    within: str,
    max_usd: str | None,
) -> Asked:
    """The options of the choice."""
    from berth.plan.choose import Asked
    from berth.plan.search.method import METHODS, Budget
    from berth.units import seconds

    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    limit = Budget(budget, read_positive("--cpu-time", seconds, cpu_time), seed)
    most = None if max_usd is None else dollars("--max-usd", max_usd)
    return Asked(method, limit, tuple(prefer or ()), share("--within", within), most)


def check_objective(text: str, max_usd: str | None) -> None:
    """Refuses, before anything runs, an objective that is not there."""
    from berth.plan.objective.refine import OBJECTIVES

    if text.partition(":")[0] not in OBJECTIVES:
        raise UnknownNameError("objective", text, OBJECTIVES)
    if text != "formula" and max_usd is not None:
        raise InputError("--max-usd asks the formula", hint="leave out --objective")


def warm_up(problem: Problem | None = None) -> None:
    """Loads the kernels; whoever comes first on a machine is told that they are compiled."""
    from berth import compile as compiling
    from berth.plan.explain import is_large
    from berth.plan.warm import load_kernels, load_list_kernels

    folder = compiling.cache_folder() / f"plan-{compiling.fingerprint('plan')}"
    cold = not any(folder.rglob("*.nbi"))
    with spinner(COMPILING, elsewhere=True) if cold else nullcontext():
        load_kernels()
        if problem is not None and is_large(problem):
            load_list_kernels()


@contextmanager
def searching(what: str) -> Iterator[Progress | None]:
    """A bar with the best plan so far."""
    with progress_bar(what) as tell:
        if tell is None:
            yield None
        else:
            yield lambda done, total, best: tell(done, total, f"{what}, best ${best:,.4g}")
