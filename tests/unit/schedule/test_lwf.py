"""LWF's gate: over a link in use a gang starts only beside one other with a much larger message."""

from __future__ import annotations

from typing import Any

import pytest

from berth.schedule.policies.registry import load_policy
from berth.simulate.events import event_frame
from berth.simulate.explain_job import explain_job
from berth.simulate.run import Setting, simulate
from berth.testing import check_policy, cluster, jobs

# vgg16 sends five times what resnet50 does, and that four times what mobilenetv3 does. The first gang of four
# takes m0 and one device of m1, a second of five m2 and the rest of m1: both send over m1's link.
RACK = [3, 3, 3]


def starts(rows: list, machines: Any = None, policy: str = "lwf", **setting: Any) -> list[tuple[float, str]]:
    run = check_policy(load_policy(policy), jobs(rows), cluster(machines or RACK), Setting(**setting))
    log = event_frame(run)
    return log.filter(log["event"] == "started").select("time_s", "job").rows()


@pytest.mark.slow
def test_a_small_message_joins_a_large_one():
    rows = [(0, 4, 1000, "vgg16"), (10, 5, 10, "resnet50")]
    assert starts(rows)[1] == (10.0, "j1")


def test_a_message_as_large_waits_until_the_links_are_free():
    rows = [(0, 4, 1000, "vgg16"), (10, 5, 10, "vgg16")]
    (_, first), (time, second) = starts(rows)
    assert (first, second) == ("j0", "j1")
    assert time >= 1000.0
    assert starts(rows, policy="lwf:ratio=2")[1] == (10.0, "j1")


def test_a_third_never_joins():
    # j0 keeps m0 until 100 s; j1 and j2 both take a device of m2, and j3 would take the third.
    rows = [(0, 3, 100), (1, 4, 1000, "vgg16"), (10, 4, 1000, "resnet50"), (20, 4, 10, "mobilenetv3")]
    found = starts(rows, machines=[3, 3, 3, 3])
    assert found[:3] == [(0.0, "j0"), (1.0, "j1"), (10.0, "j2")]
    assert found[3][0] > 1000.0


def test_who_sends_nothing_or_over_other_links_does_not_wait():
    within = [(0, 4, 1000, "vgg16"), (10, 1, 10, "vgg16")]
    assert starts(within)[1] == (10.0, "j1")
    other_racks = [(0, 4, 1000, "vgg16"), (10, 4, 10, "vgg16")]
    assert starts(other_racks, machines=[[2, 2], [2, 2]])[1] == (10.0, "j1")


def test_without_a_network_there_are_no_links_to_wait_for():
    rows = [(0, 4, 1000, "vgg16"), (10, 5, 10, "vgg16")]
    assert starts(rows, network="off")[1] == (10.0, "j1")


def test_the_wait_is_explained():
    rows = jobs([(0, 4, 1000, "vgg16"), (10, 5, 10, "vgg16")])
    story = explain_job(rows, cluster(RACK), load_policy("lwf"), Setting(log=True), "j1", "lwf")
    (because,) = story.chapters[0].because
    assert because.reason.code == "links-busy"
    assert "other jobs send too much" in because.reason.sentence


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 9, 1000, "vgg16"), (10, 5, 10, "vgg16")],
        [(0, 8, 1000, "vgg16"), (10, 5, 10, "vgg16"), (10, 1, 500, "vgg16")],
    ],
    ids=["nothing is free", "something is, for another"],
)
def test_a_job_without_room_does_not_get_the_reason_links_busy(rows):
    story = explain_job(jobs(rows), cluster(RACK), load_policy("lwf"), Setting(log=True), "j1", "lwf")
    assert {because.reason.code for because in story.chapters[0].because} == {"no-room"}


@pytest.mark.parametrize("seed", range(3))
def test_no_job_shares_a_link_with_two_others_or_with_one_as_large(seed):
    # Counted from the log: at every start, who else crosses the same up-links.
    models = ["vgg16", "resnet50", "mobilenetv3", "bert-large"]
    rows, state = [], seed + 1
    for number in range(60):
        state = (1103515245 * state + 12345) % 2**31
        rows.append(
            (20.0 * number, 1 + state // 65536 % 9, 50.0 + state // 512 % 400, models[state // 99 % 4])
        )
    machines = cluster([[3, 3, 3], [4, 4], [2, 2, 2]])
    run = simulate(jobs(rows), machines, load_policy("lwf"), Setting(log=True))
    message = dict(zip(run.trace.job_ids, run.records["message_bytes"].tolist(), strict=True))
    crossing: dict[str, set[tuple[int, int]]] = {}
    joined = 0
    for event in event_frame(run).iter_rows(named=True):
        if event["event"] != "started":
            crossing.pop(event["job"], None)
            continue
        numbers = [int(place.split(":")[0][1:]) for place in event["places"]]
        groups = machines.groups[:, numbers]
        mine = {(level, int(g)) for level in range(2) if len(set(groups[level])) > 1 for g in groups[level]}
        for link in mine:
            others = [job for job, links in crossing.items() if link in links]
            assert len(others) <= 1
            assert all(message[event["job"]] < 0.5 * message[other] for other in others)
            joined += len(others)
        if mine:
            crossing[event["job"]] = mine
    assert joined > 0


def places(rows: list, machines: Any, policy: str) -> list[list[str]]:
    """Where each job started, in order of starts; without a network, so that no link holds a job back."""
    run = check_policy(load_policy(policy), jobs(rows), cluster(machines), Setting(network="off"))
    log = event_frame(run)
    return [sorted(one) for one in log.filter(log["event"] == "started")["places"].to_list()]


def on(*machines: int) -> list[str]:
    """A device of each machine, in the form of the log: several of one machine are one entry."""
    return sorted(f"m{machine}:{machines.count(machine)}" for machine in set(machines))


TWO_RACKS = [[4, 4], [4, 4]]


@pytest.mark.parametrize(
    ("policy", "pair", "four", "six"),
    [
        ("lwf", on(0, 0), on(1, 1, 1, 1), on(2, 2, 2, 2, 3, 3)),
        ("lwf:k=0", on(0, 0), on(1, 1, 1, 1), on(2, 2, 2, 2, 3, 3)),
        ("lwf:k=2", on(0, 1), on(2, 2, 2, 2), on(0, 0, 0, 1, 1, 1)),
        ("lwf:k=4", on(0, 1), on(0, 1, 2, 3), on(2, 2, 2, 3, 3, 3)),
        ("lwf:k=6", on(0, 1), on(0, 1, 2, 3), on(0, 1, 2, 2, 3, 3)),
    ],
)
def test_gangs_of_at_most_k_devices_are_scattered_over_the_emptiest_machines(policy, pair, four, six):
    rows = [(0, 2, 1000), (1, 4, 1000), (2, 6, 1000)]
    assert places(rows, TWO_RACKS, policy) == [pair, four, six]


def test_a_scattered_gang_stays_together_where_one_machine_is_far_emptier():
    rows = [(0, 3, 1000), (1, 2, 1000)]
    assert places(rows, [[2, 2, 8]], "lwf:k=2") == [on(2, 2, 2), on(2, 2)]


def test_a_scattered_gang_takes_what_is_left():
    rows = [(0, 7, 1000), (1, 5, 1000), (2, 4, 10)]
    first, second, third = places(rows, TWO_RACKS, "lwf:k=16")
    assert first == on(0, 0, 1, 1, 2, 2, 3)
    assert second == on(0, 1, 2, 3, 3)
    assert third == on(0, 1, 2, 3)
