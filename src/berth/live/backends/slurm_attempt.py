"""The state of an attempt, from the files in its folder and from Slurm's jobs, and the actions that follow from it.

The files take precedence: a part writes how it ended. Slurm is asked where a file is missing. A job that ended without
one was killed with all its processes. On a lost node processes may survive; they read the same folder, find that they
are fenced, and exit. They get some time for that.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from berth.live.backend import AttemptStatus
from berth.live.backends.slurm_json import SlurmJob
from berth.live.folder import Folder, gang_end
from berth.live.lifecycle import Cause

SUBMITTED = "slurm.json"  # part -> job id; written when all are submitted, before any is released
REFUSED = "refused"  # Slurm refused the job; has its message
TIMED_OUT = 124  # exit code at the time limit, as of timeout(1)
_BY_SIGNAL = {Cause.TIME_LIMIT, Cause.PREEMPTED, Cause.CANCELLED}  # a process may catch it and exit with 0
_CLOSED_PARTITION = {"PartitionDown", "PartitionInactive"}
_CAUSES = {
    "NODE_FAIL": Cause.NODE_LOST,
    "BOOT_FAIL": Cause.NODE_LOST,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "OUT_OF_MEMORY": Cause.MEMORY,
    "PREEMPTED": Cause.PREEMPTED,
    "CANCELLED": Cause.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds."""

    margin_s: float = 10.0  # for a process to exit, after the grace or behind a fence
    start_s: float = 60.0  # for all jobs of a gang to start after their release
    settle_s: float = 2.0  # for a file written on another machine to be visible
    missing_s: float = 60.0  # for a job that Slurm does not list to be listed again


@dataclass(slots=True)
class FollowUps:
    """Actions that an observation requires; all are idempotent."""

    release: list[int] = field(default_factory=list)
    cancel: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a launched gang."""

    ranks: tuple[int, ...]  # first rank of each part
    grace_s: float


def parts_of(folder: Folder) -> Parts:
    """Read the parts of a launched gang from its folder."""
    launch = json.loads((folder.path / "launch.json").read_text())
    first: dict[str, int] = {}
    for member in launch["members"]:
        first.setdefault(member["machine"], int(member["rank"]))
    return Parts(tuple(first.values()), float(launch["grace_s"]))


class Attempt:
    """One observation of an attempt."""

    def __init__(
        self,
        folder: Folder,
        marks: frozenset[str],
        parts: Parts,
        jobs: Sequence[SlurmJob],
        now: float,
        timeouts: Timeouts,
        unsure: Set[int] = frozenset(),
        *,
        asked: float,
    ) -> None:
        self._folder, self._marks, self._parts = folder, marks, parts
        self._now, self._timeouts = now, timeouts
        self._asked = asked  # when Slurm was asked for its jobs
        self._unsure = unsure  # ids that Slurm does not list, which may be temporary
        self._alive = [job for job in jobs if not job.over]
        self._jobs = {job.id: job for job in jobs}
        self._stopped = "stop" in marks

    def observe(self, follow_ups: FollowUps) -> AttemptStatus | None:
        """Return the state; None if it is not completely submitted and may be launched again."""
        if SUBMITTED not in self._marks:
            return self._unsubmitted(follow_ups)
        ids = [number for _, number in sorted(submitted(self._folder).items())]
        follow_ups.cancel += [job.id for job in self._alive if job.id not in ids]  # submitted twice
        ends = [self._end(part) for part in range(len(ids))]
        if all(end is not None for end in ends):
            return self._ended([end for end in ends if end is not None])
        if any(ids[part] in self._unsure for part, end in enumerate(ends) if end is None):
            return AttemptStatus("running" if any("running" in mark for mark in self._marks) else "starting")
        open_ = {part: self._jobs.get(ids[part]) for part, end in enumerate(ends) if end is None}
        if self._failed_to_run(open_.values()):
            self._mark("failed")
        if self._stop_requested_at is not None:
            return self._ending(ends, open_, follow_ups)
        follow_ups.release += [job.id for job in open_.values() if job is not None and job.held]
        begun = all(end is not None or f"part-{part}.running" in self._marks for part, end in enumerate(ends))
        return AttemptStatus("running") if begun else self._starting(open_.values())

    def _starting(self, jobs: Iterable[SlurmJob | None]) -> AttemptStatus:
        """The state of a gang that does not run yet, with Slurm's reason."""
        for job in jobs:
            if job is not None and job.waits and job.reason in _CLOSED_PARTITION:
                return AttemptStatus(
                    "starting", cause=Cause.PARTITION_DOWN, detail=f"Slurm's job {job.id}: {job.reason}"
                )
        return AttemptStatus("starting")

    def _unsubmitted(self, follow_ups: FollowUps) -> AttemptStatus | None:
        refused = REFUSED in self._marks
        if not refused and not self._stopped:
            return None
        follow_ups.cancel += [job.id for job in self._alive]  # they are still held
        if self._alive:
            return AttemptStatus("starting")
        if refused:
            detail = (self._folder.path / REFUSED).read_text()
            return AttemptStatus(
                "ended", codes=(1,), code=1, stopped=self._stopped, cause=Cause.REFUSED, detail=detail
            )
        return AttemptStatus("ended", stopped=True, lost=True, cause=Cause.STOPPED)

    def _failed_to_run(self, jobs: Iterable[SlurmJob | None]) -> bool:
        """Whether a part ended without writing its end, or does not start."""
        late = self._late
        return any(job is None or _gone(job) or job.over or (late and _stuck(job)) for job in jobs)

    def _ending(
        self, ends: list[dict[str, Any] | None], open_: Mapping[int, SlurmJob | None], follow_ups: FollowUps
    ) -> AttemptStatus:
        """The state of a gang that must end: waiting jobs and those beyond their grace are cancelled."""
        assert self._stop_requested_at is not None
        overdue = self._now - self._stop_requested_at > self._parts.grace_s + self._timeouts.margin_s
        for part, job in open_.items():
            if _gone(job):
                self._mark(f"part-{part}.fenced")
            elif job is not None and not job.over and (job.waits or overdue):
                if not job.waits:
                    self._mark(f"part-{part}.cancelled")
                follow_ups.cancel.append(job.id)
        if not all(self._settled(part, job) for part, job in open_.items()):
            return AttemptStatus("running" if any("running" in mark for mark in self._marks) else "starting")
        gone = [self._inferred_end(part, job) for part, job in open_.items()]
        return self._ended([*(end for end in ends if end is not None), *gone])

    def _settled(self, part: int, job: SlurmJob | None) -> bool:
        """Whether a part without a recorded end will not write one any more."""
        if job is None or _gone(job):
            fenced = _written(self._folder.path / f"part-{part}.fenced")
            return fenced is not None and self._now - fenced > self._timeouts.margin_s
        return (
            job.over
            and self._stop_requested_at is not None
            and self._now - self._stop_requested_at > self._timeouts.settle_s
        )

    def _inferred_end(self, part: int, job: SlurmJob | None) -> dict[str, Any]:
        """The end of a part that did not write one."""
        end: dict[str, Any] = {"codes": {}, "done": "done" in self._marks, "stopped": self._stopped}
        if job is not None and job.states & {"FAILED", "OUT_OF_MEMORY"}:
            code = job.code or 1
            if f"part-{part}.ready" not in self._marks:
                self._explain(
                    part, f"Slurm's job {job.id} ended with code {code} before its supervisor was ready"
                )
            codes = {"codes": {self._parts.ranks[part]: code}, "code": code}
            return end | codes | {"time": job.ended, "cause": Cause.EXIT.value}
        return end | {"lost": self._stopped or f"part-{part}.cancelled" not in self._marks}

    def _explain(self, part: int, what: str) -> None:
        """Write to the log of a part that never ran."""
        hint = f"does its node see {self._folder.path}, and the Python that berth runs with?"
        self._folder.log(self._parts.ranks[part]).write_text(f"berth: {what}\n{hint}\n")

    def _ended(self, ends: list[dict[str, Any]]) -> AttemptStatus:
        seen = gang_end(ends)
        if self._stopped:
            return replace(seen, cause=seen.cause or Cause.STOPPED)
        if seen.codes and not any(seen.codes) and not (seen.stopped or seen.lost or seen.done):
            return self._succeeded(seen)
        maybe_by_slurm = seen.stopped or seen.lost or _ended_by_a_signal_of_slurm(seen)
        if maybe_by_slurm and not seen.done and self._undecided:
            return AttemptStatus("running")  # Slurm is about to report why
        own = not maybe_by_slurm and seen.cause in (Cause.EXIT, Cause.COMMAND, Cause.MEMORY, Cause.SIGNAL)
        cause, detail = (None, "") if own else self._cause
        if cause is None:
            return replace(seen, lost=seen.lost or seen.stopped)
        if cause is Cause.TIME_LIMIT:  # it would reach the limit every time, so it counts as a failure
            return replace(seen, lost=False, code=seen.code or TIMED_OUT, cause=cause, detail=detail)
        lost = seen.lost or seen.stopped or cause is not Cause.MEMORY
        return replace(seen, lost=lost, cause=cause, detail=detail)

    def _succeeded(self, seen: AttemptStatus) -> AttemptStatus:
        """The end of a gang that exited with 0, unless it did so because Slurm signalled it to end.

        Such a signal may reach the processes well before their supervisor. Slurm knows the cause before it signals.
        """
        last = self._last_end
        if last is not None and last > self._asked:
            return AttemptStatus("running")  # Slurm's jobs are older than this end
        cause, detail = self._cause
        if cause not in _BY_SIGNAL:
            return seen
        seen = replace(seen, stopped=True, cause=cause, detail=detail)
        return replace(seen, code=TIMED_OUT) if cause is Cause.TIME_LIMIT else replace(seen, lost=True)

    @property
    def _undecided(self) -> bool:
        """Whether a job is still completing: Slurm reports the cause only after that."""
        last = self._last_end
        fresh = last is not None and self._now - last <= self._timeouts.margin_s
        return fresh and any(not job.over and not job.waits for job in self._jobs.values())

    @property
    def _last_end(self) -> float | None:
        """When the last part wrote how it ended."""
        times = [_written(self._folder.path / mark) for mark in self._marks if mark.endswith(".ended")]
        return max((time for time in times if time is not None), default=None)

    @property
    def _cause(self) -> tuple[Cause | None, str]:
        """What ended the gang, from the first of its jobs that Slurm ended and berth did not."""
        by_slurm = (job for job in self._jobs.values() if not self._cancelled(job))
        for job in sorted(by_slurm, key=lambda job: job.ended):
            for state, cause in _CAUSES.items():
                if state in job.states:
                    detail = f"Slurm's job {job.id} on {job.node or 'no node'}: {state}"
                    return (Cause.NOT_STARTED if self._gave_up(job) else cause), detail
        return None, ""

    def _cancelled(self, job: SlurmJob) -> bool:
        """Whether berth cancelled a job because it did not end in time."""
        mark = job.ours is not None and f"part-{job.ours[1]}.cancelled" in self._marks
        return mark and "CANCELLED" in job.states

    def _gave_up(self, job: SlurmJob) -> bool:
        """Whether berth cancelled a job because it did not start."""
        begun = job.ours is None or f"part-{job.ours[1]}.ready" in self._marks
        return not begun and "CANCELLED" in job.states and self._late

    @property
    def _late(self) -> bool:
        released = _written(self._folder.path / SUBMITTED)
        return released is not None and self._now - released > self._timeouts.start_s

    def _end(self, part: int) -> dict[str, Any] | None:
        return self._folder.report(part, "ended")

    def _mark(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            (self._folder.path / name).touch(exist_ok=False)

    @property
    def _stop_requested_at(self) -> float | None:
        """When the gang had to end: by the controller's order, or because a part failed."""
        times = [_written(self._folder.path / mark) for mark in ("stop", "failed")]
        return min((time for time in times if time is not None), default=None)


def _ended_by_a_signal_of_slurm(seen: AttemptStatus) -> bool:
    """Whether a signal that Slurm sends ended the gang: it may reach the processes before their supervisor."""
    return seen.cause is Cause.SIGNAL and seen.code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)


def _stuck(job: SlurmJob) -> bool:
    """Whether a job waits for resources it may never get. Jobs of a closed partition start when it is up again."""
    return job.waits and job.reason not in _CLOSED_PARTITION


def _gone(job: SlurmJob | None) -> bool:
    """Whether the state of the processes is unknown."""
    return job is None or job.node_failed


def submitted(folder: Folder) -> dict[int, int]:
    """Return the job id of each part."""
    ids = json.loads((folder.path / SUBMITTED).read_text())
    return {int(part): int(number) for part, number in ids.items()}


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None
