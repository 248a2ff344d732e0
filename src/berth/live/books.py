"""The fold: a state that is what the journal's records make of it, and nothing else.

There is no clock and no I/O here. The controller, the recovery after a crash, a replay and a forecast all fold records
into books; only where the records come from differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from berth.live import _kernels
from berth.live.devices import Devices
from berth.live.job import (
    CANCELLED,
    DELAYED,
    FAILED,
    FINISHED,
    LAUNCHING,
    PLACED,
    QUEUED,
    RUNNING,
    STOPPING,
    WAITS,
    Attempt,
    Job,
    Seat,
    Why,
)
from berth.live.records import LOST, Record
from berth.live.rows import FIRST, with_demand, with_room
from berth.live.sensitivity import Sensitivities, learned_slowdowns
from berth.live.setup import DEFAULT_DURATION_S, Setup
from berth.live.spec import spec_of
from berth.live.wants import kinds_of, reach_of, sensitivity_key
from berth.native.kernels import specialize
from berth.native.structs import to_native
from berth.schedule import reasons
from berth.schedule.decide import phases_for
from berth.schedule.hooks import hooks
from berth.schedule.records import World
from berth.schedule.world import new_jobs, new_world

_LONGEST_DELAY_S = 300.0


class Books:
    """All that a controller knows."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.cluster = setup.cluster
        self.policy = policy = setup.load_policy()
        self.timers = np.array(policy.timers(setup.tiers), float)
        self.world = new_world(
            setup.cluster,
            policy,
            new_jobs(FIRST),
            eviction_s=setup.eviction_s,
            eviction_large_s=setup.eviction_large_s,
        )
        self.hooks = to_native(hooks(policy))
        self.steps = to_native(phases_for(policy.rules(), self.scene, self.hooks))
        self.run_pass = specialize(_kernels.run_pass, self.scene, self.hooks, self.steps, 0.0)
        self.join = specialize(_kernels.join, self.scene, self.hooks, 0, 0.0)
        self.jobs: dict[str, Job] = {}  # those that are not over
        self.delayed: set[str] = set()
        self.rows: list[Job | None] = []
        self.attempts: dict[str, Attempt] = {}  # those that have not ended
        self.devices = Devices(setup.cluster)
        self.shut: list[list[str]] = [
            [] for _ in setup.cluster.machines
        ]  # why each takes no jobs; empty: it does
        self.foreign: list[int] = [0] * len(
            setup.cluster.machines
        )  # devices that others hold, as far as booked
        self.users: dict[str, int] = {}
        self.step_s: dict[str, dict[int, float]] = {}  # measured, by kind of job and tier
        self.durations: dict[str, float] = {}  # by name: how long such jobs ran
        self.submitted = 0
        self.epoch = ""  # of the controller that decides: part of its tokens
        self.now = 0.0
        self.wake = math.inf
        self.over: list[Job] = []  # jobs that ended since somebody last looked
        self._sensitivities = Sensitivities(setup.cluster)
        self._fold: dict[str, Callable[[Record], None]] = {
            "opened": self._opened,
            "submitted": self._submitted,
            "cancelled": self._cancelled,
            "prioritised": self._prioritised,
            "machine": self._machine,
            "foreign": self._foreign,
            "launch": self._launch,
            "started": self._started,
            "exited": self._exited,
            "ready": self._ready,
            "learned": self._learned,
        }

    @property
    def world(self) -> World:
        """The scheduler's arrays; `scene` is the same world, for compiled code."""
        return self._world

    @world.setter
    def world(self, world: World) -> None:
        if world is not getattr(self, "_world", None):
            self._world, self.scene = world, to_native(world)

    def fold(self, record: Record) -> None:
        """Takes in one record of something that happened."""
        self.now = max(self.now, record.time)
        self._fold[record.kind](record)

    def next_ready(self) -> tuple[float, str] | None:
        """When the first delayed job may be tried again."""
        return min(((self.jobs[name].not_before, name) for name in self.delayed), default=None)

    # -- jobs come and go

    def _opened(self, record: Record) -> None:
        """A controller began; the setup was taken from this record already."""
        self.epoch = record.body.get("epoch", "")  # older berths have none

    def _submitted(self, record: Record) -> None:
        assert record.job is not None
        assert record.job not in self.jobs, f"{record.job} is submitted twice"
        spec, profile = spec_of(record.body["spec"]), record.body["profile"]
        job = Job(record.job, spec, profile, record.body["user"], record.time, since=record.time)
        self.submitted += 1
        self.jobs[job.id] = job
        self.make_room()
        self.world = with_demand(self.world, spec.gpus, self.timers)
        job.row = len(self.rows)
        self.rows.append(job)
        self.write(job)
        self.join(self.scene, self.hooks, job.row, self.now)

    def make_room(self) -> None:
        """One more row can be written."""
        if len(self.rows) < len(self.world.jobs):
            return
        kept = [row for row, job in enumerate(self.rows) if job is not None]
        self.world = with_room(self.world, np.array(kept, np.int64))
        self.rows = [job for job in self.rows if job is not None]
        for row, job in enumerate(self.rows):
            assert job is not None
            job.row = row

    def write(self, job: Job) -> None:
        """The scheduler's record of a job that has just come."""
        spec, record = job.spec, self.world.jobs[job.row]
        record["arrival_s"], record["gpus"], record["priority"] = self.now, spec.gpus, spec.priority
        record["demand"] = np.searchsorted(self.world.demands["gpus"], spec.gpus)
        record["delay_timer_s"][: len(self.timers)] = self.timers
        record["user"] = self.users.setdefault(job.user, len(self.users))
        kinds = kinds_of(self.setup, spec)
        record["device_type"] = kinds[0] if len(kinds) == 1 else -1
        record["device_type_mask"] = (
            sum(1 << kind for kind in kinds) if len(kinds) < len(self.setup.kinds) else -1
        )
        expected_s = spec.duration or self.durations.get(spec.name) or DEFAULT_DURATION_S
        for name in ("work_s", "true_remaining_s", "estimated_remaining_s", "checkpointed_remaining_s"):
            record[name] = expected_s
        record["nearest_tier"], record["widest_tier"] = reach_of(self.setup, spec)
        self._sensitivities.write(record, job.profile, spec.gpus)
        self._apply_steps(job)

    def _cancelled(self, record: Record) -> None:
        job = self._job(record)
        job.ends_as = CANCELLED
        self.delayed.discard(job.id)
        if job.state == QUEUED:
            _kernels.withdraw(self.scene, job.row)
        elif job.state == PLACED:
            _kernels.finish(self.scene, job.row, self.now)
            self.vacate(job, "cancelled")
        self._settle(job)

    def _prioritised(self, record: Record) -> None:
        job = self._job(record)
        job.spec = job.spec.model_copy(update={"priority": int(record.body["priority"])})
        self.world.jobs[job.row]["priority"] = job.spec.priority
        self.world.bound[0]["valid"] = 0
        if job.state == QUEUED and job.ends_as is None:
            _kernels.reorder(self.scene, self.hooks, job.row, self.now)

    # -- machines

    def _machine(self, record: Record) -> None:
        machine, why = int(record.body["machine"]), record.body["why"]
        shut = self.shut[machine]
        if record.body["is"]:
            shut.append(why)
            if len(shut) == 1:
                _kernels.take_down(self.scene, machine)
            if why == LOST:
                self._lose(machine)
            return
        shut.remove(why)
        if not shut:
            self.foreign[machine] = _kernels.bring_up(self.scene, machine, self.foreign[machine])

    def _lose(self, machine: int) -> None:
        """Everything on a machine is gone; gangs that had a part there wait again."""
        for token in [token for token, attempt in self.attempts.items() if machine in attempt.machines]:
            attempt = self.attempts[token]
            job = self.jobs[attempt.job]
            if job.token == token:
                _kernels.give_back(self.scene, self.hooks, job.row, self.now, reasons.HOST_LOST)
                self.wait_again(job, "lost")

    def free_on(self, machine: int) -> int:
        """Devices of a machine that nobody is given."""
        return int(self.world.groups["free"][0, machine].sum())

    def _foreign(self, record: Record) -> None:
        machine, devices = int(record.body["machine"]), int(record.body["devices"])
        self.devices.block(machine, record.body.get("numbers", ()))
        if not self.shut[machine]:
            self.foreign[machine] += _kernels.lend(self.scene, machine, devices - self.foreign[machine])
        else:
            self.foreign[machine] = devices

    # -- attempts

    def place(self, job: Job, seats: tuple[Seat, ...], tier: int) -> Attempt:
        """A new attempt of a job on these devices."""
        job.attempts += 1
        epoch = f".{self.epoch}" if self.epoch else ""
        token = f"{self.setup.store}-{job.id}.{job.attempts}{epoch}"
        attempt = Attempt(token, job.id, job.attempts, seats, tier, self.now)
        self.devices.give(token, seats)
        self.attempts[token] = attempt
        job.token, job.state = token, PLACED
        job.alive.append(token)
        if job.first_start is None:
            job.first_start = self.now
        return attempt

    def vacate(self, job: Job, why: Why) -> None:
        """The attempt that holds a job's place gives it up; it ends at once if it was never launched."""
        assert job.token is not None
        attempt = self.attempts[job.token]
        job.token = None
        self.devices.take_back(attempt.token, attempt.seats)
        attempt.why = why
        if attempt.state == WAITS:
            self._ended(attempt)
        else:
            attempt.state = STOPPING

    def wait_again(self, job: Job, why: Why) -> None:
        """A job whose place is gone from the world already waits again."""
        self.vacate(job, why)
        job.state, job.since = QUEUED, self.now
        job.evictions += 1

    def may_launch(self, attempt: Attempt) -> bool:
        """Whether all earlier attempts on its devices, and of its job, have ended."""
        return self.jobs[attempt.job].alive[0] == attempt.token and not self.ahead_of(attempt)

    def ahead_of(self, attempt: Attempt) -> list[str]:
        """Attempts on its devices that have not left yet."""
        return self.devices.ahead(attempt.token, attempt.seats)

    def _launch(self, record: Record) -> None:
        self.attempts[record.body["token"]].state = LAUNCHING

    def _started(self, record: Record) -> None:
        attempt = self.attempts[record.body["token"]]
        attempt.began = self.now
        if attempt.state == LAUNCHING:
            attempt.state = RUNNING
        job = self.jobs[attempt.job]
        if job.token == attempt.token:
            record_ = self.world.jobs[job.row]
            record_["restored_at_s"] = max(float(record_["restored_at_s"]), self.now)

    def _exited(self, record: Record) -> None:
        """An attempt has ended, as the back end saw it.

        `codes` of its processes; none: nobody knows. `stopped`: they were told to. `done`: the job said that it has
        finished, whatever else happened. `lost`: the job is not to blame.
        """
        attempt = self.attempts[record.body["token"]]
        job = self.jobs[attempt.job]
        codes = record.body.get("codes") or []
        fine = bool(record.body.get("done")) or (
            bool(codes) and not any(codes) and not record.body.get("stopped", False)
        )
        holds_place = job.token == attempt.token
        job.code = record.body.get("code")
        if job.code is None and codes:
            job.code = next((code for code in codes if code), 0)
        job.cause, job.detail = record.body.get("cause"), record.body.get("detail", "")
        if attempt.began is not None or codes:
            job.ran_s += self.now - (attempt.since if attempt.began is None else attempt.began)
        self._ended(attempt)
        if job.ends_as is not None:
            if holds_place:
                _kernels.finish(self.scene, job.row, self.now)
                self._drop_place(job)
        elif fine:
            self._finished(job)
        elif holds_place:
            self._failed(job, counts=not record.body.get("lost", False))
        self._settle(job)

    def _ended(self, attempt: Attempt) -> None:
        del self.attempts[attempt.token]
        self.jobs[attempt.job].alive.remove(attempt.token)
        self.devices.take_back(attempt.token, attempt.seats)
        self.devices.left(attempt.token, attempt.seats)

    def _drop_place(self, job: Job) -> None:
        """Forgets the attempt that holds a job's place: it has ended, or was never launched."""
        if job.token in self.attempts:
            self.vacate(job, "finished")
        job.token = None

    def _finished(self, job: Job) -> None:
        if job.state == PLACED:
            _kernels.finish(self.scene, job.row, self.now)
            self._drop_place(job)
        elif job.state == QUEUED:
            _kernels.withdraw(self.scene, job.row)
        job.ends_as = FINISHED
        ran_s = self.now - (job.first_start if job.first_start is not None else self.now)
        self.durations[job.spec.name] = max(1.0, float(self.world.jobs[job.row]["ran_s"]) or ran_s)

    def _failed(self, job: Job, *, counts: bool) -> None:
        """The attempt that held the job's place failed: the job waits a while, and is tried again, or not."""
        job.token = None
        job.failures += counts
        if job.failures > job.spec.restarts:
            _kernels.finish(self.scene, job.row, self.now)
            job.ends_as = FAILED
            return
        _kernels.put_off(self.scene, job.row, self.now)
        job.state = DELAYED
        self.delayed.add(job.id)
        job.not_before = self.now + min(_LONGEST_DELAY_S, 2.0 ** min(job.failures, 20))

    def _ready(self, record: Record) -> None:
        job = self._job(record)
        self.delayed.remove(job.id)
        job.state, job.since = QUEUED, self.now
        self.join(self.scene, self.hooks, job.row, self.now)

    def _settle(self, job: Job) -> None:
        """A job that will not run again is over once the last of its attempts has ended."""
        if job.ends_as is None or job.alive:
            return
        job.state, job.ended = job.ends_as, self.now
        self.rows[job.row] = None
        del self.jobs[job.id]
        self.over.append(job)

    # -- what was learned

    def _learned(self, record: Record) -> None:
        key, tier = record.body["key"], int(record.body["tier"])
        self.step_s.setdefault(key, {})[tier] = float(record.body["step_s"])
        for job in self.jobs.values():
            if sensitivity_key(self.setup, job.spec) == key:
                self._apply_steps(job)

    def _apply_steps(self, job: Job) -> None:
        known = self.step_s.get(sensitivity_key(self.setup, job.spec))
        if not known:
            return
        record = self.world.jobs[job.row]
        self._sensitivities.write(record, job.profile, job.spec.gpus)
        record["slowdown"] = learned_slowdowns(record["slowdown"].copy(), known, int(record["nearest_tier"]))
        if job.token is not None:
            _kernels.run_at_speed(self.scene, job.row, self.now)

    def _job(self, record: Record) -> Job:
        assert record.job is not None
        return self.jobs[record.job]
