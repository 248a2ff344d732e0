"""A job and its attempts, as the controller's state has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from berth.live.lifecycle import WAITS, AttemptState, JobState, StopReason
from berth.live.profiles import Numbers
from berth.live.spec import JobSpec, spec_from_dict


@dataclass(frozen=True, slots=True)
class Seat:
    """Devices of one type in one machine, by their numbers there."""

    machine: int
    device_type: int
    devices: tuple[int, ...]
    part: int | None = None  # of the job's shape; None: the job has none

    def to_list(self) -> list[Any]:
        """Return it as the journal has it."""
        plain = [self.machine, self.device_type, list(self.devices)]
        return plain if self.part is None else [*plain, self.part]


def seat_from_list(plain: list[Any]) -> Seat:
    """Return the seat that `to_list` describes."""
    part = int(plain[3]) if len(plain) > 3 else None
    return Seat(int(plain[0]), int(plain[1]), tuple(int(number) for number in plain[2]), part)


@dataclass(slots=True)
class Attempt:
    """One attempt to run a job. Its token is never used again."""

    token: str
    job: str
    number: int
    seats: tuple[Seat, ...]
    tier: int
    since: float  # when it was decided
    state: AttemptState = WAITS
    why: StopReason | None = None  # why it stops
    began: float | None = None  # when it was seen running
    shape: str | None = None  # the alternative that it runs, by name

    @property
    def machines(self) -> tuple[int, ...]:
        """The machines that it has devices on."""
        return tuple(dict.fromkeys(seat.machine for seat in self.seats))

    def to_dict(self) -> dict[str, Any]:
        """Return it as a snapshot has it."""
        facts = {name: getattr(self, name) for name in self.__slots__}
        return facts | {"seats": [seat.to_list() for seat in self.seats]}


def attempt_from_dict(plain: dict[str, Any]) -> Attempt:
    """Return the attempt that `to_dict` describes."""
    return Attempt(**plain | {"seats": tuple(seat_from_list(seat) for seat in plain["seats"])})


@dataclass(slots=True)
class Job:
    """A job that has not ended."""

    id: str
    spec: JobSpec
    profile: Numbers  # of its model, as of its submission
    user: str
    submitted: float
    row: int = -1  # in the world
    state: JobState = "queued"
    token: str | None = None  # of the attempt that holds its devices
    attempts: int = 0
    alive: list[str] = field(default_factory=list)  # tokens of attempts that have not ended
    failures: int = 0
    evictions: int = 0
    ends_as: JobState | None = None  # what it becomes once its attempts have ended
    code: int | None = None  # exit code
    cause: str | None = None  # of the end of its last attempt; journals of older versions have none
    detail: str = ""  # from the back end
    ran_s: float = 0.0  # while its processes ran, in all attempts
    since: float = 0.0  # when it last began to wait
    first_start: float | None = None
    not_before: float = 0.0  # while delayed
    ended: float | None = None
    shape: str | None = None  # of its last attempt, by name; None: a gang

    def to_dict(self) -> dict[str, Any]:
        """Return it as a snapshot and the table of ended jobs have it."""
        return {name: getattr(self, name) for name in self.__slots__} | {"spec": self.spec.to_dict()}


def job_from_dict(plain: dict[str, Any]) -> Job:
    """Return the job that `to_dict` describes."""
    return Job(**plain | {"spec": spec_from_dict(plain["spec"])})
