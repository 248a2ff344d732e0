"""The builders that users' own tests stand on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from berth.errors import InputError
from berth.schedule import Policy, PreemptByOrder, Rules, StaticOrder
from berth.testing import PolicyError, Scenario, check_policy, cluster, jobs
from berth.testing.repeat import main


def test_a_cluster_is_written_as_nested_lists():
    made = cluster([[4, 4], [8]])
    assert [tier.name for tier in made.tiers] == ["machine", "rack", "network"]
    assert made.sizes.tolist() == [4, 4, 8]
    assert made.groups.tolist() == [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    assert len(cluster(16).tiers) == 1
    assert len(cluster([[[2], [2]], [[2]]]).tiers) == 4


def test_machines_may_hold_several_types():
    made = cluster([{"V100": 4, "P100": 2}, {"P100": 2}])
    assert [kind.name for kind in made.device_types] == ["V100-16", "P100"]
    assert (made.count_of(0), made.count_of(1)) == (4, 4)


@pytest.mark.parametrize("text", [[[4, 4], 8], [[]], []])
def test_a_cluster_that_is_none_is_refused(text):
    with pytest.raises(InputError):
        cluster(text)


def test_jobs_are_named_by_their_number_and_may_have_a_model():
    trace = jobs([(0, 1, 10), (5, 2, 20, "vgg16")])
    assert trace.job_ids == ["j0", "j1"]
    assert trace.frame["model"].to_list() == [None, "vgg16"]


@dataclass(frozen=True)
class ShortestFirst(Policy):
    def rules(self):
        return Rules(order=StaticOrder(), preempt=PreemptByOrder())

    @staticmethod
    def order(job, now, params):
        return job.estimated_remaining_s


@pytest.mark.slow
def test_a_policy_that_keeps_the_rules_passes():
    run = check_policy(ShortestFirst(), jobs([(0, 4, 100), (10, 4, 20)]), cluster([4]))
    assert run.records["evictions"].tolist() == [1, 0]


def test_a_run_that_breaks_a_rule_is_reported(monkeypatch):
    from berth.testing import check

    def forget_the_end(run):
        run.log["tier"] = 0
        return audit(run)

    audit = check.audit
    monkeypatch.setattr(check, "audit", forget_the_end)
    with pytest.raises(PolicyError, match="its places are at level 1"):
        check_policy(ShortestFirst(), jobs([(0, 4, 100)]), cluster([2, 2]))


SCENARIO = Scenario([[4], [4]], ((0.0, 8, 10.0), (5.0, 1, 10.0, "vgg16")), "everything", network="on")


def test_a_scenario_survives_json():
    assert Scenario.from_json(SCENARIO.to_json()) == SCENARIO


def test_the_command_of_a_scenario_repeats_it(capsys):
    assert main([SCENARIO.to_json()]) == 0
    output = capsys.readouterr().out
    assert "m0:4 m1:4" in output
    assert output.endswith("6 events of 2 jobs counted again: everything adds up\n")
    assert main([]) == 2


@pytest.mark.slow
def test_the_printed_command_is_one_a_shell_understands():
    command = SCENARIO.command().replace("python", sys.executable, 1)
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "everything adds up" in result.stdout
