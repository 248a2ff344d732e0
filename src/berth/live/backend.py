"""The seam to whatever runs jobs: plain data in and out.

`observe` tells what is there, all of it. `apply` asks for changes and may be called again with the same order at any
time: launching a token twice starts it once, and a token that was stopped never starts any more. An order for a token
whose end was forgotten shows that end again. An order whose answer did not come may or may not have been done; the next
observation tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, Protocol

from berth.cluster.model import Cluster
from berth.errors import BerthError
from berth.live.causes import Cause, Hindrance


class BackendError(BerthError):
    """An answer that did not come, or came with an error: what was asked may have been done or not."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a gang."""

    rank: int
    local_rank: int
    machine: str
    devices: tuple[int, ...]  # numbers of its devices on that machine


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a gang, all of it or nothing."""

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


@dataclass(frozen=True, slots=True)
class Stop:
    """End a gang: SIGTERM, and SIGKILL after the grace. A token nobody has seen must never start after this."""

    token: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Forget:
    """An attempt whose end is on record: nothing of it is needed but its logs."""

    token: str


Order = Launch | Stop | Forget


@dataclass(frozen=True, slots=True)
class Seen:
    """An attempt as the back end shows it."""

    state: Literal["starting", "running", "ended"]
    _: KW_ONLY
    codes: tuple[int, ...] = ()  # of its processes, once it has ended; empty: nobody knows
    code: int | None = None  # of the one that failed first, or 0
    stopped: bool = False  # it was told to stop before it ended
    done: bool = False  # it said itself that it has finished
    lost: bool = False  # it ended for a reason that is not its own
    cause: Cause | None = None  # of its end, or of its not starting
    detail: str = ""  # what the engine says about that


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """A machine as the back end shows it."""

    up: bool = True
    drained: bool = False
    foreign: int = 0  # devices that jobs of others hold


@dataclass(frozen=True, slots=True)
class Observation:
    """All attempts that the back end knows, and all machines."""

    attempts: Mapping[str, Seen]
    machines: Mapping[str, MachineSeen]  # one that is missing is not taken for lost at once
    hindrances: tuple[Hindrance, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a back end is observed, in seconds between two observations."""

    busy_s: float = 1.0  # while there are jobs
    idle_s: float = 1.0  # at most, while there are none
    least_s: float = 0.0  # when something is asked; 0: at every step, because it costs nothing


class Backend(Protocol):
    """What runs jobs."""

    name: str
    pace: Pace

    def cluster(self) -> Cluster:
        """What there is, as far as the back end can tell."""

    def observe(self) -> Observation:
        """What is there now; complete, or BackendError."""

    def apply(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Asks for changes; returns the orders that were certainly done. The others may have been or not."""

    def devices_of(self, token: str) -> Mapping[str, Sequence[int]] | None:
        """Return the devices that an attempt was launched on, by machine; None if that is not known.

        A machine with an empty sequence is known to be in use, but not which of its devices.
        """

    def close(self) -> None:
        """Lets go of the engine; what runs goes on running."""
