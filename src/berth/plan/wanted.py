"""What is asked for, by names and figures, and the problem that this poses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.plan.build import Setup, set_up, type_called, with_pins
from berth.plan.document import read_problem
from berth.plan.problem import Problem, checked
from berth.plan.profile.files import load_layer_profile


@dataclass(frozen=True)
class Wanted:
    """What was asked for, as it is written into the file and read from it."""

    throughput: float
    samples: float = 1e9
    epochs: float = 1.0
    model: str | None = None
    cluster: str | None = None
    devices: tuple[str, ...] | None = None
    problem: str | None = None
    fixed: float | None = None
    tables: str = "servers"
    link: float | None = None  # bytes per second
    pins: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    max_usd: float | None = None

    @property
    def place(self) -> str:
        """Where it is to run, in a word."""
        return self.cluster or ", ".join(self.devices or ()) or "its own types"

    @property
    def examples(self) -> float:
        """Of all epochs."""
        return self.samples * self.epochs


@dataclass(frozen=True)
class Posed:
    """The problem that was asked for; from a bare problem there is no setup."""

    problem: Problem
    setup: Setup | None

    def serving_usd(self, rate: float) -> float:
        """What the cores that read examples and serve rows cost; the prices of plans leave them out."""
        return self.setup.feeding(rate).usd if self.setup else 0.0


def pose(wanted: Wanted, folder: Path | None = None) -> Posed:
    """The problem, from its names; files are looked for as named, then beside the plan that names them."""
    if wanted.problem is not None:
        problem = read_problem(_found(wanted.problem, folder))
        fixed = problem.fixed_usd_per_hour if wanted.fixed is None else wanted.fixed
        asked = replace(problem.at(wanted.throughput), samples=wanted.samples, epochs=wanted.epochs)
        problem = checked(replace(asked, fixed_usd_per_hour=fixed))
        return Posed(with_pins(_without(problem, wanted.forbid), wanted.pins), None)
    if wanted.model is None or (wanted.cluster is None) == (wanted.devices is None):
        raise InputError(
            "a plan needs a model and a cluster",
            hint="`model:` and `cluster:` (or `devices:`), or `problem:`",
        )
    profile = load_layer_profile(_found(wanted.model, folder))
    where = load_cluster(_found(wanted.cluster, folder)) if wanted.cluster else wanted.devices or ()
    setup = set_up(
        profile, where, wanted.throughput, wanted.samples, wanted.epochs, wanted.fixed,
        forbid=wanted.forbid, tables=wanted.tables, link=wanted.link,
    )  # fmt: skip
    pinned = with_pins(setup.problem, wanted.pins)
    return Posed(pinned, replace(setup, problem=pinned))


def _found(name: str, folder: Path | None) -> str:
    """A file as named, or beside the plan; anything else is a name."""
    if folder is not None and not Path(name).exists() and (folder / name).exists():
        return str(folder / name)
    return name


def _without(problem: Problem, forbid: tuple[str, ...]) -> Problem:
    for name in forbid:
        problem = problem.without(type_called(problem, name))
    return problem
