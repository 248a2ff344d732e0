"""Every reason shown is true: after each pass the reasons are held against a count of what is really free."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.simulate.run import simulate
from berth.testing.builders import cluster, jobs
from berth.testing.scenario import Scenario
from berth.testing.strategies import scenarios
from berth.testing.validate import ReasonValidator

pytestmark = pytest.mark.slow

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


def all_reasons_are_true(scenario) -> ReasonValidator:
    policy = scenario.named_policy()
    validator = ReasonValidator(policy)
    try:
        run = simulate(
            jobs(scenario.jobs), cluster(scenario.cluster), policy, scenario.setting(), watch=validator
        )
    except AssertionError as error:
        error.add_note(f"repeat it with:\n{scenario.command()}")
        raise
    validator.run = run
    return validator


@given(scenarios())
@settings(max_examples=100, **COMMON)
def test_every_reason_is_true_when_it_is_given(scenario):
    all_reasons_are_true(scenario)


@pytest.mark.soak
@given(scenarios())
@settings(max_examples=1500, **COMMON)
def test_the_same_with_many_more(scenario):
    all_reasons_are_true(scenario)


@given(scenarios(policies=st.sampled_from(["backfill", "near-backfill", "easy"]), calm=True))
@settings(max_examples=60, **COMMON)
def test_who_is_passed_by_others_starts_no_later_than_was_promised(scenario):
    validator = all_reasons_are_true(scenario)
    for row, until in validator.promised.items():
        assert validator.run.records[row]["first_start_s"] <= until + 1e-6, scenario.command()


def test_a_place_is_held_for_a_job_that_has_waited_long_also_where_order_preempts():
    """At 201 s the first in order, a gang of two, has waited for more than 200 s; a job behind it could start."""
    rows = [(0.0, 1, 200.0), (0.0, 1, 205.0), (0.0, 2, 110.0), (0.0, 1, 230.0)]
    policy = "berth:hold_after=199s,hold_share=10,aging=100000d"
    one = Scenario(cluster=[[1, 1]], jobs=tuple(rows), policy=policy, network="off", preemptible=0.0)
    assert all_reasons_are_true(one).seen["held-for-other"] > 0


def test_room_that_is_reserved_for_the_job_itself_is_room():
    rows = [(0.0, 1, 10.0), (0.0, 1, 10.0), (0.0, 1, 10.0), (0.0, 1, 1.0), (0.0, 1, 201.0), (0.0, 4, 202.0)]
    waits = (0.0, 8, 1.0)  # at 201 s eight are free, four of them in the group that is reserved for it
    one = Scenario(cluster=[[[1, 1, 6], [4]]], jobs=(*rows, waits), policy="look-ahead", network="off")
    all_reasons_are_true(one)
