"""Overtakers of a whole queue: as a search job by job finds them, and in time that does not grow with its square."""

import math
from collections import Counter
from random import Random

import pytest

from berth.live.api.service import Service
from berth.live.api.tokens import OWNER, Tokens
from berth.live.forecast import Forecast
from berth.live.outlook import FITS, IN_TIME, LISTED, NAMED, SPARE, Outlook, overtakers
from berth.live.snapshot import copy_of, facts_of, load, same, save
from berth.schedule.reasons import ReasonCode


def forecast_of(chance: Random, count: int) -> tuple[list[str], Forecast]:
    """A queue, and a forecast in which most of its jobs start, in another order."""
    order, reported = [f"j{number}" for number in range(count)], Forecast(0.0)
    for name in chance.sample(order, chance.randrange(count + 1)):
        reported.starts[name] = float(chance.randrange(50))  # many start together
        reported.ends[name] = reported.starts[name] + chance.randrange(1, 50)
        reported.reasons[name] = chance.choice((ReasonCode.NEAREST, ReasonCode.BACKFILLED))
        if chance.random() < 0.7:
            reported.reserved[name] = chance.choice(order[: max(1, count // 10)])
    return order, reported


def searched(order: list[str], reported: Forecast, name: str) -> list[tuple[str, str]]:
    """The same for one job, by looking at every other one."""
    mine = reported.starts.get(name, math.inf)
    behind = [other for other in order[order.index(name) + 1 :] if reported.starts.get(other, mine) < mine]

    def how(other: str) -> str:
        if reported.reasons[other] != ReasonCode.BACKFILLED or reported.reserved.get(other) != name:
            return FITS
        return IN_TIME if reported.ends[other] <= reported.starts.get(name, -math.inf) else SPARE

    return [(other, how(other)) for other in sorted(behind, key=lambda one: reported.starts[one])]


@pytest.mark.parametrize("seed", range(60))
def test_overtakers_are_those_of_an_exhaustive_search(seed):
    chance = Random(seed)
    order, reported = forecast_of(chance, chance.randrange(1, 60))
    found = overtakers(order, reported)
    for name in order:
        expected = searched(order, reported, name)
        if not expected:
            assert name not in found
            continue
        assert found[name].count == len(expected)
        assert list(found[name].first) == expected[:LISTED]
        kinds = Counter(how for _, how in expected)
        groups = {one.how: (one.count, one.first) for one in found[name].groups}
        assert list(groups) == list(kinds)  # the kind that comes first is named first
        for kind, (count, first) in groups.items():
            assert count == kinds[kind]
            assert list(first) == [other for other, how in expected if how == kind][:NAMED]


class Counting(dict):
    """Counts how often it is read."""

    reads = 0

    def get(self, key, default=None):
        self.reads += 1
        return super().get(key, default)

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)


def test_a_long_queue_is_walked_a_few_times_not_once_for_each_job():
    order = [f"j{number}" for number in range(4_000)]
    reported = Forecast(0.0)
    # each overtakes all ahead
    reported.starts = Counting({name: float(-place) for place, name in enumerate(order)})
    reported.reasons = dict.fromkeys(order, ReasonCode.NEAREST)
    found = overtakers(order, reported)
    assert found["j0"].count == 3_999
    assert reported.starts.reads < 10 * len(order)


def test_rows_of_the_queue_are_put_together_without_the_controllers_lock(crank, monkeypatch):
    live = crank(policy="fit-first")
    for number in range(6):
        live.submit(gpus=16, seconds=100 + number)
    live.step(1)
    service = Service(live.controller, Tokens(live.folder), live.folder)
    row, held = Outlook.row, []

    def watched(self, name, now):
        held.append(live.controller.lock._is_owned())
        return row(self, name, now)

    monkeypatch.setattr(Outlook, "row", watched)
    rows = service.jobs(OWNER, over=False, limit=100)["jobs"]
    assert [one["position"] for one in rows[:5]] == [1, 2, 3, 4, 5]
    assert held == [False] * 6


def test_a_copy_of_a_state_equals_its_snapshot_and_shares_nothing(crank):
    live = crank(policy="berth")
    for gpus in (4, 16, 2):
        live.submit(gpus=gpus, seconds=500, env={"FAILS": "1"})
    live.step(300, times=4)
    copy, before = copy_of(live.state), load(save(live.state))
    assert same(copy, before)
    assert copy.delayed == live.state.delayed
    for job in copy.jobs.values():
        job.alive.append("x")
        job.state = "failed"
    for attempt in copy.attempts.values():
        attempt.why = "lost"
    copy.world.jobs["gpus"] = 0
    copy.unavailable[0].append("x")
    copy.users["x"] = 1
    assert same(live.state, before)
    assert facts_of(copy) != facts_of(before)
