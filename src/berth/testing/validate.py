"""Checks every reason against the world: what is free is counted again from the places of running jobs.

    validator = ReasonValidator(policy)
    simulate(trace, cluster, policy, setting, watch=validator)

Raises `AssertionError` at the first reason that is not true when it is given.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from berth.schedule.policy import Policy
from berth.schedule.reasons import CODES, ReasonCode, explained_record
from berth.schedule.records import Array, JobStatus, World
from berth.schedule.rules import Blocked
from berth.schedule.world import racks_of


class ReasonValidator:
    """Looks at the world after every pass; `seen` counts the reasons it has confirmed."""

    def __init__(self, policy: Policy) -> None:
        rules = policy.rules()
        self.strict = rules.blocked == Blocked.STOP
        self.backfills = rules.blocked == Blocked.BACKFILL
        self.holds_after_s = rules.reserve.after_s if rules.reserve is not None else math.inf
        self.gated = rules.link_ratio < math.inf
        self.seen: Counter[str] = Counter()
        self.promised: dict[int, float] = {}  # under backfill, when the first who waits starts at the latest

    def __call__(self, world: World, clock: Array) -> int:
        """Checks all jobs; asks to be called again after one event."""
        self.world, self.now = world, float(clock[0]["now"])
        self.free = self._count_free()
        for row, job in enumerate(world.jobs):
            if job["state"] == JobStatus.WAITING:
                explained = explained_record(world, row)
                self.seen[CODES[int(explained["reason"])]] += 1
                self._waits(row, explained)
            elif job["state"] == JobStatus.RUNNING and job["started_s"] == self.now:
                self.seen[CODES[int(job["reason"])]] += 1
                self._starts(job)
        return 1

    def _count_free(self) -> Counter[tuple[int, int, int]]:
        """Free devices by (tier, group, kind), from the places of what runs."""
        world, held = self.world, Counter[int]()
        for job in world.jobs[world.jobs["state"] == JobStatus.RUNNING]:
            entry = job["first_place"]
            while entry >= 0:
                held[int(world.places[entry]["host"])] += int(world.places[entry]["count"])
                entry = world.places[entry]["next"]
        free = Counter[tuple[int, int, int]]()
        for at, host in enumerate(world.hosts):
            left = 0 if host["down"] else int(host["size"]) - held[at]
            assert left == host["free"], "the counts of free devices are off"
            for tier in range(world.groups.shape[0]):
                free[tier, int(host["group"][tier]), int(host["device_type"])] += left
        racks = racks_of(world.hosts, world.groups)
        assert np.array_equal(racks["machines"], world.racks["machines"]), "the counts of racks are off"
        assert np.array_equal(racks["present"], world.racks["present"]), "the counts of racks are off"
        most = world.groups["free"].max(axis=1)  # by tier and type
        known = world.state[0]["most_free"][0].T[: len(most)]
        assert (known >= most)[:, : world.state[0]["device_types"]].all(), (
            "more devices are free than is known"
        )
        return free

    def _most(self, tier: int) -> int:
        """The most devices of one type that one group of a tier has free."""
        return max(count for (level, _, _), count in self.free.items() if level == tier)

    def _changed_hands(self) -> bool:
        """Whether this pass gave devices back, so that what was too little a moment ago may be enough now."""
        jobs = self.world.jobs
        moved = (jobs["started_s"] == self.now) & (jobs["moves"] > 0)
        return bool((jobs["last_eviction_s"] == self.now).any() or moved.any())

    def _started(self) -> int:
        """Devices that were taken in this pass."""
        jobs = self.world.jobs
        return int(jobs["gpus"][(jobs["started_s"] == self.now) & (jobs["state"] == JobStatus.RUNNING)].sum())

    def _charged(self, quota: int) -> int:
        """Devices that the jobs of one virtual cluster hold."""
        jobs = self.world.jobs
        return int(jobs["gpus"][(jobs["quota"] == quota) & (jobs["state"] == JobStatus.RUNNING)].sum())

    def _waits(self, row: int, job: Any) -> None:
        code, gpus, changed = int(job["reason"]), int(job["gpus"]), self._changed_hands()
        top, name = self.world.groups.shape[0] - 1, CODES[int(job["reason"])]
        if code == ReasonCode.NO_ROOM:
            assert self._most(top) < gpus or changed, name
        elif code == ReasonCode.TOO_SPREAD:
            assert self._most(top) + self._started() >= gpus, name
            assert self._most(int(job["waits_for_tier"])) < gpus or changed, name
        elif code == ReasonCode.HELD_FOR_OTHER:
            self._check_reservation(row, job)
            assert self._most(top) + self._started() >= gpus, name
        elif code == ReasonCode.LOOKS_AHEAD:
            assert job["until_s"] >= self.now, name
            uneven = job["imbalance_slowdown"] > 1.0  # it fits there now, but waits for a more even place
            assert self._most(int(job["nearest_tier"])) < gpus or changed or uneven, name
        elif code == ReasonCode.OVER_QUOTA:
            quota = int(job["quota"])
            assert self._charged(quota) + gpus > self.world.quotas[quota]["allowed"] or changed, name
        elif code == ReasonCode.LINKS_BUSY:
            self._check_links(job)
        elif code == ReasonCode.BEHIND:
            assert self.strict or (self.backfills and job["quota"] >= 0), name
            assert self.world.waiting[self.world.state[0]["queue_start"]] != row, name
        elif code == ReasonCode.NONE:
            assert changed, name
        else:
            assert code in (
                ReasonCode.OUTRANKED,
                ReasonCode.MADE_WAY,
                ReasonCode.HOST_LOST,
            ), name
            assert job["last_eviction_s"] == self.now, name

    def _check_reservation(self, row: int, job: Any) -> None:
        """Another job has a place reserved: it has waited long, has a higher priority, or backfill keeps order."""
        other = int(self.world.reservation[0]["last_holder"])
        assert other not in (-1, row), "held-for-other"
        holder = self.world.jobs[other]
        assert holder["state"] == JobStatus.WAITING or holder["started_s"] == self.now, "held-for-other"
        waited_s = self.now - holder["queued_since_s"]
        lower = job["priority"] < holder["priority"]
        assert self.backfills or lower or waited_s > self.holds_after_s, "held-for-other"

    def _check_links(self, job: Any) -> None:
        """There is room, and some job sends between machines."""
        jobs = self.world.jobs
        senders = jobs[
            (jobs["state"] == JobStatus.RUNNING) & (jobs["tier"] > 0) & (jobs["message_bytes"] > 0)
        ]
        assert self.gated, "links-busy"
        assert len(senders) > 0, "links-busy"
        assert job["message_bytes"] > 0, "links-busy"
        assert self._most(int(job["waits_for_tier"])) + self._started() >= job["gpus"], "links-busy"

    def _starts(self, job: Any) -> None:
        state = self.world.state[0]
        if (
            int(job["reason"]) == ReasonCode.BACKFILLED
            and self.backfills
            and state["queue_start"] < state["queue_stop"]
        ):
            ahead = int(self.world.waiting[state["queue_start"]])
            self.promised[ahead] = min(
                float(self.world.reservation[0]["until_s"]), self.promised.get(ahead, math.inf)
            )
