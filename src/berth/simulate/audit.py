"""The audit: a run is counted again from its log alone, and its records must agree.

    report = audit(simulate(trace, cluster, policy, Setting(log=True)))
    assert not report.violations

What must always hold: no device is held twice; a gang starts whole, of one type, or in every part of one of its
shapes; at most one attempt of a job
lives; every job that can run finishes once, or is named among those that never can; machines that are down get
nothing, and a virtual cluster no more than its quota; the tiers and the reasons stated are true;
device-seconds, waits and work add up, and at the end every device that no job holds is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from berth.cluster.model import Cluster
from berth.network.fabric import Fabric
from berth.network.placement import Placement
from berth.schedule.records import SMALL_GANG, Array, JobStatus
from berth.schedule.rules import Blocked
from berth.simulate.engine_state import NetworkMode
from berth.simulate.events import event_frame
from berth.simulate.jobs import iteration_s
from berth.simulate.log_replay import Attempt, Ending, LogReplay, Story, Violation
from berth.simulate.run import NETWORKS, Run, Setting
from berth.workload.profiles import load_profile
from berth.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the replay of a log found."""

    violations: tuple[Violation, ...]
    events: int
    jobs: int

    def __str__(self) -> str:
        counted = f"{self.events:,} events of {self.jobs:,} jobs counted again"
        if not self.violations:
            return f"{counted}: everything adds up"
        first = "\n".join(f"  {violation}" for violation in self.violations[:20])
        return f"{counted}: {len(self.violations)} violations\n{first}"


def audit(run: Run) -> AuditReport:
    """Counts a run again; it must have been made with `Setting(log=True)`."""
    log = event_frame(run)
    rules = run.world.rules[0]  # a policy may set its own eviction cost
    setting = replace(
        run.setting,
        eviction_s=float(rules["eviction_s"]),
        eviction_large_s=float(rules["eviction_large_s"]),
    )
    ending = Ending(
        frozenset(run.unfinished), bool(run.livelock), strict=bool(rules["blocked"] == Blocked.STOP)
    )
    farther = bool(rules["defragment_farther"])
    chosen = len(run.world.shapes) > 0
    violations = check(
        log, run.cluster, run.trace, setting, run, ending, farther=farther, gangs_choose=chosen
    )
    violations += _missing_devices(run)
    return AuditReport(tuple(violations), len(log), len(run.trace))


def _missing_devices(run: Run) -> list[Violation]:
    """Machines whose count of free devices differs from what jobs hold at the end."""
    world, now, found = run.world, float(run.clock[0]["now"]), []
    held = np.zeros(len(world.hosts), np.int64)
    for head in world.jobs["first_place"][world.jobs["state"] == JobStatus.RUNNING]:
        entry = head
        while entry >= 0:
            held[world.places[entry]["host"]] += world.places[entry]["count"]
            entry = world.places[entry]["next"]
    left = np.where(world.hosts["down"] > 0, 0, world.hosts["size"] - held)
    for at in np.flatnonzero(left != world.hosts["free"]):
        machine = run.cluster.machines[world.hosts[at]["machine"]].name
        what = f"{world.hosts[at]['free']} of its devices are free by the counts, and {left[at]} by what jobs hold"
        found.append(Violation(now, machine, "free", what))
    return found


def check(
    log: pl.DataFrame,
    cluster: Cluster,
    trace: Trace,
    setting: Setting,
    run: Run | None = None,
    ending: Ending | None = None,
    *,
    farther: bool = False,
    gangs_choose: bool = False,
) -> list[Violation]:
    """The violations in a log; with `run`, also where its records differ from the log.

    `farther`: a job that steps aside may move to a farther place. `gangs_choose`: among device types.
    """
    replay = LogReplay(cluster, trace, setting.quotas, farther, gangs_choose)
    replay.play(log, ending)
    if run is not None and not replay.violations:  # a log that is wrong in itself proves no record wrong
        speeds = _Speeds(cluster, setting, run)
        for row, (job, story) in enumerate(replay.stories.items()):
            reader = _Reader(job, story, run.records[row], run.accounts[row], replay.violations)
            reader.compare()
            if story.finished_s >= 0:
                reader.conserve_work(setting, [speeds.alone(row, attempt) for attempt in story.attempts])
    return replay.violations


class _Speeds:
    """How fast jobs work where the log places them, while no other job sends on their links."""

    def __init__(self, cluster: Cluster, setting: Setting, run: Run) -> None:
        self._jobs, self._records, self._network = run.jobs, run.records, NETWORKS[setting.network]
        self._fabric = Fabric(cluster, setting.congestion)
        self._kinds = {kind.name: number for number, kind in enumerate(cluster.device_types)}
        self._machines = {machine.name: number for number, machine in enumerate(cluster.machines)}
        self._known: dict[tuple[Any, ...], float] = {}

    def alone(self, row: int, attempt: Attempt) -> float:
        """Seconds of work per second."""
        if attempt.shape is not None:
            return self._in_shape(row, attempt)
        kind, record = self._kinds[attempt.device], self._records[row]
        traffic = self._jobs.traffic[int(record["traffic_row"]) + kind]
        if self._network == NetworkMode.OFF or record["gpus"] == 1:
            return float(traffic["near_s"] / traffic["compute_s"])
        model = str(self._jobs.models[row])
        key = (model, int(record["gpus"]), kind, *sorted(attempt.places.items()))
        if key not in self._known:
            counts = {self._machines[name]: count for name, count in attempt.places.items()}
            sent = load_profile(model).traffic(self._fabric.cluster.device_types[kind])
            seconds = iteration_s(sent, Placement.of_counts(counts), self._fabric, self._network)
            self._known[key] = float(traffic["near_s"]) / seconds
        return self._known[key]

    def _in_shape(self, row: int, attempt: Attempt) -> float:
        """Seconds of work of the shape that the job ran in last, per second."""
        record, table = self._records[row], self._jobs.shapes
        first = int(record["first_shape"])
        names = [one.shape.name for one in table.bound[first : first + int(record["shape_count"])]]
        shape = table.shapes[first + names.index(str(attempt.shape))]
        return float(
            table.shapes[record["shape"]]["unit_s"] / shape["unit_s"] / shape["slowdown"][attempt.tier]
        )


@dataclass(slots=True)
class _Reader:
    """Compares a job's history in the log with its records."""

    job: str
    story: Story
    record: Array
    account: Array
    violations: list[Violation]

    def compare(self) -> None:
        """Every sum in the record against the same sum over the attempts."""
        story, record = self.story, self.record
        if story.floor is None:
            self._same("lost", "refused", float(record["state"] == JobStatus.REFUSED), 1.0)
            return
        if story.runs:  # cut off at a livelock: its sums are open
            return
        attempts = story.attempts
        counts = [attempt.ended_by for attempt in attempts]
        self._same("attempts", "evictions", float(record["evictions"]), float(counts.count("evicted")))
        self._same("attempts", "moves", float(record["moves"]), float(counts.count("moved")))
        self._same("device-seconds", "ran", record["ran_s"], sum(map(_span, attempts)))
        self._same("device-seconds", "attained", record["attained_gpu_s"], sum(map(_gpu_s, attempts)))
        self._same("waits", "waited", record["waited_s"], story.waited_s)
        self._same("waits", "first start", record["first_start_s"], attempts[0].start_s if attempts else -1.0)
        self._same("waits", "end", record["end_s"], max(0.0, story.finished_s))
        for tier, attained in enumerate(self.account["tier_gpu_s"]):
            spans = sum(_gpu_s(attempt) for attempt in attempts if attempt.tier == tier)
            self._same("device-seconds", f"at level {tier}", attained, spans)
        reshapes = sum(one.shape != two.shape for one, two in pairwise(attempts))
        self._same("attempts", "changes of shape", float(self.account["reshapes"]), float(reshapes))
        widest = int(record["widest_tier"])
        if not story.shapes and any(attempt.tier > widest for attempt in attempts):
            self._wrong("tier", f"it was spread farther than level {widest}, which its user does not allow")

    def conserve_work(self, setting: Setting, speeds: list[float]) -> None:
        """It worked what it asked for and what a lost machine made it do again, at speeds that its places allow.

        `speeds` are those of its attempts while no other job sends: on shared links a bound, else exact.
        """
        story, record = self.story, self.record
        worked_s, lost, most, doubtful, most_redone = 0.0, 0.0, 0.0, 0.0, 0.0
        for number, (attempt, speed) in enumerate(zip(story.attempts, speeds, strict=True)):
            restore_s = setting.eviction_s if attempt.gpus <= SMALL_GANG else setting.eviction_large_s
            restored_s = min(_span(attempt), restore_s) if number else 0.0
            done_s = _span(attempt) - restored_s
            worked_s, most = worked_s + done_s, most + done_s * speed
            lost += restored_s * attempt.gpus
            if attempt.reason == "host-lost" and attempt.ended_by == "evicted":
                since_s, either_s = _since_checkpoint(done_s, setting.checkpoint_s)
                lost, doubtful = lost + since_s * attempt.gpus, doubtful + either_s * attempt.gpus
                most_redone += (since_s + either_s) * speed
        redone = float(self.account["redone_s"])
        total = float(record["work_s"]) + redone
        self._within("work", "done", total, most if setting.network != "on" else 0.0, most)
        exact = setting.network != "on" and doubtful == 0.0
        self._within("work", "done again", redone, most_redone if exact else 0.0, most_redone)
        self._within("device-seconds", "lost", self.account["lost_gpu_s"], lost, lost + doubtful)
        if (
            len({(one.device, one.shape) for one in story.attempts}) == 1
        ):  # else `compute` is that of the last
            exposed = (worked_s - total * float(record["compute_share"])) * story.gpus
            self._same("device-seconds", "exposed", self.account["exposed_comm_gpu_s"], exposed)

    def _within(self, rule: str, name: str, recorded: Any, least: float, most: float) -> None:
        if not least - _slack(least) <= float(recorded) <= most + _slack(most):
            between = f"{least:.6f}" if least == most else f"between {least:.6f} and {most:.6f}"
            self._wrong(rule, f"{name} is {float(recorded):.6f} in its record and {between} by the log")

    def _same(self, rule: str, name: str, recorded: Any, counted: float) -> None:
        if not abs(float(recorded) - counted) <= _slack(counted):
            self._wrong(rule, f"{name} is {float(recorded):.6f} in its record and {counted:.6f} in the log")

    def _wrong(self, rule: str, what: str) -> None:
        self.violations.append(Violation(max(self.story.finished_s, 0.0), self.job, rule, what))


def _span(attempt: Attempt) -> float:
    return attempt.end_s - attempt.start_s


def _gpu_s(attempt: Attempt) -> float:
    return _span(attempt) * attempt.gpus


def _since_checkpoint(done_s: float, checkpoint_s: float) -> tuple[float, float]:
    """Seconds of work lost when a machine fails; and how many more if a checkpoint due just then was not written."""
    if checkpoint_s <= 0:
        return done_s, 0.0
    since_s = math.fmod(done_s, checkpoint_s)
    close = min(since_s, checkpoint_s - since_s) <= _slack(done_s) < done_s
    return (0.0, checkpoint_s) if close else (since_s, 0.0)


def _slack(value: float) -> float:
    """What rounding may leave after some thousand additions."""
    return 1e-4 + 1e-9 * abs(value)
