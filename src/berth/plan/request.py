"""What a user asks the planner for, by names and figures, and the problem that follows from it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from berth.cluster.describe import Description, load_described
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.plan.pins import apply_pins, match_type
from berth.plan.problem import Problem, checked
from berth.plan.problem_json import read_problem
from berth.plan.profile.files import load_layer_profile, shipped_profiles
from berth.plan.world import SYNC, WorldOptions
from berth.plan.world_problem import problem_for
from berth.units import format_rate

ROWS = 1e9  # of the tables of a shipped model that does not state them: a usual size in production
ANY_RATE = 1e-6  # examples per second: no lower bound in practice
_LARGEST_BATCH = 2**26
_SCALING_S = 2.0  # CPU time of the plan for one batch


@dataclass(frozen=True)
class PlanRequest:
    """A request as it is written into a plan file and read from it."""

    throughput: float  # examples per second, at least
    samples: float = 1e9  # examples of one epoch
    epochs: float = 1.0
    model: str | None = None
    cluster: Description | None = None  # its name or file, or what it consists of
    devices: tuple[str, ...] | None = None  # instead of a cluster: device types without limits
    problem: str | None = None  # instead of a model: a problem in JSON
    fixed: float | None = None  # dollars per hour; None: derived from the model
    world: WorldOptions = field(default_factory=WorldOptions)
    pins: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    max_usd: float | None = None  # the fastest plan for at most this, instead of the cheapest one

    @property
    def subject(self) -> str:
        """The model or problem file to plan for."""
        return self.model or self.problem or "problem"

    @property
    def devices_from(self) -> str:
        """Where the devices come from."""
        if isinstance(self.cluster, dict):
            return str(self.cluster.get("name", "its own cluster"))
        return self.cluster or ", ".join(self.devices or ()) or "its own types"

    @property
    def searches_batch(self) -> bool:
        """Whether the batch of a synchronous step follows from the examples of each replica."""
        return self.problem is None and self.world.mode == SYNC and self.world.batch_per_replica is not None

    @property
    def examples(self) -> float:
        """Examples of all epochs."""
        return self.samples * self.epochs


def build_problem(request: PlanRequest, folder: Path | None = None) -> Problem:
    """Return the problem of a request.

    File names are looked up in `folder` (that of the plan file that names them), then as given.
    """
    if request.problem is not None:
        return apply_pins(_stated_problem(request, folder), request.pins, request.forbid)
    return (_weakly_scaled if request.searches_batch else _model_problem)(request, folder)


def _model_problem(request: PlanRequest, folder: Path | None) -> Problem:
    if request.model is None or (request.cluster is None) == (request.devices is None):
        raise InputError(
            "a plan needs a model and a cluster",
            hint="`model:` and `cluster:` (or `devices:`), or `problem:`",
        )
    profile = load_layer_profile(_resolve(request.model, folder))
    world = request.world
    if world.rows is None and profile.rows is None and request.model.lower() in shipped_profiles():
        world = replace(world, rows=ROWS)
    problem = problem_for(
        profile,
        _cluster(request.cluster, folder) if request.cluster else request.devices or (),
        request.throughput,
        request.samples,
        request.epochs,
        request.fixed,
        forbid=request.forbid,
        options=world,
    )
    if problem.source is not None and problem.batch > request.examples:
        raise InputError(
            f"a batch of {problem.batch:,.0f} is more than the {request.examples:,.0f} examples of the training",
            hint="give a smaller --batch, or more --examples",
        )
    return apply_pins(problem, request.pins, request.forbid)


def _cluster(cluster: Description, folder: Path | None) -> Cluster:
    return load_described(_resolve(cluster, folder) if isinstance(cluster, str) else cluster)


def _weakly_scaled(request: PlanRequest, folder: Path | None) -> Problem:
    """Return the problem with the smallest batch n, 2n, 4n .. at which every replica of its plan has n examples."""
    from berth.plan.search.exact import exact
    from berth.plan.search.method import Budget

    each, most = request.world.batch_per_replica, request.world.batch or _LARGEST_BATCH
    assert each is not None
    if request.throughput <= ANY_RATE:
        raise InputError(
            "--batch-per-replica needs a throughput in sync: it decides how many replicas share a batch",
            hint="give --throughput or --deadline, or the batch of all replicas (--batch)",
        )
    batch, widest = each, 0
    while batch <= most:
        world = replace(request.world, batch=batch, batch_per_replica=None)
        problem = _model_problem(replace(request, world=world), folder)
        plan = exact(problem, Budget(seconds=_SCALING_S)).plan
        widest = max(stage.replicas for stage in plan.stages) if plan else 0
        if plan and batch >= each * widest:
            return problem
        batch *= 2
    share = (
        f"at {batch // 2:,} the widest stage has {widest:,} replicas" if widest else "no plan is fast enough"
    )
    raise InputError(
        f"no batch up to {most:,} gives every replica {each:,} examples at {format_rate(request.throughput)}",
        hint=f"{share}; allow a larger --batch, or fewer examples per replica",
    )


def _stated_problem(request: PlanRequest, folder: Path | None) -> Problem:
    """Return the JSON problem with the request's own figures."""
    assert request.problem is not None
    problem = read_problem(_resolve(request.problem, folder))
    fixed = problem.fixed_usd_per_hour if request.fixed is None else request.fixed
    problem = replace(problem.at(request.throughput), samples=request.samples, epochs=request.epochs)
    problem = checked(replace(problem, fixed_usd_per_hour=fixed))
    for name in request.forbid:
        problem = problem.without(match_type(problem, name))
    return problem


def _resolve(name: str, folder: Path | None) -> str:
    """Return the path of a file in `folder` if there is one, else the name itself."""
    if folder is not None and (split := file_in(name, folder)) is not None:
        return str(folder / split[0]) + split[1]
    return name


def relative_to(folder: Path, request: PlanRequest) -> PlanRequest:
    """Return a request in which the files that it names by a relative path are named as seen from `folder`."""

    def seen(name: str | None) -> str | None:
        split = None if name is None or Path(name).is_absolute() else file_in(name, Path())
        return name if split is None else os.path.relpath(split[0], folder) + split[1]

    cluster = request.cluster if isinstance(request.cluster, dict) else seen(request.cluster)
    return replace(request, model=seen(request.model), cluster=cluster, problem=seen(request.problem))


def file_in(name: str, folder: Path) -> tuple[str, str] | None:
    """Return the file that a name means in a folder, and what follows it (`:4xH100` of a topology); None: none.

    Only a name with a suffix or a folder is a file: `lab` is a preset, whatever lies beside the plan.
    """
    path, colon, device = name.partition(":")
    for file, rest in ((name, ""), (path, colon + device)):
        if (Path(file).suffix or "/" in file) and (folder / file).is_file():
            return file, rest
    return None
