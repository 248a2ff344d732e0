"""Look-ahead: the wait that a policy weighs is the exact time until a near place comes free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from berth.schedule import Policy, Rules, StaticOrder
from berth.simulate.run import Run, Setting, simulate
from berth.testing import check_policy, cluster, faults, jobs


@dataclass(frozen=True)
class Weighs(Policy):
    """Takes the nearest place; a farther one if the wait for that is longer than `longest_s`."""

    longest_s: float = 0.0
    widest: float = 9.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), relax_locality=True)

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        return 1 if wait > params.longest_s and tier <= params.widest else 0


def play(policy: Policy, rows: list, machines: Any, **setting: Any) -> Run:
    chosen = {"network": "off", "eviction_s": 40.0, **setting}
    return check_policy(policy, jobs(rows), cluster(machines), Setting(**chosen))


# One device of m0 and of m1 comes free at 100 s; m0's other at 400 s, m1's at 900 s.
SINGLES = [(0, 1, 100), (0, 1, 400), (0, 1, 100), (0, 1, 900)]


@pytest.mark.slow
@pytest.mark.parametrize(("longest_s", "start_s"), [(299.0, 100.0), (300.0, 400.0), (1e9, 400.0)])
def test_the_wait_is_until_enough_of_what_runs_in_one_machine_has_ended(longest_s, start_s):
    run = play(Weighs(longest_s), [*SINGLES, (0, 2, 50)], [2, 2])
    assert run.records["first_start_s"][4] == start_s


@pytest.mark.parametrize(("widest", "start_s"), [(1.0, 400.0), (2.0, 100.0)])
def test_the_policy_gets_the_tier_of_the_place(widest, start_s):
    # Racks of one machine each: one device of each is at the network's tier.
    run = play(Weighs(0.0, widest), [*SINGLES, (0, 2, 50)], [[2], [2]])
    assert run.records["first_start_s"][4] == start_s


@pytest.mark.parametrize(("longest_s", "start_s"), [(429.0, 70.0), (430.0, 500.0)])
def test_a_job_that_restores_is_expected_to_end_that_much_later(longest_s, start_s):
    # m0 fails at 20 s and is back at 60 s: j1 begins again, has restored at 100 s and ends at 500 s.
    rows = [(0, 1, 15), (0, 1, 400), (0, 1, 70), (0, 1, 5000), (40, 2, 50)]
    down = faults([(20, 0, "fail"), (60, 0, "repair")])
    run = play(Weighs(longest_s), rows, [2, 2], faults=down, checkpoint_s=0.0)
    assert run.records["end_s"][1] == 500.0
    # from 70 s on one device of each machine is free, and one machine from 500 s on
    assert run.records["first_start_s"][4] == start_s


def test_wrong_estimates_make_the_wait_as_wrong():
    """By estimates j1 and j3 end at another time; the policy weighs that, and what happens is the truth."""
    rows = [*SINGLES, (0, 2, 50)]
    setting = {"estimate_error": 0.5, "seed": 4}
    errors = play(Weighs(1e9), rows, [2, 2], **setting).records["estimate_error"]
    waits = [300 * errors[1], 800 * errors[3]]
    expected = min(waits)
    for longest_s, spreads in ((expected - 1e-6, True), (expected + 1e-6, False)):
        run = play(Weighs(longest_s), rows, [2, 2], **setting)
        assert run.records["first_start_s"][4] == (100.0 if spreads else 400.0)


def test_the_typical_service_is_a_geometric_mean_of_starts():
    services = [(1, 100.0), (2, 50.0), (4, 400.0), (1, 30.0)]
    rows = [(1000 * number, gpus, seconds) for number, (gpus, seconds) in enumerate(services)]
    state = simulate(jobs(rows), cluster([4]), Weighs(), Setting(network="off")).world.state[0]
    assert state["starts"] == 4
    assert state["typical_log_gpu_s"] == pytest.approx(
        np.mean(np.log([100.0, 100.0, 1600.0, 30.0])), rel=1e-12
    )
