"""Priority goes before every order, and does nothing else: equal priorities leave a run as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule import Policy, PreemptByGain, PreemptByOrder, Rules, StaticOrder
from berth.schedule.policies.registry import load_policy, policy_names
from berth.simulate.events import digest, event_frame
from berth.simulate.run import Setting, simulate
from berth.testing import cluster
from berth.testing.policies import ByGain
from berth.workload.trace import Trace

POLICIES = [*policy_names(), "dally:mode=tuned", "dally:order=las,machine=10m", "berth:order=las"]


def log_with(policy: str, priority: int | None) -> str:
    dice = np.random.default_rng(11)
    columns = {
        "job_id": [str(i) for i in range(90)],
        "submit_s": np.sort(dice.uniform(0, 9_000, 90)),
        "num_gpu": dice.choice([1, 2, 3, 4, 8, 12], 90),
        "duration_s": dice.uniform(60, 6_000, 90),
        "model": dice.choice(["vgg16", "resnet50", "bert-large", "mobilenetv3"], 90),
    }
    if priority is not None:
        columns["priority"] = np.full(90, priority)
    trace = Trace.from_columns(columns, source="test")
    setting = Setting(network="on", congestion=5.0, log=True)
    return digest(event_frame(simulate(trace, load_cluster("2x2x4"), load_policy(policy), setting)))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_priority_for_all_changes_nothing(policy):
    logs = {priority: log_with(policy, priority) for priority in (None, 0, 1, 10, 1000, 100_000, -5)}
    assert len(set(logs.values())) == 1, logs


def with_priorities(rows: list[tuple[float, int, float, int]]) -> Trace:
    arrivals, gpus, durations, priorities = zip(*rows, strict=True)
    columns = {
        "job_id": [f"j{number}" for number in range(len(rows))],
        "submit_s": arrivals,
        "num_gpu": gpus,
        "duration_s": durations,
        "priority": priorities,
    }
    return Trace.from_columns(columns, source="test")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_higher_priority_goes_before_the_policys_order(policy):
    # j1 is first by any order: it came first, is smallest and has attained nothing; j2 has the priority.
    trace = with_priorities([(0, 1, 2000, 9), (10, 1, 100, 0), (20, 1, 500, 1)])
    run = simulate(trace, cluster([1]), load_policy(policy), Setting(network="off", eviction_s=0.0))
    starts = run.records["first_start_s"]
    assert starts[0] == 0.0
    assert starts[2] < starts[1]


@dataclass(frozen=True)
class Huge(Policy):
    """Orders so far apart that no factor of the priority could reach over them."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByOrder(monotone_order=True))

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        return 1e300 if job.priority > 0 else -1e300


@pytest.mark.slow
def test_a_running_job_of_lower_priority_makes_way_whatever_its_order():
    trace = with_priorities([(0, 2, 100, 0), (10, 2, 50, 1)])
    run = simulate(trace, cluster([2]), Huge(), Setting(network="off", eviction_s=0.0))
    assert run.records["end_s"].tolist() == [150.0, 60.0]
    assert run.records["evictions"].tolist() == [1, 0]


@dataclass(frozen=True)
class ByRank(ByGain):
    """Moves the last in the order first."""

    def rules(self) -> Rules:
        rules = super().rules()
        assert isinstance(rules.preempt, PreemptByGain)
        return replace(rules, preempt=replace(rules.preempt, victims_by_order=True))


@pytest.mark.parametrize(
    ("priorities", "evictions"), [((0, 0), [0, 1]), ((0, 3), [1, 0]), ((3, 0), [0, 1]), ((-7, -6), [1, 0])]
)
def test_victims_of_a_gain_are_those_of_the_lowest_priority(priorities, evictions):
    # One of two single-device jobs must make way for the pair: the one of lower priority, then the later one.
    first, second = priorities
    trace = with_priorities([(0, 1, 5000, first), (1, 1, 5000, second), (900, 2, 500, 9)])
    run = simulate(trace, cluster([3]), ByRank(), Setting(network="off", eviction_s=0.0))
    assert run.records["evictions"].tolist() == [*evictions, 0]
