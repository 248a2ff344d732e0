"""The controller's state: the result of applying the records of the journal, without a clock and without I/O.

The controller, recovery, replays and forecasts all apply records to a `ControllerState`; only their source differs.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from berth.live import _kernels
from berth.live.demand import sensitivity_key
from berth.live.devices import Devices
from berth.live.job import Attempt, Job, Seat
from berth.live.lifecycle import (
    CANCELLED,
    FAILED,
    FINISHED,
    LAUNCHING,
    PLACED,
    QUEUED,
    RUNNING,
    STOPPING,
    WAITS,
    Cause,
    StopReason,
    transition,
)
from berth.live.records import LOST, Record
from berth.live.scheduled_jobs import ScheduledJobs
from berth.live.setup import Setup
from berth.live.spec import spec_from_dict
from berth.schedule.reasons import ReasonCode

_LONGEST_DELAY_S = 300.0


class ControllerState(ScheduledJobs):
    """Jobs, attempts and machines, and the scheduler's arrays."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.delayed: set[str] = set()
        self.attempts: dict[str, Attempt] = {}  # those that have not ended
        self.devices = Devices(setup.cluster)
        # by machine: the reasons why it takes no jobs, and how many of its devices are used outside berth
        self.unavailable: list[list[str]] = [[] for _ in setup.cluster.machines]
        self.external: list[int] = [0] * len(setup.cluster.machines)
        self.submitted = 0
        self.epoch = ""  # of the running controller: part of its tokens
        self.wake = math.inf
        self.ended: list[Job] = []  # jobs that ended since the last commit

    def apply(self, record: Record) -> None:
        """Apply one record by the method of its kind; passes are applied by `decisions`."""
        self.now = max(self.now, record.time)
        getattr(self, f"_on_{record.kind}")(record)

    def next_ready(self) -> tuple[float, str] | None:
        """Return the time and id of the delayed job that is retried first."""
        return min(((self.jobs[name].not_before, name) for name in self.delayed), default=None)

    # -- jobs

    def _on_opened(self, record: Record) -> None:
        """A controller has started; the setup of this record is in use already."""
        self.epoch = record.body.get("epoch", "")  # older versions have none

    def _on_submitted(self, record: Record) -> None:
        assert record.job is not None
        assert record.job not in self.jobs, f"{record.job} is submitted twice"
        spec, profile = spec_from_dict(record.body["spec"]), record.body["profile"]
        job = Job(record.job, spec, profile, record.body["user"], record.time, since=record.time)
        self.submitted += 1
        self.add(job)
        self.join(self.native_world, self.hooks, job.row, self.now)

    def _on_cancelled(self, record: Record) -> None:
        job = self._job(record)
        job.ends_as = CANCELLED
        if job.state == QUEUED:
            _kernels.withdraw(self.native_world, job.row)
        elif job.state == PLACED:
            _kernels.finish(self.native_world, job.row, self.now)
            self.vacate(job, "cancelled")
        self._settle(job)

    def _on_prioritised(self, record: Record) -> None:
        job = self._job(record)
        job.spec = job.spec.model_copy(update={"priority": int(record.body["priority"])})
        self.world.jobs[job.row]["priority"] = job.spec.priority
        self.world.bound[0]["valid"] = 0
        if job.state == QUEUED and job.ends_as is None:
            _kernels.reorder(self.native_world, self.hooks, job.row, self.now)

    def _on_paused(self, record: Record) -> None:
        """The policy has failed; the setup of this state says so already."""

    def _on_resumed(self, record: Record) -> None:
        """The policy works again; it is in use already."""

    # -- machines

    def _on_machine(self, record: Record) -> None:
        machine, why = int(record.body["machine"]), record.body["why"]
        shut = self.unavailable[machine]
        if record.body["is"]:
            shut.append(why)
            if len(shut) == 1:
                _kernels.take_down(self.native_world, machine)
            if why == LOST:
                self._lose(machine)
            return
        shut.remove(why)
        if not shut:
            _kernels.bring_up(self.native_world, machine)
            self._set_external(machine, self.external[machine])

    def _lose(self, machine: int) -> None:
        """Requeue the gangs with a part on a lost machine."""
        for token in [token for token, attempt in self.attempts.items() if machine in attempt.machines]:
            attempt = self.attempts[token]
            job = self.jobs[attempt.job]
            if job.token == token:
                _kernels.give_back(
                    self.native_world, self.hooks, job.row, self.now, int(ReasonCode.HOST_LOST)
                )
                self.requeue(job, "lost")

    def free_on(self, machine: int) -> int:
        """Return the free devices of a machine."""
        return int(self.world.groups["free"][0, machine].sum())

    def _on_external(self, record: Record) -> None:
        machine, devices = int(record.body["machine"]), int(record.body["devices"])
        self.devices.block(machine, record.body.get("numbers", ()))
        if not self.unavailable[machine]:
            self._set_external(machine, devices)
        else:
            self.external[machine] = devices

    def _set_external(self, machine: int, devices: int) -> None:
        """Take devices of an available machine for external use, blocked ones by their type."""
        kinds = range(len(self.setup.cluster.device_types))
        blocked = np.array([self.devices.count_blocked(machine, kind) for kind in kinds], np.int64)
        self.external[machine] = _kernels.set_external(self.native_world, machine, devices, blocked)

    # -- attempts

    def place(self, job: Job, seats: tuple[Seat, ...], tier: int) -> Attempt:
        """Create an attempt of a job on these devices, in the shape that its record describes."""
        job.attempts += 1
        epoch = f".{self.epoch}" if self.epoch else ""
        token = f"{self.setup.store}-{job.id}.{job.attempts}{epoch}"
        shape = self.shape_at(job)
        name = None if shape is None else shape.shape.name
        attempt = Attempt(token, job.id, job.attempts, seats, tier, self.now, shape=name)
        job.shape = name
        self.devices.give(token, seats)
        self.attempts[token] = attempt
        transition(job, "start" if job.state == QUEUED else "move")
        job.token = token
        job.alive.append(token)
        if job.first_start is None:
            job.first_start = self.now
        return attempt

    def vacate(self, job: Job, why: StopReason) -> None:
        """Release the devices of a job's attempt; it ends at once if it was never launched."""
        assert job.token is not None
        attempt = self.attempts[job.token]
        job.token = None
        self.devices.take_back(attempt.token, attempt.seats)
        attempt.why = why
        if attempt.state == WAITS:
            self._ended(attempt)
        else:
            attempt.state = STOPPING

    def requeue(self, job: Job, event: Literal["evict", "lost"]) -> None:
        """Let a job wait again that has left its place in the scheduler's arrays."""
        self.vacate(job, "evicted" if event == "evict" else "lost")
        transition(job, event, since=self.now)
        job.evictions += 1

    def may_launch(self, attempt: Attempt) -> bool:
        """Return whether all earlier attempts on its devices and of its job have ended."""
        return self.jobs[attempt.job].alive[0] == attempt.token and not self.ahead_of(attempt)

    def ahead_of(self, attempt: Attempt) -> list[str]:
        """Return earlier attempts that still hold its devices."""
        return self.devices.ahead(attempt.token, attempt.seats)

    def _on_launch(self, record: Record) -> None:
        self.attempts[record.body["token"]].state = LAUNCHING

    def _on_started(self, record: Record) -> None:
        """Let an attempt run; `began`: since when, if that is long before this record."""
        attempt = self.attempts[record.body["token"]]
        attempt.began = float(record.body.get("began", self.now))
        if attempt.state == LAUNCHING:
            attempt.state = RUNNING
        job = self.jobs[attempt.job]
        if job.token == attempt.token:
            record_ = self.world.jobs[job.row]
            record_["restored_at_s"] = max(float(record_["restored_at_s"]), attempt.began)

    def _on_exited(self, record: Record) -> None:
        """End an attempt.

        `codes` of its processes; none: unknown. `stopped`: berth stopped them. `done`: the job reported that it has
        finished, whatever else happened. `lost`: not the fault of the job. `began` and `ended`: when they did, which
        may be long before this record.
        """
        attempt = self.attempts[record.body["token"]]
        job = self.jobs[attempt.job]
        codes = record.body.get("codes") or []
        fine = bool(record.body.get("done")) or (
            bool(codes) and not any(codes) and not record.body.get("stopped", False)
        )
        holds_place, ended = job.token == attempt.token, float(record.body.get("ended", self.now))
        job.code = record.body.get("code")
        if job.code is None and codes:
            job.code = next((code for code in codes if code), 0)
        job.cause, job.detail = record.body.get("cause"), record.body.get("detail", "")
        attempt.began = record.body.get("began", attempt.began)
        if attempt.began is not None or codes:
            job.ran_s += ended - (attempt.since if attempt.began is None else attempt.began)
        self._ended(attempt)
        if job.ends_as is not None:
            if holds_place:
                _kernels.finish(self.native_world, job.row, self.now)
                self._drop_place(job)
        elif fine:
            self._finished(job, ended)
        elif holds_place:
            self._failed(job, counts=not record.body.get("lost", False))
        self._settle(job, ended)

    def _ended(self, attempt: Attempt) -> None:
        del self.attempts[attempt.token]
        self.jobs[attempt.job].alive.remove(attempt.token)
        self.devices.take_back(attempt.token, attempt.seats)
        self.devices.left(attempt.token, attempt.seats)

    def _drop_place(self, job: Job) -> None:
        """Drop the attempt that holds a job's devices: it has ended, or was never launched."""
        if job.token in self.attempts:
            self.vacate(job, "finished")
        job.token = None

    def _finished(self, job: Job, ended: float) -> None:
        if job.state == PLACED:
            _kernels.finish(self.native_world, job.row, self.now)
            self._drop_place(job)
        elif job.state == QUEUED:
            _kernels.withdraw(self.native_world, job.row)
        job.ends_as = FINISHED
        ran_s = self.now - (job.first_start if job.first_start is not None else self.now)
        held_s = float(self.world.jobs[job.row]["ran_s"]) or ran_s
        self.durations[job.spec.name] = max(1.0, held_s - (self.now - ended))

    def _failed(self, job: Job, *, counts: bool) -> None:
        """Delay a job whose attempt failed, or end it if it has no restarts left."""
        job.token = None
        job.failures += counts
        # a command that can't be started may be the fault of one machine; twice, it is the command's
        lasting = job.cause == Cause.COMMAND and job.failures > 1
        if job.failures > job.spec.restarts or lasting:
            _kernels.finish(self.native_world, job.row, self.now)
            job.ends_as = FAILED
            return
        _kernels.put_off(self.native_world, job.row, self.now)
        transition(job, "attempt-failed")
        self.delayed.add(job.id)
        job.not_before = self.now + min(_LONGEST_DELAY_S, 2.0 ** min(job.failures, 20))

    def _on_ready(self, record: Record) -> None:
        job = self._job(record)
        self.delayed.remove(job.id)
        transition(job, "ready", since=self.now)
        self.join(self.native_world, self.hooks, job.row, self.now)

    def _settle(self, job: Job, ended: float | None = None) -> None:
        """End a job that will not run again, once its last attempt has ended; `ended`: when it has, if not now."""
        if job.ends_as is None:
            return
        self.delayed.discard(job.id)
        if job.alive:
            return
        job.state, job.ended = job.ends_as, self.now if ended is None else ended
        self.rows[job.row] = None
        self.forget_shapes(job)
        del self.jobs[job.id]
        self.ended.append(job)

    # -- measured step times

    def _on_learned(self, record: Record) -> None:
        key, tier = record.body["key"], int(record.body["tier"])
        self.step_s.setdefault(key, {})[tier] = float(record.body["step_s"])
        for job in self.jobs.values():
            if sensitivity_key(self.setup, job.spec) == key:
                self.apply_steps(job)

    def _job(self, record: Record) -> Job:
        assert record.job is not None
        return self.jobs[record.job]
