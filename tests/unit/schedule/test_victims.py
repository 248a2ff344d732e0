"""Which running jobs are preempted: the cheapest to move, or the last in order, as the rules say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numba import njit

from berth.cluster.load import load_cluster
from berth.schedule import Policy, PreemptByGain, Rules, StaticOrder
from berth.schedule.pass_records import THREATENED
from berth.schedule.victims import sort_victims
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs
from berth.workload.trace import Trace


@dataclass(frozen=True)
class Pushy(Policy):
    """The third job gains whatever it costs; later victims cost more and rank lower."""

    by_rank: float = 0.0

    def rules(self):
        return Rules(order=StaticOrder(), preempt=PreemptByGain(victims_by_order=bool(self.by_rank)))

    @staticmethod
    def gain(job, here, there, now, params):
        return 1e9 if job.arrival_s == 2 else 0.0

    @staticmethod
    def cost(victim, job, now, params):
        return 100.0 * victim.arrival_s


@pytest.mark.slow
@pytest.mark.parametrize(("by_rank", "victim"), [(0.0, 0), (1.0, 1)])
def test_the_victim_is_the_cheapest_or_the_least_deserving(by_rank, victim):
    columns = {
        "job_id": list("abc"),
        "submit_s": [0.0, 1.0, 2.0],
        "num_gpu": [8, 8, 8],
        "duration_s": [10_000.0, 10_000.0, 100.0],
    }
    trace = Trace.from_columns(columns, source="test")
    run = simulate(trace, load_cluster("2x8"), Pushy(by_rank), Setting(network="off"))
    assert run.records["evictions"].tolist() == [int(victim == 0), int(victim == 1), 0]
    assert run.records["first_start_s"][2] == 2.0


@dataclass(frozen=True)
class Weighing(Policy):
    """The last job gains so much; whoever makes way loses a thousand seconds."""

    gained_s: float = 0.0

    def rules(self):
        return Rules(order=StaticOrder(), preempt=PreemptByGain(margin=1.0))

    @staticmethod
    def gain(job, here, there, now, params):
        return params.gained_s if job.arrival_s == 2 else 0.0

    @staticmethod
    def cost(victim, job, now, params):
        return 1000.0


@pytest.mark.parametrize(
    ("machines", "running", "gained_s", "evictions"),
    [
        ([2], [1, 1], 1500.0, [0, 0, 0]),
        ([2], [1, 1], 2500.0, [1, 1, 0]),
        ([[1, 1]], [2], 900.0, [0, 0]),
        ([[1, 1]], [2], 1500.0, [1, 0]),
    ],
    ids=["two cost too much", "two are worth it", "one costs too much", "one on two machines costs once"],
)
def test_all_who_make_way_together_must_cost_less_than_is_gained(machines, running, gained_s, evictions):
    rows = [*((0, gpus, 9000) for gpus in running), (2, 2, 100)]
    setting = Setting(network="off", eviction_s=0.0)
    run = simulate(jobs(rows), cluster(machines), Weighing(gained_s), setting)
    assert run.records["evictions"].tolist() == evictions


@dataclass(frozen=True)
class Choosy(Policy):
    """Jobs that came later go last. The third costs too much for the fourth and may not make way for the fifth."""

    def rules(self):
        return Rules(order=StaticOrder(), preempt=PreemptByGain(margin=1.0, victims_by_order=True))

    @staticmethod
    def order(job, now, params):
        return job.arrival_s

    @staticmethod
    def gain(job, here, there, now, params):
        return 1000.0 if job.arrival_s >= 3 else 0.0

    @staticmethod
    def cost(victim, job, now, params):
        if victim.arrival_s < 2:
            return 10.0
        return 5000.0 if job.arrival_s == 3 else math.inf


def test_whose_victims_may_not_be_evicted_is_found_for_each_job_of_one_size():
    rows = [(number, 2, 9000) for number in range(5)]
    run = simulate(jobs(rows), cluster([2, 2, 2]), Choosy(), Setting(network="off", eviction_s=0.0))
    assert run.records["evictions"].tolist() == [0, 1, 0, 0, 0]
    assert run.records["first_start_s"].tolist()[:3] == [0.0, 1.0, 2.0]
    assert run.records["first_start_s"][4] == 4.0  # on the machine of the second
    assert run.records["first_start_s"][3] == 9002.0  # the second goes before it when the first has ended


@njit
def sort(victims, count):
    sort_victims(victims, count)


ORDERS = {
    "in order": lambda rows: rows,
    "nearly in order": lambda rows: np.roll(rows, 1),
    "reversed": lambda rows: rows[::-1],
    "shuffled": np.random.default_rng(3).permutation,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 11, 17, 40, 700])
def test_victims_are_sorted_whatever_their_order_was(count, order):
    dice, victims = np.random.default_rng(5), np.zeros(count + 2, THREATENED)
    given = list(zip(dice.integers(0, 3, count), dice.integers(0, 9, count), range(count), strict=True))
    given = [sorted(given)[at] for at in ORDERS[order](np.arange(count))]
    for name, column in zip(
        ("priority", "order_key", "running_index"), zip(*given, strict=True), strict=False
    ):
        victims[name][:count] = column
    victims["row"] = np.arange(count + 2)
    sort(victims, count)
    found = victims[:count][["priority", "order_key", "running_index"]].tolist()
    assert found == sorted(given)
    assert sorted(victims["row"][:count].tolist()) == list(range(count))  # entries move as a whole
    assert [given[row] for row in victims["row"][:count]] == sorted(given)
    assert victims["row"][count] == count  # what is behind them stays
