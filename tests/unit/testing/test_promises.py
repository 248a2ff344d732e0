"""What a policy promises about its answers is checked, and berth's own policies keep it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from berth.errors import InputError
from berth.schedule.policies.registry import load_policy, policy_names
from berth.schedule.policy import Policy, Preempt, Rules
from berth.testing.policies import EXERCISES
from berth.testing.promises import check_promises

VARIANTS = ("berth:order=las", "dally:order=las", "dally:mode=tuned,machine=100s", "tiresias:starvation=2")


@pytest.mark.parametrize("name", [*policy_names(), *VARIANTS])
def test_policies_that_come_with_berth_keep_their_promises(name):
    assert check_promises(load_policy(name), 2).moments > 50


@pytest.mark.parametrize("name", EXERCISES)
def test_the_exercises_keep_their_promises(name):
    assert check_promises(EXERCISES[name], 1).moments > 20


@dataclass(frozen=True)
class NotSteady(Policy):
    def rules(self):
        return Rules(static_order=True)

    @staticmethod
    def order(job, now, params):
        return job.gpus - (now - job.queued_since_s) / 3600


@dataclass(frozen=True)
class KeysRise(Policy):
    def rules(self):
        return Rules(preempt=Preempt.BY_ORDER, monotone_order=True)

    @staticmethod
    def order(job, now, params):
        return job.attained_gpu_s


@dataclass(frozen=True)
class Unannounced(Policy):
    @staticmethod
    def allowed_tier(job, now, params):
        return job.widest_tier if now >= job.queued_since_s + 150.0 else job.nearest_tier


@dataclass(frozen=True)
class Counts(Policy):
    @staticmethod
    def order(job, now, params):
        job.notes[0] += 1.0
        return job.notes[0]


@dataclass(frozen=True)
class Announced(Unannounced):
    @staticmethod
    def wake(job, now, params):
        return job.queued_since_s + 150.0 if now < job.queued_since_s + 150.0 else math.inf


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (NotSteady(), ["NotSteady.order of job j", "when it was queued", "static_order=False"]),
        (KeysRise(), ["KeysRise.order of job j", "rose from", "monotone_order=False"]),
        (Unannounced(), ["Unannounced.allowed_tier of job j", "by itself", "wake"]),
        (Counts(), ["Counts.order of job j", "asked again", "same answer"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_promise_that_does_not_hold_is_reported_with_job_and_values(policy, words):
    with pytest.raises(InputError) as caught:
        check_promises(policy)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "test_promises.py:" in str(caught.value)


def test_a_change_that_wake_announces_is_allowed():
    assert check_promises(Announced()).scenarios == 6


def test_the_default_rules_promise_nothing():
    class Plain(Policy):
        checked: ClassVar[bool] = True

    assert Plain().rules() == Rules()
    assert not Rules().static_order
    assert not Rules().monotone_order
