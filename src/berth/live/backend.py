"""The interface of a back end, which runs jobs: plain data in and out.

`observe` returns everything that is there. `apply` requests changes and is idempotent: launching a token twice starts
it once, and a token that was stopped never starts again. An order for a token whose end was forgotten shows that end
again. An order without an answer may or may not have been carried out; the next observation shows which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, Protocol

from berth.cluster.model import Cluster
from berth.errors import BerthError
from berth.live.lifecycle import Cause


class BackendError(BerthError):
    """A back end did not answer, or answered with an error: the request may or may not have been carried out."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a gang."""

    rank: int
    local_rank: int
    machine: str
    devices: tuple[int, ...]  # numbers of its devices on that machine
    part: str | None = None  # of its job's shape


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a gang as a whole or not at all."""

    token: str
    job: str
    attempt: int
    name: str
    user: str
    argv: tuple[str, ...]
    members: tuple[Member, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    grace_s: float = 30.0
    memory_bytes: int | None = None
    plan: str | None = None  # text of the plan that the job runs; its processes find it as a file


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a gang: SIGTERM, and SIGKILL after the grace period. A token that never started must not start later."""

    token: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop an attempt whose end is recorded; its logs are kept."""

    token: str


Order = Launch | Stop | Forget


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """The status of an attempt in the back end."""

    state: Literal["starting", "running", "ended"]
    _: KW_ONLY
    codes: tuple[int, ...] = ()  # of its processes, once it has ended; empty: unknown
    code: int | None = None  # of the one that failed first, or 0
    stopped: bool = False  # it was stopped before it ended
    done: bool = False  # it reported that it has finished
    lost: bool = False  # it ended through no fault of its own
    cause: Cause | None = None  # of its end, or why it does not start
    detail: str = ""  # what the engine says about that
    began: float | None = None  # when all of its parts ran, by the clock of their machines
    ended: float | None = None  # when its last process ended, by the clock of its machine


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """The status of a machine in the back end."""

    up: bool = True
    drained: bool = False
    external: int = 0  # devices that are used outside berth


@dataclass(frozen=True, slots=True)
class Blocker:
    """Something that keeps jobs from starting, whatever the policy decides."""

    cause: Cause
    sentence: str
    devices: Mapping[int, frozenset[int]] | None = None  # by machine, if only these are concerned

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON data."""
        return {"cause": str(self.cause), "sentence": self.sentence}


@dataclass(frozen=True, slots=True)
class Observation:
    """All attempts that the back end knows, and all machines."""

    attempts: Mapping[str, AttemptStatus]
    machines: Mapping[str, MachineStatus]  # a missing one is not lost at once
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a back end is observed, in seconds between two observations."""

    busy_s: float = 1.0  # while there are jobs
    idle_s: float = 1.0  # at most, while there are none
    least_s: float = 0.0  # when something is asked; 0: at every step, because it costs nothing


class Backend(Protocol):
    """Runs jobs."""

    name: str
    pace: Pace

    def cluster(self) -> Cluster:
        """Return the cluster, as far as the back end knows it."""

    def observe(self) -> Observation:
        """Return all attempts and machines, or raise BackendError."""

    def apply(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Request changes; return the orders that were carried out. The others may or may not have been."""

    def devices_of(self, token: str) -> Mapping[str, Sequence[int]] | None:
        """Return the devices that an attempt was launched on, by machine; None if that is not known.

        A machine with an empty sequence is known to be in use, but not which of its devices.
        """

    def close(self) -> None:
        """Release the engine; running jobs continue."""
