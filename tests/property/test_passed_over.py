"""Jobs that a pass does not look at would not have started: a run that explains every wait decides the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from berth.schedule.policies.dally import Dally
from berth.schedule.policies.registry import load_policy
from berth.simulate.run import Setting, simulate
from berth.testing.builders import cluster, faults, jobs
from berth.testing.policies import EXERCISES
from berth.testing.strategies import POLICIES, scenarios

pytestmark = pytest.mark.slow

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


def explains_every_wait(world, clock):
    assert not world.walk[0]["segmented"]
    return 1 << 40


def decides_the_same(trace, machines, policy, setting):
    setting = replace(setting, log=True)
    full = simulate(trace, machines, policy, setting, watch=explains_every_wait)
    short = simulate(trace, machines, policy, setting)
    assert short.clock[0]["moments"] == full.clock[0]["moments"]
    for one, other in ((short.log, full.log), (short.log_places, full.log_places)):
        assert one.tobytes() == other.tobytes()
    for field in ("waited_s", "attained_gpu_s", "estimated_remaining_s", "end_s"):
        assert np.array_equal(short.records[field], full.records[field])
    return short


@given(scenarios())
@settings(max_examples=60, **COMMON)
def test_any_scenario_is_decided_as_if_every_job_were_looked_at(scenario):
    try:
        decides_the_same(
            jobs(scenario.jobs), cluster(scenario.cluster), scenario.named_policy(), scenario.setting()
        )
    except AssertionError as error:
        error.add_note(f"repeat it with:\n{scenario.command()}")
        raise


def crowd(seed, count=400):
    """Far more jobs than fit, most of them at once, of odd sizes, users and priorities."""
    dice = np.random.default_rng(seed)
    arrivals = np.sort(np.where(dice.random(count) < 0.7, 0.0, dice.uniform(0, 4000, count)))
    arrivals[0] = 0.0
    sizes = dice.choice([1, 1, 2, 2, 3, 4, 5, 8, 12, 16], count)
    seconds = np.exp(dice.uniform(np.log(20), np.log(2000), count))
    models = dice.choice(np.array([None, "vgg16", "bert-large", "mobilenetv3"], object), count)
    priorities = dice.choice([0] if seed % 2 else [-5, 0, 0, 50], count)
    return jobs(
        [
            (float(at), int(gpus), float(span), model, None, int(priority))
            for at, gpus, span, model, priority in zip(
                arrivals, sizes, seconds, models, priorities, strict=True
            )
        ]
    )


@pytest.mark.parametrize("name", POLICIES)
def test_a_crowd_is_decided_as_if_every_job_were_looked_at(name):
    policy = EXERCISES[name] if name in EXERCISES else load_policy(name)
    machines = cluster([[4, 4, 8], [4, 4, 8]])
    down = faults([(300, 1, "fail"), (900, 1, "repair"), (1200, 3, "drain"), (2000, 3, "undrain")])
    for seed in (0, 1):
        setting = Setting(network=("on", "static")[seed], congestion=5.0, faults=down, eviction_s=20.0)
        short = decides_the_same(crowd(seed), machines, policy, setting)
        segments = short.world.segments
        if short.world.walk[0]["segmented"]:
            assert (segments["count"] == 0).all()  # all have ended
            assert np.count_nonzero(segments["until_s"]) > 2, "the queue was never long"


@pytest.mark.parametrize("name", ["berth", "optimus", "srtf", "tiresias", "gandiva", "dally"])
def test_a_crowd_of_which_half_can_be_preempted_is_too(name):
    machines = cluster([[4, 4, 8], [4, 4, 8]])
    for seed in (6, 10, 12, 14):
        decides_the_same(crowd(seed, 200), machines, load_policy(name), Setting(preemptible=0.5))


@dataclass(frozen=True)
class PromisesNothing(Dally):
    """Is asked what each victim costs each job."""

    def rules(self):
        rules = super().rules()
        return replace(rules, preempt=replace(rules.preempt, cost_by_order=False))


HASTY = {
    "margin": 0.2,
    "min_run": 10.0,
    "budget": 60.0,
    "nearly_done": 200.0,
    "machine": 500.0,
    "rack": 500.0,
}


@pytest.mark.parametrize("seed", range(4))
def test_what_victims_cost_need_not_be_asked_again_for_every_job(seed):
    machines = cluster([[4, 4, 8], [4, 4, 8]])
    setting = Setting(network=("on", "static")[seed // 2], congestion=20.0, log=True, eviction_s=2.0)
    runs = [simulate(crowd(seed), machines, kind(**HASTY), setting) for kind in (Dally, PromisesNothing)]
    assert runs[0].clock[0]["evictions"] > 0
    assert runs[0].clock[0]["moments"] == runs[1].clock[0]["moments"]
    assert runs[0].log.tobytes() == runs[1].log.tobytes()
