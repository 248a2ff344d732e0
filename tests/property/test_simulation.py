"""Random clusters, traces, policies, quotas and faults, each run counted again from its log."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.testing import Scenario
from berth.testing.strategies import POLICIES, scenarios

pytestmark = pytest.mark.slow


def plays_out(scenario: Scenario) -> None:
    try:
        scenario.run()
    except Exception as error:
        error.add_note(f"repeat it with:\n{scenario.command()}")
        raise


COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_happens_everything_adds_up_and_happens_again(policy):
    @given(scenarios(st.just(policy)))
    @settings(max_examples=8, **COMMON)
    def whatever_happens(scenario):
        plays_out(scenario)

    whatever_happens()


@pytest.mark.soak
@given(scenarios())
@settings(max_examples=4000, **COMMON)
def test_the_same_with_many_more(scenario):
    plays_out(scenario)
