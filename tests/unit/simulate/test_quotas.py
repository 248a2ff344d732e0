"""Quotas per virtual cluster: how they are written, what they hold back, and what is said about it."""

from __future__ import annotations

import pytest

from berth.errors import InputError
from berth.schedule.policies.registry import load_policy
from berth.simulate.audit import audit, check
from berth.simulate.events import event_frame
from berth.simulate.explain_job import explain_job
from berth.simulate.quotas import load_quotas
from berth.simulate.run import Setting, simulate
from berth.testing import check_policy, cluster, jobs


def starts(policy: str, rows: list, quotas: dict[str, int], machines: object = 8) -> list[tuple[float, str]]:
    setting = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0, quotas=quotas)
    rows = [(at, gpus, for_s, None, vc) for at, gpus, for_s, vc in rows]
    log = event_frame(check_policy(load_policy(policy), jobs(rows), cluster(machines), setting))
    return log.filter(log["event"] == "started").select("time_s", "job").rows()


def test_a_virtual_cluster_never_holds_more_than_its_quota():
    rows = [(0, 2, 100, "x"), (0, 2, 100, "x"), (0, 2, 100, "y"), (0, 2, 100, None)]
    assert starts("fit-first", rows, {"x": 3}) == [(0.0, "j0"), (0.0, "j2"), (0.0, "j3"), (100.0, "j1")]


def test_strict_order_holds_among_those_of_one_virtual_cluster_only():
    # j1 waits for x's quota: j2, of x too, may not pass it though it would fit; j3 may.
    rows = [(0, 3, 100, "x"), (1, 2, 10, "x"), (2, 1, 10, "x"), (3, 1, 10, "y")]
    assert starts("fifo", rows, {"x": 4}) == [(0.0, "j0"), (3.0, "j3"), (100.0, "j1"), (100.0, "j2")]


def test_nothing_is_held_for_who_waits_for_its_quota():
    # Devices are free for j1, but not for x. What it can't use is not kept from j2, which runs long.
    rows = [(0, 4, 100, "x"), (1, 4, 10, "x"), (2, 4, 500, "y")]
    for policy in ("easy", "berth:order=network,hold_after=0s,hold_share=9", "switches:wait=0s"):
        assert starts(policy, rows, {"x": 4})[1] == (2.0, "j2"), policy


def test_who_is_more_deserving_takes_its_own_kinds_place_in_the_quota():
    # Four devices are free; the shorter job of x takes the place of the longer in the quota, not on a device.
    rows = [(0, 4, 100, "x"), (0, 2, 300, "y"), (10, 2, 20, "x")]
    assert starts("srtf", rows, {"x": 4}) == [(0.0, "j0"), (0.0, "j1"), (10.0, "j2"), (30.0, "j0")]


def test_a_job_larger_than_its_quota_is_set_aside_and_named():
    trace = jobs([(0, 4, 10, None, "x"), (0, 9, 10, None, "x"), (0, 2, 10, None, "x")])
    run = simulate(
        trace, cluster([8]), load_policy("fifo"), Setting(network="off", quotas={"x": 2}, log=True)
    )
    assert (run.jobs.too_large, run.jobs.over_quota) == (("j1",), ("j0",))
    assert run.unfinished == ()
    assert audit(run).violations == ()


def test_the_audit_counts_quotas_itself():
    trace = jobs([(0, 2, 10, None, "x"), (0, 2, 10, None, "x")])
    run = simulate(trace, cluster([8]), load_policy("fifo"), Setting(network="off", log=True))
    strict = Setting(network="off", log=True, quotas={"x": 3})
    found = check(event_frame(run), run.cluster, trace, strict)
    assert [(one.rule, one.what) for one in found] == [("quota", "x holds 4 devices of 3")]


def test_the_reason_of_a_wait_names_the_quota():
    trace = jobs([(0, 3, 100, None, "x"), (10, 2, 10, None, "x")])
    setting = Setting(network="off", quotas={"x": 4}, log=True)
    story = explain_job(trace, cluster([8]), load_policy("fit-first"), setting, "j1", "fit-first")
    (because,) = story.chapters[0].because
    assert because.reason.code == "over-quota"
    assert because.reason.sentence == "its virtual cluster holds 3 of its 4 devices, and it asks for 2"
    assert (because.reason.quota.used, because.reason.quota.allowed) == (3, 4)


def test_quotas_are_written_out_or_in_a_file_and_the_written_ones_win(tmp_path):
    file = tmp_path / "quotas.yaml"
    file.write_text("quotas:\n  x: 4\n  y: 8\n")
    assert load_quotas(["x=2", "a=b=3"], file) == {"x": 2, "y": 8, "a=b": 3}


BAD = {
    "no number": (["x"], "is not a quota"),
    "no name": (["=3"], "is not a quota"),
    "nothing": (["x=0"], "not a number of devices above zero"),
    "a share": (["x=0.5"], "not a number of devices above zero"),
    "twice": (["x=1", "x=2"], "twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_quota_that_is_none_is_refused(name):
    texts, message = BAD[name]
    with pytest.raises(InputError, match=message):
        load_quotas(texts)


@pytest.mark.parametrize("text", ["quotas:\n  x: -3\n", "quotas:\n  x: many\n", "x: 3\n", "quotas: 3\n"])
def test_a_file_of_quotas_that_is_none_is_refused_with_its_line(tmp_path, text):
    file = tmp_path / "quotas.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"quotas\.yaml"):
        load_quotas([], file)


def test_a_quota_of_an_unknown_virtual_cluster_is_refused():
    trace = jobs([(0, 2, 10, None, "vision")])
    with pytest.raises(InputError, match="did you mean 'vision'"):
        simulate(trace, cluster([8]), load_policy("fifo"), Setting(network="off", quotas={"visoin": 3}))
    with pytest.raises(InputError, match="names no virtual clusters"):
        simulate(jobs([(0, 2, 10)]), cluster([8]), load_policy("fifo"), Setting(quotas={"x": 3}))
