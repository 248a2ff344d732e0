"""What a policy promises about its answers is checked, and berth's own policies keep it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from berth.errors import InputError
from berth.schedule import JobView, Policy, PreemptByGain, PreemptByOrder, Rules, StaticOrder
from berth.schedule.policies.registry import load_policy, policy_names
from berth.testing.policies import EXERCISES
from berth.testing.promises import check_promises

VARIANTS = ("berth:order=las", "dally:order=las", "dally:mode=tuned,machine=100s", "tiresias:starvation=2")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*policy_names(), *VARIANTS])
def test_policies_that_come_with_berth_keep_their_promises(name):
    assert check_promises(load_policy(name), 2).moments > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_the_exercises_keep_their_promises(name):
    assert check_promises(EXERCISES[name], 1).moments > 20


@dataclass(frozen=True)
class NotSteady(Policy):
    def rules(self):
        return Rules(order=StaticOrder())

    @staticmethod
    def order(job, now, params):
        return job.gpus - (now - job.queued_since_s) / 3600


@dataclass(frozen=True)
class KeysRise(Policy):
    def rules(self):
        return Rules(preempt=PreemptByOrder(monotone_order=True))

    @staticmethod
    def order(job, now, params):
        return job.attained_gpu_s


@dataclass(frozen=True)
class LaterByStarting(Policy):
    def rules(self):
        return Rules(preempt=PreemptByOrder())

    @staticmethod
    def order(job, now, params):
        return 1.0 if job.tier >= 0 else 0.0


@dataclass(frozen=True)
class Unannounced(Policy):
    @staticmethod
    def allowed_tier(job, now, params):
        return job.widest_tier if now >= job.queued_since_s + 150.0 else job.nearest_tier


@dataclass(frozen=True)
class Counts(Policy):
    class Job(JobView):
        calls: int

    @staticmethod
    def update(job, now, params):
        job.calls += 1

    @staticmethod
    def order(job, now, params):
        return job.calls


@dataclass(frozen=True)
class CostsByJob(Policy):
    def rules(self):
        return Rules(preempt=PreemptByGain(victims_by_order=True, cost_by_order=True))

    @staticmethod
    def order(job, now, params):
        return job.arrival_s

    @staticmethod
    def cost(victim, job, now, params):
        return 60.0 * job.gpus if victim.arrival_s > job.arrival_s else math.inf


@dataclass(frozen=True)
class CostsLater(CostsByJob):
    @staticmethod
    def cost(victim, job, now, params):
        return 60.0


@dataclass(frozen=True)
class CostsEquals(CostsByJob):
    """Also for jobs of the same order."""

    @staticmethod
    def cost(victim, job, now, params):
        return 60.0 if victim.arrival_s >= job.arrival_s else math.inf


@dataclass(frozen=True)
class CostsFew(CostsByJob):
    """Only for jobs that go far before it."""

    @staticmethod
    def cost(victim, job, now, params):
        return 60.0 if victim.arrival_s > 2.0 * job.arrival_s else math.inf


@dataclass(frozen=True)
class ByTotals(Policy):
    def rules(self):
        return Rules(order=StaticOrder())

    @staticmethod
    def order(job, now, params, cluster):
        return cluster.user_gpus


@dataclass(frozen=True)
class SinksUnannounced(Policy):
    """Moves a running job to the second queue, and no `wake` says when."""

    class Job(JobView):
        queue: int

    def rules(self):
        return Rules(preempt=PreemptByOrder(monotone_order=True))

    @staticmethod
    def update(job, now, params):
        job.queue = 1 if job.attained_gpu_s > 100.0 else 0

    @staticmethod
    def order(job, now, params):
        return job.queue


@dataclass(frozen=True)
class Announced(Unannounced):
    @staticmethod
    def wake(job, now, params):
        return job.queued_since_s + 150.0 if now < job.queued_since_s + 150.0 else math.inf


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (NotSteady(), ["NotSteady.order of job j", "when it was queued", "promises StaticOrder"]),
        (KeysRise(), ["KeysRise.order of job j", "rose from", "monotone_order=False"]),
        (Unannounced(), ["Unannounced.allowed_tier of job j", "by itself", "wake"]),
        (Counts(), ["Counts.update of job j", "sets calls to", "called again", "same state"]),
        (ByTotals(), ["ByTotals: an order by `cluster` is not static", "leave StaticOrder out of the rules"]),
        (CostsByJob(), ["CostsByJob.cost of job j", "which both go before it", "cost_by_order=False"]),
        (CostsLater(), ["CostsLater.cost of job j", "does not go before it", "cost_by_order=False"]),
        (CostsEquals(), ["CostsEquals.cost of job j", "does not go before it", "cost_by_order=False"]),
        (CostsFew(), ["CostsFew.cost of job j", "inf s for j", "which both go before it"]),
        (LaterByStarting(), ["LaterByStarting.order of job j", "is 1.0 once it runs, and 0.0", "go later"]),
        (SinksUnannounced(), ["SinksUnannounced.order of job j", "rose from", "monotone_order=False"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_promise_that_does_not_hold_is_reported_with_job_and_values(policy, words):
    with pytest.raises(InputError) as caught:
        check_promises(policy)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "test_promises.py:" in str(caught.value)


@pytest.mark.slow
def test_a_change_that_wake_announces_is_allowed():
    assert check_promises(Announced()).scenarios == 6


@dataclass(frozen=True)
class Stateless(NotSteady):
    """Functions that its rules say are not called."""

    def rules(self):
        return Rules(order=StaticOrder(), keeps_state=False)

    @staticmethod
    def order(job, now, params):
        return job.arrival_s

    @staticmethod
    def tie_break(job, now, params):
        return now - job.queued_since_s


def test_functions_that_are_never_called_break_no_promise():
    assert check_promises(Stateless(), 2).moments > 20


def test_the_default_rules_promise_nothing():
    class Plain(Policy):
        checked: ClassVar[bool] = True

    assert Plain().rules() == Rules()
    assert Rules().order is None
    assert not PreemptByOrder().monotone_order
