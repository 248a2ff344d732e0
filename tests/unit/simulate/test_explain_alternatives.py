"""The explanation of a job with alternatives: what it could run as, which it took, and for which it waited."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from berth.cluster.load import load_cluster
from berth.report.simulation_story import print_story
from berth.schedule.policies.registry import load_policy
from berth.simulate.explain_job import explain_job
from berth.simulate.run import Setting
from berth.workload.reading import read_trace

SETTING = Setting(network="static", log=True)
CLUSTER = """\
tiers: [{name: machine, bandwidth: 100GB/s}, {name: rack, bandwidth: 10GB/s}, {name: network, bandwidth: 10GB/s}]
racks:
  - {name: a, machines: [{count: 2, devices: {A100-40: 4}}]}
  - {name: b, machines: [{count: 2, devices: {V100-16: 2, cpu-core: 8}}]}
"""


def part(name: str, **more: object) -> dict[str, object]:
    return {"name": name, **more}


ALTERNATIVES = [
    {
        "parts": [part("all", devices={"A100-40": 4})],
        "step": {"machine": "1s", "rack": "2s", "network": "2s"},
    },
    {
        "name": "spread out",
        "parts": [
            part("dense", devices={"V100-16": 2}, tier="machine"),
            part("rows", devices={"cpu-core": 4}),
        ],
        "step": "3s",
    },
    {"name": "huge", "parts": [part("all", devices={"H100": 8})], "step": "100ms"},
]
OFFER = {
    "job_id": "either",
    "submit_s": 10,
    "work": "100 steps",
    "deadline": "2h",
    "alternatives": ALTERNATIVES,
}


def gang(job_id: str, gpus: int, seconds: float, submit_s: float = 0.0) -> dict[str, object]:
    return {
        "job_id": job_id,
        "submit_s": submit_s,
        "num_gpu": gpus,
        "duration_s": seconds,
        "model": "resnet50",
    }


@pytest.fixture
def explained(tmp_path):
    """Explains the job `either` beside others; returns the story, the cluster and what is printed."""

    def run(*others, policy="fifo", offer=OFFER):
        (tmp_path / "cluster.yaml").write_text(CLUSTER)
        (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in (*others, offer)))
        machines = load_cluster(str(tmp_path / "cluster.yaml"))
        trace = read_trace(tmp_path / "jobs.jsonl", strict=True)
        story = explain_job(trace, machines, load_policy(policy), SETTING, "either", policy)
        out = Console(width=100, record=True, file=StringIO())
        print_story(out, story, policy, machines)
        return story, out.export_text()

    return run


def test_the_alternatives_are_listed_with_what_each_takes_and_costs_and_when_it_was_taken(explained):
    story, text = explained(gang("first", 1, 5.0))
    assert (story.gpus, story.model, story.work_s) == (None, None, None)
    assert str(story.work) == "100 steps"
    by_name = {one.name: one for one in story.alternatives}
    assert list(by_name) == ["4 A100-40", "spread out", "huge"]
    near, spread, never = by_name.values()
    assert (near.tier, near.step_s, near.run_s, near.starts_s) == ("machine", 1.0, 100.0, (10.0,))
    assert (spread.tier, spread.step_s, spread.run_s, spread.starts_s) == ("machine", 3.0, 300.0, ())
    assert spread.devices == {"V100-16": 2, "cpu-core": 4}
    assert near.usd is not None
    assert near.usd > 0.0
    assert never.run_s is None
    assert "H100" in str(never.never_fits)
    assert text.startswith("job either: 3 alternatives, policy fifo\n  100 steps to do\n")
    assert "a deadline of 2h after its submission, which it met" in text
    assert "2 V100-16 in one machine, 4 cpu-core" in text
    assert "huge never fits: part all asks for H100, and cluster has none" in text
    assert "starts as 4 A100-40 on " in text
    assert "is finished, after 1m40s there as 4 A100-40" in text


def test_a_wait_names_all_alternatives_where_none_has_enough_devices(explained):
    others = gang("a", 4, 100.0), gang("b", 4, 120.0), gang("c", 2, 200.0), gang("d", 2, 200.0)
    story, text = explained(*others)
    waited, started = story.chapters[:2]
    assert [one.reason.code for one in waited.because] == ["no-room"]
    assert (
        waited.because[0].reason.sentence
        == "too few devices are free for 4 A100-40 or spread out (2 V100-16 + 4 cpu-core)"
    )
    assert (started.what, started.shape) == ("started", "4 A100-40")
    assert "fewer than" not in text


def test_a_job_that_the_pass_does_not_reach_lacks_no_devices_where_one_alternative_has_them(explained):
    """Under fifo `large` blocks those behind it; four A100 are busy, but two V100 and cores are free."""
    others = gang("half", 4, 50.0), gang("more", 2, 100.0), gang("large", 8, 50.0, 5.0)
    story, _ = explained(*others)
    assert story.chapters[0].because[0].reason.code == "behind"


def test_a_wait_for_a_better_alternative_says_which(explained):
    others = gang("a", 4, 40.0), gang("b", 4, 500.0)
    story, text = explained(*others, policy="berth")
    reason = story.chapters[0].because[0].reason
    assert reason.code == "waits-for-shape"
    assert "spread out" in reason.sentence
    assert "4 A100-40" in reason.sentence
    assert [one.shape for one in story.chapters[1:]] == ["4 A100-40", "4 A100-40"]
    assert "could start now on spread out (2 V100-16 + 4 cpu-core)" in " ".join(text.split())


def test_what_was_free_is_counted_by_type(explained):
    story, text = explained(gang("a", 2, 1000.0))
    free = {(rack.name, rack.device): (rack.free, rack.devices) for rack in story.found}
    assert free == {("a", "A100-40"): (6, 8), ("b", "V100-16"): (4, 4), ("b", "cpu-core"): (16, 16)}
    assert "cpu-core" in text.split("Free just before")[1]


def test_a_job_with_one_shape_of_several_parts_waits_for_all_of_it(explained):
    one = {**OFFER, "alternatives": [ALTERNATIVES[1]]}
    others = gang("a", 4, 100.0), gang("b", 4, 100.0), gang("c", 2, 100.0), gang("d", 2, 200.0)
    story, _ = explained(*others, offer=one)
    assert story.chapters[0].because[0].reason.sentence == (
        "too few devices are free for spread out (2 V100-16 + 4 cpu-core)"
    )


def test_an_alternative_that_is_larger_than_the_cluster_never_fits(explained):
    larger = {"parts": [part("all", devices={"A100-40": 99})], "step": "1s"}
    story, text = explained(offer={**OFFER, "alternatives": [*ALTERNATIVES, larger]})
    assert story.alternatives[-1].never_fits == "it asks for 99 A100-40, and cluster has 8"
    assert "99 A100-40 never fits: it asks for 99 A100-40, and cluster has 8" in text
