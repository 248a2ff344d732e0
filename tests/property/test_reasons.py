"""Every reason shown is true: after each pass the reasons are held against a count of what is really free."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.schedule import reasons
from berth.schedule.view import RUNNING, WAITING
from berth.simulate.run import simulate
from berth.testing.builders import cluster, jobs
from berth.testing.policies import EXERCISES
from berth.testing.strategies import scenarios

pytestmark = pytest.mark.slow

HOLDS = {"backfill", "near-backfill", "look-ahead", "everything", "step-aside"}


class Validator:
    """Looks at the world after every pass; hand it to `simulate` as `watch`."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.seen: Counter[str] = Counter()
        self.promised: dict[int, float] = {}

    def __call__(self, world, clock) -> int:
        self.world, self.now = world, float(clock[0]["now"])
        self.free = self.count_free()
        for row, job in enumerate(world.jobs):
            if job["state"] == WAITING:
                reasons.bring_up_to_date(world, row)
                self.waits(row, job)
            elif job["state"] == RUNNING and job["started"] == self.now:
                self.starts(row, job)
        return 1

    def count_free(self) -> Counter:
        """Free devices by (tier, group, kind), from the places of what runs."""
        world, held = self.world, Counter()
        for job in world.jobs[world.jobs["state"] == RUNNING]:
            entry = job["head"]
            while entry >= 0:
                held[int(world.places[entry]["host"])] += int(world.places[entry]["count"])
                entry = world.places[entry]["next"]
        free = Counter()
        for at, host in enumerate(world.hosts):
            left = 0 if host["down"] else int(host["size"]) - held[at]
            assert left == host["free"], "the counts of free devices are off"
            for tier in range(world.groups.shape[0]):
                free[tier, int(host["group"][tier]), int(host["kind"])] += left
        return free

    def most(self, tier: int) -> int:
        """The most devices of one type that one group of a tier has free."""
        return max(count for (level, _, _), count in self.free.items() if level == tier)

    def changed_hands(self) -> bool:
        """Whether this pass gave devices back, so that what was too little a moment ago may be enough now."""
        jobs = self.world.jobs
        moved = (jobs["started"] == self.now) & (jobs["moves"] > 0)
        return bool((jobs["evicted"] == self.now).any() or moved.any())

    def waits(self, row: int, job) -> None:
        code, gpus = int(job["reason"]), int(job["gpus"])
        top = self.world.groups.shape[0] - 1
        started = sum(int(one["gpus"]) for one in self.world.jobs if one["started"] == self.now)
        self.seen[reasons.CODES[code]] += 1
        if code == reasons.NO_ROOM:
            assert self.most(top) < gpus or self.changed_hands()
        elif code == reasons.TOO_SPREAD:
            assert self.most(top) + started >= gpus
            assert self.most(int(job["holds_out"])) < gpus or self.changed_hands()
        elif code == reasons.HELD_FOR_OTHER:
            assert self.policy in HOLDS
            assert self.most(top) + started >= gpus
        elif code == reasons.LOOKS_AHEAD:
            assert job["until"] >= self.now
            assert self.most(int(job["floor"])) < gpus or self.changed_hands()
        elif code == reasons.BEHIND:
            state = self.world.state[0]
            assert self.policy == "strict"
            assert self.world.waiting[state["first"]] != row
        elif code == reasons.NONE:
            assert self.changed_hands()
        else:
            assert code in (reasons.OUTRANKED, reasons.MADE_WAY, reasons.HOST_LOST)
            assert job["evicted"] == self.now

    def starts(self, row: int, job) -> None:
        code, state = int(job["reason"]), self.world.state[0]
        self.seen[reasons.CODES[code]] += 1
        if code == reasons.BACKFILLED and self.policy in ("backfill", "near-backfill"):
            ahead = int(self.world.waiting[state["first"]])
            until = min(float(state["held_until"]), self.promised.get(ahead, float("inf")))
            self.promised[ahead] = until


COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


def all_reasons_are_true(scenario) -> Validator:
    validator = Validator(scenario.policy)
    try:
        run = simulate(
            jobs(scenario.jobs),
            cluster(scenario.cluster),
            EXERCISES[scenario.policy],
            scenario.setting(),
            watch=validator,
        )
    except AssertionError as error:
        error.add_note(f"repeat it with:\n{scenario.command()}")
        raise
    validator.run = run
    return validator


@given(scenarios())
@settings(max_examples=60, **COMMON)
def test_every_reason_is_true_when_it_is_given(scenario):
    all_reasons_are_true(scenario)


@pytest.mark.soak
@given(scenarios())
@settings(max_examples=1000, **COMMON)
def test_the_same_with_many_more(scenario):
    all_reasons_are_true(scenario)


@given(scenarios(policies=st.sampled_from(["backfill", "near-backfill"]), calm=True))
@settings(max_examples=60, **COMMON)
def test_who_is_passed_by_others_starts_no_later_than_was_promised(scenario):
    validator = all_reasons_are_true(scenario)
    for row, until in validator.promised.items():
        assert validator.run.records[row]["first_start"] <= until + 1e-6, scenario.command()
