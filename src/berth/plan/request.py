"""What a user asks the planner for, by names and figures, and the problem that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.plan.build import apply_pins, match_type, problem_for
from berth.plan.problem import Problem, checked
from berth.plan.problem_json import read_problem
from berth.plan.profile.files import load_layer_profile


@dataclass(frozen=True)
class PlanRequest:
    """A request as it is written into a plan file and read from it."""

    throughput: float  # examples per second, at least
    samples: float = 1e9  # examples of one epoch
    epochs: float = 1.0
    model: str | None = None
    cluster: str | None = None
    devices: tuple[str, ...] | None = None  # instead of a cluster: device types without limits
    problem: str | None = None  # instead of a model: a problem in JSON
    fixed: float | None = None  # dollars per hour; None: derived from the model
    tables: str = "servers"
    link: float | None = None  # bytes per second; None: the slowest NIC
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
        return self.cluster or ", ".join(self.devices or ()) or "its own types"

    @property
    def examples(self) -> float:
        """Examples of all epochs."""
        return self.samples * self.epochs


def build_problem(request: PlanRequest, folder: Path | None = None) -> Problem:
    """Return the problem of a request.

    File names are looked up as given, then in `folder` (that of the plan file that names them).
    """
    if request.problem is not None:
        problem = _stated_problem(request, folder)
    elif request.model is None or (request.cluster is None) == (request.devices is None):
        raise InputError(
            "a plan needs a model and a cluster",
            hint="`model:` and `cluster:` (or `devices:`), or `problem:`",
        )
    else:
        problem = problem_for(
            load_layer_profile(_resolve(request.model, folder)),
            load_cluster(_resolve(request.cluster, folder)) if request.cluster else request.devices or (),
            request.throughput,
            request.samples,
            request.epochs,
            request.fixed,
            forbid=request.forbid,
            tables=request.tables,
            link=request.link,
        )
    return apply_pins(problem, request.pins)


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
    """Return the path of a file in `folder` if only that exists, else the name itself."""
    if folder is not None and not Path(name).exists() and (folder / name).exists():
        return str(folder / name)
    return name
