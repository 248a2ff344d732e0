"""Random clusters, traces, policies and faults, each run counted again from its log."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.schedule.policies.registry import policy_names
from berth.testing import Scenario
from berth.testing.policies import EXERCISES
from berth.testing.strategies import scenarios

pytestmark = pytest.mark.slow


def plays_out(scenario: Scenario) -> None:
    try:
        scenario.run()
    except Exception as error:
        error.add_note(f"repeat it with:\n{scenario.command()}")
        raise


COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


@given(scenarios())
@settings(max_examples=60, **COMMON)
def test_whatever_happens_everything_adds_up_and_happens_again(scenario):
    plays_out(scenario)


@pytest.mark.soak
@given(scenarios(st.sampled_from(sorted({*EXERCISES, *policy_names()}))))
@settings(max_examples=1500, **COMMON)
def test_the_same_with_many_more(scenario):
    plays_out(scenario)
