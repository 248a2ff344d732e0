"""Limits on who shares a link: on which links a gang sends, and beside which message it may start.

The tests write the messages of the jobs. Every machine and every rack has one uplink; a gang sends over those of the
groups that hold some of its devices and not all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from berth.schedule import Policy, Rules, StaticOrder
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs


@dataclass(frozen=True)
class FewShare(Policy):
    """First come, first served; a link is shared with one message at least `1 / ratio` times as large."""

    ratio: float = 0.5

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), link_ratio=self.ratio)


def starts(rows: list, messages: list[float], machines: Any, ratio: float = 0.5) -> list[float]:
    """When each job starts."""

    def set_messages(world: Any, clock: Any) -> int:
        for job, message_bytes in zip(world.jobs, messages, strict=True):
            job["message_bytes"] = message_bytes
        return 1_000_000

    setting = Setting(network="off")
    run = simulate(jobs(rows), cluster(machines), FewShare(ratio), setting, watch=set_messages)
    return run.records["first_start_s"].tolist()


# j0 takes m0 and one device of m1, j1 takes m2 and the others of m1: both send over the uplink of m1.
BESIDE = [(0, 4, 1000), (10, 5, 100)]


@pytest.mark.parametrize(
    ("messages", "ratio", "start_s"),
    [
        ([8, 3], 0.5, 10.0),
        ([8, 4], 0.5, 1000.0),  # half as large is not below half
        ([8, 5], 0.5, 1000.0),
        ([8, 4], 0.625, 10.0),
        ([8, 16], 2.5, 10.0),
        ([8, 0], 0.5, 10.0),  # sends nothing
        ([0, 9], 0.5, 10.0),  # the other sends nothing
    ],
)
def test_a_gang_starts_beside_a_message_so_much_larger_than_its_own(messages, ratio, start_s):
    assert starts(BESIDE, messages, [3, 3, 3], ratio) == [0.0, start_s]


def test_the_uplinks_are_free_again_when_the_gang_has_ended():
    """The third shares m1 with the second, which has begun when the first was gone."""
    rows = [(0, 4, 1000), (10, 5, 3000), (2000, 4, 100)]
    assert starts(rows, [8, 8, 3], [3, 3, 3]) == [0.0, 1000.0, 2000.0]


def test_a_gang_inside_one_machine_uses_no_uplink():
    """j0 lies on m0, and j1 takes the device beside it and those of m1."""
    assert starts([(0, 2, 1000), (10, 4, 100)], [8, 8], [3, 3]) == [0.0, 10.0]


@pytest.mark.parametrize(("message_bytes", "start_s"), [(3, 10.0), (4, 1000.0)])
def test_gangs_of_no_common_machine_share_the_uplink_of_a_common_rack(message_bytes, start_s):
    """j0 takes the first rack and m2, j1 the third rack and m3: both leave the second rack."""
    rows = [(0, 6, 1000), (10, 6, 100)]
    assert starts(rows, [8, message_bytes], [[2, 2], [2, 2], [2, 2]]) == [0.0, start_s]


def test_inside_one_rack_no_uplink_of_the_rack_is_used():
    """j0 takes m0 and m1, j1 m2 of that rack and the other rack: only j1 leaves it."""
    rows = [(0, 4, 1000), (10, 6, 100)]
    assert starts(rows, [8, 8], [[2, 2, 2], [2, 2]]) == [0.0, 10.0]


def test_a_gang_on_two_machines_of_a_rack_sends_once_over_its_uplink():
    """j0 takes the first rack, m3 and m4; j1 takes the third rack and m5. Over the second rack's uplink one sends."""
    rows = [(0, 10, 1000), (10, 6, 100)]
    assert starts(rows, [8, 3], [[2, 2, 2], [2, 2, 2], [2, 2]]) == [0.0, 10.0]


def test_two_gangs_on_a_link_are_joined_by_none():
    """j0 holds m0 and a device of m1, j1 m2 and another of m1; j2 is small, but would be the third there."""
    rows = [(0, 5, 1000), (10, 5, 2000), (20, 5, 100)]
    assert starts(rows, [80, 8, 0.1], [4, 3, 4, 4]) == [0.0, 10.0, 1000.0]
