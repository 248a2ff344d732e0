"""What is more than the scheduler's records hold is refused with a message, whatever Python's options are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.schedule.policies.registry import load_policy
from berth.schedule.records import MAX_DEVICE_TYPES, MAX_TIERS
from berth.schedule.world import new_jobs, new_world
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs

TYPES = ["V100-16", "V100-32", "P100", "T4", "A100-40", "A100-80", "H100", "K80", "L4"]


def deep(tiers: int):
    nested = 2
    for _ in range(tiers - 1):
        nested = [nested]
    return cluster(nested)


def mixed(types: int):
    return cluster([{name: 1} for name in TYPES[:types]])


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("network", "maybe", "no network is called 'maybe'"),
        ("estimates", "maybe", "no choice of estimates is called 'maybe'"),
        ("eviction_s", -5, "eviction_s -5: can't be negative"),
        ("eviction_large_s", float("nan"), "eviction_large_s nan: must be finite"),
        ("checkpoint_s", -1.0, "checkpoint_s -1: can't be negative"),
        ("estimate_error", 1.0, "estimate_error 1: from 0 to below 1"),
        ("preemptible", 1.5, "preemptible 1.5: from 0 to 1"),
    ],
)
def test_a_setting_is_checked_in_the_words_of_the_command_line(field, value, says):
    with pytest.raises(InputError) as refused:
        Setting(**{field: value})
    assert str(refused.value).startswith(says)


def test_a_policy_may_be_given_as_text():
    run = simulate(jobs([(0, 1, 10)]), cluster([1]), "berth:order=las")
    assert (run.policy, run.unfinished) == ("berth:order=las", ())
    for wrong in (5, type(load_policy("fifo"))):
        with pytest.raises(InputError, match="is not a policy\n  pass an instance of one, or its text"):
            simulate(jobs([(0, 1, 10)]), cluster([1]), wrong)
    with pytest.raises(InputError, match="no policy is called 'brth'\n  did you mean 'berth'"):
        simulate(jobs([(0, 1, 10)]), cluster([1]), "brth")


@pytest.mark.parametrize("network", ["off", "on"])
def test_as_many_tiers_and_types_as_fit_are_scheduled(network):
    for machines in (deep(MAX_TIERS), mixed(MAX_DEVICE_TYPES)):
        run = simulate(jobs([(0, 1, 10)]), machines, load_policy("fifo"), Setting(network=network))
        assert run.unfinished == ()


@pytest.mark.parametrize("network", ["off", "on"])
@pytest.mark.parametrize(
    ("machines", "what"),
    [
        (deep(MAX_TIERS + 1), f"has 9 tiers; berth schedules on at most {MAX_TIERS}"),
        (mixed(MAX_DEVICE_TYPES + 1), f"has 9 device types; berth schedules on at most {MAX_DEVICE_TYPES}"),
    ],
)
def test_one_more_is_refused_by_name(machines, what, network):
    with pytest.raises(InputError, match=what) as refused:
        simulate(jobs([(0, 1, 10)]), machines, load_policy("fifo"), Setting(network=network))
    assert refused.value.hint
    with pytest.raises(InputError, match=what):  # as the live controller makes its world
        new_world(machines, load_policy("fifo"), new_jobs(1))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["simulate", "compare"])
def test_the_command_line_says_it_without_assertions_too(verb):
    assert len(load_cluster("1x1x1x1x1x1x1x1x1x1x2x4").tiers) == 12
    policies = ["--policy", "fifo", "--policy", "srtf"]
    line = [verb, "generate:jobs=5,span=1h", "--cluster", "1x1x1x1x1x1x1x1x1x1x2x4", *policies]
    result = subprocess.run(
        [sys.executable, "-O", "-m", "berth", *line], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "has 12 tiers; berth schedules on at most 8" in result.stderr
    assert "Traceback" not in result.stderr
