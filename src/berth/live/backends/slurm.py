"""Slurm as a back end: berth decides where and when jobs run, Slurm starts, watches and accounts them.

A gang is one Slurm job per machine, with that machine as its required node list. A Slurm job asks for the same GPUs on
every node, so 3 on one and 5 on another would be a heterogeneous job, which only Slurm's backfill pass starts. Jobs of
one node each can have any shape, start at once, and need no `srun`. Two mechanisms start a gang as a whole or not at
all: its jobs are submitted held and released once all are submitted, and its processes start only when all parts are
ready (`supervise`).

Every attempt is a new set of jobs, also when a gang migrates. Requeueing the old job under a new node list
(`scontrol requeuehold`) is not faster (0.46 s against 0.48 s, from the stop order to the next attempt's first line).
Two attempts would share a job id, a name and a log, so a late answer about the first would look like one about the
second. For the same reason Slurm must not requeue these jobs.

A job's name has the token and the part number, so it is found again after a restart of the controller or a lost answer
of `sbatch`. A job that was submitted twice is still held when that is detected, and is cancelled.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.live.backend import (
    AttemptStatus,
    BackendError,
    Blocker,
    Forget,
    Launch,
    MachineStatus,
    Observation,
    Order,
    Pace,
    Stop,
)
from berth.live.backends.slurm_attempt import (
    REFUSED,
    SUBMITTED,
    Attempt,
    FollowUps,
    Parts,
    Timeouts,
    parts_of,
    submitted,
)
from berth.live.backends.slurm_commands import Partition, SlurmCommands
from berth.live.backends.slurm_discover import FOUND, discover
from berth.live.backends.slurm_json import SlurmJob, SlurmNode
from berth.live.backends.slurm_submit import (
    Headroom,
    RefusedError,
    Site,
    headroom_by_node,
    parts_to_submit,
    submit,
)
from berth.live.folder import ENDED, Folder, archive_supervisor, tokens_in, write_whole
from berth.live.lifecycle import Cause

_log = logging.getLogger("berth.live")
_GONE = {"DOWN", "ERROR", "FUTURE", "INVAL", "INVALID_REG", "POWERED_DOWN", "POWERING_DOWN"}
_CLOSED = {
    *("DRAIN", "FAIL", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "NO_RESPOND", "REBOOT_REQUESTED", "RESERVED")
}


class SlurmBackend:
    """A Slurm cluster, and a folder that this machine and all its nodes see under the same path."""

    name = "slurm"
    pace = Pace(busy_s=1.0, idle_s=20.0, least_s=1.0)

    def __init__(
        self,
        root: Path,
        cluster: Cluster | None = None,
        *,
        partition: str | None = None,
        options: Sequence[str] = (),
        python: str = sys.executable,
        timeouts: Timeouts | None = None,
        commands: SlurmCommands | None = None,
    ) -> None:
        # a discovered cluster is discovered again: nodes are added and removed
        self._root, self._cluster = root, None if cluster is not None and cluster.name == FOUND else cluster
        partition = partition or os.environ.get("SBATCH_PARTITION")
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._site = Site(archive_supervisor(root), python, partition, tuple(options))
        self._timeouts, self._slurm = timeouts or Timeouts(), commands or SlurmCommands()
        self._partition: Partition | None = None
        self._nodes: dict[str, SlurmNode] = {}
        self._headroom: dict[str, Headroom] = {}
        self._parts: dict[str, Parts] = {}
        self._missing: dict[int, float] = {}  # ids of jobs that Slurm does not list any more, since when

    def cluster(self) -> Cluster:
        """Return the described cluster, or the one that Slurm reports."""
        if self._cluster is None:
            wanted = self._slurm.partition(self._site.partition)
            if wanted is None and self._site.partition is not None:
                raise InputError(f"Slurm has no partition {self._site.partition!r}", hint="sinfo lists them")
            nodes = [node for node in self._slurm.nodes() if wanted is None or wanted.name in node.partitions]
            self._cluster = discover(nodes, self._slurm.switches())
        return self._cluster

    def devices_of(self, token: str) -> Mapping[str, Sequence[int]] | None:
        """Return the devices that an attempt was launched on, by machine, as its folder has them."""
        return Folder(self._root, token).devices()

    def close(self) -> None:
        """Do nothing: jobs continue."""

    def observe(self) -> Observation:
        """Read partition, nodes, jobs and folders; complete interrupted releases and cancellations."""
        self._partition = self._slurm.partition(self._site.partition)
        self._nodes = {node.name: node for node in self._slurm.nodes()}
        follow_ups = FollowUps()
        try:
            asked = self._now()
            jobs = self._slurm.jobs()  # after the nodes and before the folders: later reads may be newer
            mine = self._mine(jobs)
            self._headroom = headroom_by_node(
                self._nodes.values(), [job for some in mine.values() for job in some]
            )
            attempts = self._attempts(mine, asked, follow_ups)
        except OSError as error:
            raise BackendError(f"{self._root}: {error}") from None
        self._follow_up(follow_ups)
        machines = (self._nodes.get(machine.name) for machine in self.cluster().machines)
        known = [node for node in machines if node is not None and "UNKNOWN" not in node.states]
        return Observation(attempts, {node.name: self._machine(node) for node in known}, self._blockers)

    @property
    def _blockers(self) -> tuple[Blocker, ...]:
        if self._partition is None or not self._closed:
            return ()
        what = f"Slurm's partition {self._partition.name} is {self._partition.state}: no jobs start there"
        return (Blocker(Cause.PARTITION_DOWN, what),)

    def _mine(self, jobs: Iterable[SlurmJob]) -> dict[str, list[SlurmJob]]:
        """Jobs whose folders are here, by token; those of another berth are external."""
        here: dict[str, bool] = dict.fromkeys(tokens_in(self._root), True)
        mine: dict[str, list[SlurmJob]] = {}
        for job in jobs:
            if job.ours is None:
                continue
            token = job.ours[0]
            if token not in here:
                here[token] = (self._root / ENDED / token).exists()
            if here[token]:
                mine.setdefault(token, []).append(job)
        return mine

    def _attempts(
        self, mine: Mapping[str, list[SlurmJob]], asked: float, follow_ups: FollowUps
    ) -> dict[str, AttemptStatus]:
        live, now = tokens_in(self._root), self._now()
        there = {job.id for jobs in mine.values() for job in jobs}
        missing: dict[int, float] = {}
        attempts: dict[str, AttemptStatus] = {}
        for token in live:
            folder = Folder(self._root, token)
            marks = frozenset(os.listdir(folder.path))
            if not folder.launched:
                if (seen := folder.never_began()) is not None:
                    attempts[token] = seen
                continue
            if token not in self._parts:
                self._parts[token] = parts_of(folder)
            for job in submitted(folder).values() if SUBMITTED in marks else ():
                if job not in there:
                    missing[job] = self._missing.get(job, now)
            unsure = {job for job, since in missing.items() if now - since < self._timeouts.missing_s}
            jobs = mine.get(token, ())
            attempt = Attempt(
                folder, marks, self._parts[token], jobs, now, self._timeouts, unsure, asked=asked
            )
            if (seen := attempt.observe(follow_ups)) is not None:
                attempts[token] = seen
        self._missing = missing
        late = (job for token in mine.keys() - set(live) for job in mine[token])
        follow_ups.cancel += [job.id for job in late if job.waits]  # submitted twice, detected late
        return attempts

    def _now(self) -> float:
        """The clock of the shared file system, which the ages of files are computed with."""
        clock = self._root / ".now"
        clock.touch()
        return clock.stat().st_mtime

    def _follow_up(self, follow_ups: FollowUps) -> None:
        with contextlib.suppress(BackendError):  # the next observation repeats it
            self._slurm.cancel(dict.fromkeys(follow_ups.cancel))
            self._slurm.release(dict.fromkeys(follow_ups.release))

    def _machine(self, node: SlurmNode) -> MachineStatus:
        return MachineStatus(
            up=not node.states & _GONE,
            drained=bool(node.states & _CLOSED) or self._closed,
            external=self._headroom[node.name].external,
        )

    @property
    def _closed(self) -> bool:
        """Whether the partition does not start jobs."""
        return self._partition is not None and self._partition.state != "UP"

    def apply(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Submit new gangs, release complete ones, and stop the others."""
        done = self._stop([order for order in orders if isinstance(order, Stop)])
        ids: list[int] = []
        try:
            for order in orders:
                with contextlib.suppress(OSError):
                    if isinstance(order, Forget):
                        Folder(self._root, order.token).archive()
                        self._parts.pop(order.token, None)
                        done.append(order)
                    elif isinstance(order, Launch):
                        ids += self._launch(order)
                        done.append(order)
        except BackendError as error:
            _log.warning("%s; the other gangs are launched later", error)
        self._follow_up(FollowUps(release=ids))
        return done

    def _launch(self, order: Launch) -> list[int]:
        """Submit a gang unless it is already submitted or stopped; return the ids to release."""
        if not self._nodes:
            self.observe()
        folder = Folder(self._root, order.token)
        first = order.members[0].machine
        address = self._nodes[first].address if first in self._nodes else None
        new = folder.prepare(order, address=address)
        if not folder.launched or folder.stopped:
            return []  # it has ended or must not start
        if any((folder.path / mark).exists() for mark in (SUBMITTED, REFUSED)):
            return []
        ids = {} if new else self._submitted_before(order.token)
        max_time = self._partition.max_time if self._partition is not None else None
        try:
            for part in parts_to_submit(order):
                node, headroom = self._nodes.get(part.machine), self._headroom.get(part.machine)
                if part.number not in ids:
                    ids[part.number] = submit(
                        self._slurm, self._site, folder, part, node, headroom, max_time=max_time
                    )
        except RefusedError as error:
            folder.log(0).write_text(f"berth: {error}\n")
            write_whole(folder.path / REFUSED, str(error))
            return []
        write_whole(folder.path / SUBMITTED, json.dumps({str(part): ids[part] for part in sorted(ids)}))
        return list(ids.values())

    def _submitted_before(self, token: str) -> dict[int, int]:
        """The first job of each part of a gang whose submission was interrupted."""
        found: dict[int, int] = {}
        for job in sorted(self._slurm.jobs(), key=lambda job: job.id):
            if job.ours is not None and job.ours[0] == token and not job.over:
                found.setdefault(job.ours[1], job.id)
        return found

    def _stop(self, orders: Sequence[Stop]) -> list[Order]:
        """Stop attempts by a file; the signal through Slurm only makes it faster."""
        done: list[Order] = []
        ids: list[int] = []
        for order in orders:
            folder = Folder(self._root, order.token)
            with contextlib.suppress(OSError):
                new = not folder.stopped
                folder.stop()
                if new and (folder.path / SUBMITTED).exists():
                    ids += submitted(folder).values()
                done.append(order)
        with contextlib.suppress(BackendError):
            self._slurm.cancel(ids, "--quiet", "--state=PENDING")
            self._slurm.cancel(ids, "--quiet", "--state=RUNNING", "--batch", "--signal=TERM")
        return done
