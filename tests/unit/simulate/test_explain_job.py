"""The explanation of a job agrees with its records, and its reasons are true."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from berth.cluster.load import load_cluster
from berth.errors import UnknownNameError
from berth.report.simulation_story import print_story
from berth.schedule.policies.registry import load_policy
from berth.simulate.explain_job import explain_job
from berth.simulate.run import Setting
from berth.testing import cluster, faults, jobs
from berth.workload.trace import Trace


def trace_of(*rows):
    names = ("job_id", "submit_s", "num_gpu", "duration_s")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return Trace.from_columns({**columns, "model": ["resnet50"] * len(rows)}, source="test")


SETTING = Setting(network="off", log=True)


def test_a_job_that_waits_says_for_what_and_how_long():
    trace = trace_of(("big", 0.0, 8, 100.0), ("small", 10.0, 2, 50.0))
    story = explain_job(trace, load_cluster("1x1x8"), load_policy("fifo"), SETTING, "small", "fifo")
    waited, started, finished = story.chapters
    assert (waited.what, waited.seconds) == ("waited", 90.0)
    assert [(one.reason.code, one.seconds) for one in waited.because] == [("no-room", 90.0)]
    assert (started.time_s, started.places) == (100.0, (("r0-m0", 2),))
    assert (finished.time_s, story.jct_s) == (150.0, 140.0)
    assert story.found[0].free == 8


def test_a_job_behind_one_that_does_not_fit_says_so():
    trace = trace_of(("half", 0.0, 4, 100.0), ("whole", 1.0, 8, 10.0), ("behind", 2.0, 2, 10.0))
    story = explain_job(trace, load_cluster("1x1x8"), load_policy("fifo"), SETTING, "behind", "fifo")
    reasons = [(one.reason.code, one.seconds) for one in story.chapters[0].because]
    assert reasons == [("behind", 98.0), ("no-room", 10.0)]


def test_a_job_that_holds_out_for_a_machine_says_so():
    trace = trace_of(("a", 0.0, 5, 100.0), ("b", 1.0, 5, 40.0), ("near", 2.0, 6, 10.0))
    story = explain_job(trace, load_cluster("1x2x8"), load_policy("required"), SETTING, "near", "required")
    because = story.chapters[0].because
    assert [(one.reason.code, one.reason.tier, one.seconds) for one in because] == [
        ("too-spread", "machine", 39.0)
    ]


def test_who_made_way_and_who_took_the_place_name_each_other():
    trace = trace_of(("long", 0.0, 8, 1000.0), ("short", 10.0, 8, 10.0))
    cluster, policy = load_cluster("1x1x8"), load_policy("srtf")
    short = explain_job(trace, cluster, policy, SETTING, "short", "srtf")
    long = explain_job(trace, cluster, policy, SETTING, "long", "srtf")
    assert short.chapters[0].others == ("long",)
    evicted = next(one for one in long.chapters if one.what == "evicted")
    assert (evicted.time_s, evicted.seconds, evicted.others) == (10.0, 10.0, ("short",))
    again = next(one for one in long.chapters if one.what == "started" and one.time_s > 0)
    assert again.cost_s == pytest.approx(40.0 * 8)


@pytest.mark.slow
def test_the_reasons_of_every_wait_cover_it_exactly(busy_run):
    waits = np.argsort(-busy_run.records["waited_s"])[:3]
    for row in waits:
        job = busy_run.trace.job_ids[row]
        story = explain_job(
            busy_run.trace, busy_run.cluster, load_policy("srtf"), busy_run.setting, job, "srtf"
        )
        waited = [one for one in story.chapters if one.what == "waited"]
        assert sum(one.seconds for one in waited) == pytest.approx(float(busy_run.records["waited_s"][row]))
        for one in waited:
            assert sum(part.seconds for part in one.because) == pytest.approx(one.seconds)
            codes = [part.reason.code for part in one.because]
            assert len(set(codes)) == len(codes)


def test_a_job_can_be_named_by_its_number_and_an_unknown_one_is_refused():
    trace = trace_of(("a", 0.0, 1, 1.0), ("b", 5.0, 1, 1.0))
    cluster, policy = load_cluster("1x1x8"), load_policy("fifo")
    assert explain_job(trace, cluster, policy, SETTING, "#1", "fifo").job == "b"
    with pytest.raises(UnknownNameError, match="no job is called 'c'"):
        explain_job(trace, cluster, policy, SETTING, "c", "fifo")


def test_the_cost_of_distance_is_that_of_the_very_machines(busy_run):
    spread = np.flatnonzero((busy_run.records["moves"] == 0) & (busy_run.accounts["tier_gpu_s"][:, 2] > 0))
    job = busy_run.trace.job_ids[spread[0]]
    story = explain_job(busy_run.trace, busy_run.cluster, load_policy("srtf"), busy_run.setting, job, "srtf")
    starts = [one for one in story.chapters if one.what == "started"]
    widest = max(starts, key=lambda one: (one.tier == "network", len(one.places)))
    assert widest.slowdown >= float(busy_run.records["slowdown"][spread[0], 2]) * 0.999


def test_a_job_that_never_starts_has_a_story_too():
    down = faults([(5, 0, "fail")])
    setting = Setting(network="off", faults=down, log=True)
    trace = jobs([(0, 2, 50), (10, 4, 10)])
    story = explain_job(trace, cluster([4, 2]), load_policy("fit-first"), setting, "j1", "fit-first")
    (chapter,) = story.chapters
    assert (story.jct_s, chapter.what, chapter.time_s) == (None, "never started", 10.0)
    assert [because.reason.code for because in chapter.because] == ["no-room"]
    out = Console(width=80, record=True, file=StringIO())
    print_story(out, story, "fit-first", cluster([4, 2]))
    assert "never finishes" in out.export_text()


def test_a_story_in_the_terminal_has_whole_seconds():
    trace = trace_of(("big", 0.0, 8, 17.63), ("small", 10.0, 2, 4.59))
    story = explain_job(trace, load_cluster("1x1x8"), load_policy("fifo"), SETTING, "small", "fifo")
    out = Console(width=80, record=True, file=StringIO())
    print_story(out, story, "fifo", load_cluster("1x1x8"))
    text = out.export_text()
    assert "finished 12s after its submission; 8s of that it waited" in text
    assert "waits 8s" in text
    assert "is finished, after 5s there" in text


def test_a_policy_s_own_eviction_cost_is_the_one_that_is_shown():
    trace = trace_of(("a", 0.0, 8, 120.0), ("b", 0.0, 8, 120.0))
    story = explain_job(trace, load_cluster("1x1x8"), load_policy("gandiva"), SETTING, "a", "gandiva")
    assert [one.cost_s for one in story.chapters if one.what == "started"] == pytest.approx([0.0, 0.8, 0.8])
    assert story.lost_gpu_s == pytest.approx(1.6)


def test_the_cost_of_distance_is_that_of_the_devices_the_job_has():
    # Both machines have both types; the P100s stand first, and the gang has the V100s, whose type is larger.
    machines, setting = cluster([{"P100": 2, "V100-16": 4}] * 2), Setting(network="static", log=True)
    trace = jobs([(0, 8, 100, "vgg16")])
    story = explain_job(trace, machines, load_policy("fifo"), setting, "j0", "fifo")
    ran_s = story.chapters[-1].seconds
    assert story.chapters[0].slowdown == pytest.approx(ran_s / 100)


def test_no_job_is_said_to_be_behind_another_where_all_may_overtake():
    # Evicted at 10, it waits for a whole machine while half of one is free, and others could go first.
    trace = trace_of(("whole", 0.0, 8, 100.0), ("half", 10.0, 4, 20.0))
    story = explain_job(trace, load_cluster("1x1x8"), load_policy("srtf"), SETTING, "whole", "srtf")
    reported = [because.reason.code for one in story.chapters for because in one.because]
    assert reported == ["outranked"]
