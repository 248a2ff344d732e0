"""A back end in memory and in virtual time, with the faults that can occur between a controller and an engine.

It guarantees what `live/backend.py` does and no more: orders may be lost, late, doubled or unanswered; observations may
fail; machines may be lost. It asserts that no device has two processes, no job two live attempts, and no gang a part
missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from berth.clock import Clock
from berth.cluster.model import Cluster
from berth.live.backend import (
    AttemptStatus,
    BackendError,
    Forget,
    Launch,
    MachineStatus,
    Observation,
    Order,
    Pace,
    Stop,
)
from berth.live.lifecycle import Cause

SECONDS = "SECONDS"  # in the environment of a job: its run time
FAILS = "FAILS"  # how often it fails before it succeeds


@dataclass(frozen=True, slots=True)
class Faults:
    """The probability of each fault, in percent of the calls."""

    lost_order: int = 0
    lost_answer: int = 0
    late_order: int = 0
    doubled_order: int = 0
    blind: int = 0  # an observation fails


@dataclass(slots=True)
class _Life:
    """An attempt in the engine."""

    launch: Launch
    begins: float
    ends: float  # by itself
    fails: bool
    kill_at: float | None = None  # when it was stopped; it ends then at the latest
    seen: AttemptStatus | None = None  # its end


@dataclass(slots=True)
class Work:
    """The work of one job: what is left of it, and how often it finished."""

    left_s: float
    fails: int
    finished: int = 0
    attempts: list[str] = field(default_factory=list)


class MemoryBackend:
    """An engine in this process; its jobs outlive the controller."""

    name = "memory"
    pace = Pace()

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        startup_s: float = 0.5,
    ) -> None:
        self._cluster, self._clock, self._startup_s = cluster, clock, startup_s
        self._random, self.faults = Random(seed), faults or Faults()
        self._lives: dict[str, _Life] = {}
        self._stopped: set[str] = set()  # tokens that never start again
        self._forgotten: dict[str, _Life] = {}
        self._on: dict[tuple[str, int], str] = {}  # by device
        self._of_job: dict[str, str] = {}
        self._late: list[tuple[float, Order]] = []
        self.machines: dict[str, MachineStatus] = {m.name: MachineStatus() for m in cluster.machines}
        self.work: dict[str, Work] = {}

    def cluster(self) -> Cluster:
        """Return the cluster."""
        return self._cluster

    def devices_of(self, token: str) -> Mapping[str, Sequence[int]] | None:
        """Return the devices that an attempt holds, by machine."""
        found: dict[str, list[int]] = {}
        for (machine, device), holder in self._on.items():
            if holder == token:
                found.setdefault(machine, []).append(device)
        return found or None

    def close(self) -> None:
        """Release nothing."""

    def apply(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Carry out the orders, with faults."""
        self._live()
        done = [order for order in orders if self._heard(order)]
        if self._happens(self.faults.lost_answer):
            raise BackendError("no answer came")
        return done

    def _heard(self, order: Order) -> bool:
        if self._happens(self.faults.lost_order):
            return False
        if self._happens(self.faults.late_order):
            self._late.append((self._clock.monotonic() + self._random.uniform(0, 60), order))
            return False
        for _ in range(2 if self._happens(self.faults.doubled_order) else 1):
            self._do(order)
        return True

    def observe(self) -> Observation:
        """Return all attempts and machines, or raise with faults."""
        if self._happens(self.faults.blind):
            raise BackendError("the engine does not answer")
        self._live()
        return Observation(
            {token: self._shown(life) for token, life in self._lives.items()}, dict(self.machines)
        )

    def _shown(self, life: _Life) -> AttemptStatus:
        if life.seen is not None:
            return life.seen
        now = self._clock.monotonic()
        if now < life.begins:
            return AttemptStatus("starting")
        return AttemptStatus("running", began=self._wall(life.begins))

    def _wall(self, at: float) -> float:
        """Return the wall-clock time of a moment that has passed."""
        return self._clock.wall() - (self._clock.monotonic() - at)

    def lose(self, machine: str) -> None:
        """Lose a machine, and every gang with a part on it."""
        self._live()
        self.machines[machine] = MachineStatus(up=False)
        for life in self._lives.values():
            if life.seen is None and any(member.machine == machine for member in life.launch.members):
                lost = AttemptStatus("ended", lost=True, cause=Cause.NODE_LOST, detail=machine)
                self._end(life, lost, self._clock.monotonic())

    def repair(self, machine: str) -> None:
        """Bring a machine back, empty."""
        self.machines[machine] = MachineStatus()

    def alive(self) -> Mapping[str, Launch]:
        """Return the launches of attempts that have not ended."""
        self._live()
        return {token: life.launch for token, life in self._lives.items() if life.seen is None}

    def _happens(self, percent: int) -> bool:
        return percent > 0 and self._random.randrange(100) < percent

    def _live(self) -> None:
        """Process all events until now."""
        now = self._clock.monotonic()
        for due, order in sorted((one for one in self._late if one[0] <= now), key=lambda one: one[0]):
            self._late.remove((due, order))
            self._do(order)
        for life in self._lives.values():
            if life.seen is None:
                self._age(life, now)

    def _age(self, life: _Life, now: float) -> None:
        stops = life.kill_at if life.kill_at is not None else float("inf")
        if life.ends <= now and life.ends <= stops:
            self._end(
                life,
                AttemptStatus(
                    "ended",
                    codes=(1 if life.fails else 0,),
                    stopped=life.kill_at is not None,
                    done=not life.fails,
                    cause=Cause.EXIT if life.fails else None,
                ),
                life.ends,
            )
        elif stops <= now:
            self._end(life, AttemptStatus("ended", codes=(143,), stopped=True, cause=Cause.STOPPED), stops)

    def _end(self, life: _Life, seen: AttemptStatus, at: float) -> None:
        work = self.work[life.launch.job]
        work.left_s = max(0.0, work.left_s - max(0.0, at - life.begins))
        if seen.done:
            work.finished += 1
        elif seen.codes and life.fails and not seen.stopped:
            work.fails -= 1
        began = self._wall(life.begins) if life.begins <= at else None
        life.seen = replace(seen, began=began, ended=self._wall(at))
        del self._of_job[life.launch.job]
        for member in life.launch.members:
            for device in member.devices:
                del self._on[member.machine, device]

    def _do(self, order: Order) -> None:
        now = self._clock.monotonic()
        if not isinstance(order, Forget) and order.token in self._forgotten:
            self._lives[order.token] = self._forgotten.pop(order.token)  # its end is shown again
        if isinstance(order, Launch):
            if order.token in self._stopped:
                never = AttemptStatus("ended", stopped=True, lost=True, cause=Cause.STOPPED)
                self._lives.setdefault(order.token, _Life(order, now, now, fails=False, seen=never))
            elif order.token not in self._lives:
                self._start(order, now)
        elif isinstance(order, Stop):
            self._stopped.add(order.token)
            life = self._lives.get(order.token)
            if life is not None and life.seen is None and life.kill_at is None:
                life.kill_at = now + self._random.uniform(0, order.grace_s)
        elif isinstance(order, Forget) and (life := self._lives.get(order.token)) and life.seen is not None:
            self._forgotten[order.token] = self._lives.pop(order.token)

    def _start(self, order: Launch, now: float) -> None:
        if any(not self.machines[member.machine].up for member in order.members):
            return  # the machine is lost, as the next observation shows
        self._check(order)
        work = self.work.setdefault(
            order.job, Work(float(order.env.get(SECONDS, "10")), int(order.env.get(FAILS, "0")))
        )
        work.attempts.append(order.token)
        begins = now + self._startup_s
        fails = work.fails > 0
        length = work.left_s * (self._random.random() if fails else 1.0)
        self._lives[order.token] = _Life(order, begins, begins + length, fails)

    def _check(self, order: Launch) -> None:
        """Assert that an order is valid for an engine."""
        mine = {(member.machine, device) for member in order.members for device in member.devices}
        assert len(mine) == sum(len(member.devices) for member in order.members), "a device twice in one gang"
        assert [member.rank for member in order.members] == list(range(len(order.members)))
        others = {self._on[device] for device in mine if device in self._on}
        assert not others, f"{order.token} is launched on devices of {others}"
        assert order.job not in self._of_job, f"{order.token} is launched beside {self._of_job[order.job]}"
        self._on |= dict.fromkeys(mine, order.token)
        self._of_job[order.job] = order.token
