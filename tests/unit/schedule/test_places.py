"""Which of the free places a gang takes: the one that leaves most room for others, unless the rules say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from berth.schedule import Policy, Rules, StaticOrder
from berth.simulate.events import event_frame
from berth.simulate.run import Setting
from berth.testing import check_policy, cluster, jobs


@dataclass(frozen=True)
class Anywhere(Policy):
    """First come, first served."""

    emptiest: float = 0.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), worst_fit=bool(self.emptiest))


def places(machines: object, gangs: list[int], emptiest: float = 0.0) -> list[list[str]]:
    """Where gangs go that come one after the other and stay."""
    rows = [(number, gpus, 1000) for number, gpus in enumerate(gangs)]
    run = check_policy(Anywhere(emptiest), jobs(rows), cluster(machines), Setting(network="off"))
    log = event_frame(run)
    return [sorted(where) for where in log.filter(log["event"] == "started")["places"].to_list()]


@pytest.mark.parametrize(
    ("machines", "gangs", "last"),
    [
        ([4, 4, 4], [3, 2, 2], ["m1:2"]),
        ([4, 4, 4], [3, 2, 1], ["m0:1"]),
        ([4, 4, 4], [3, 3, 2, 1, 1, 1], ["m2:1"]),
        ([[4, 4], [4, 4]], [3, 4], ["m1:4"]),
        ([[4, 4, 4], [4, 4]], [4], ["m3:4"]),
        ([[4, 4], [4, 4]], [3, 4, 5], ["m2:4", "m3:1"]),
        ([4, 4, 4], [1, 6], ["m0:2", "m1:4"]),
        ([[2, 2], [4, 4]], [1, 5], ["m2:4", "m3:1"]),
        ([[3, 3], [3, 3], [3, 3]], [2, 9], ["m1:3", "m2:3", "m3:3"]),
    ],
    ids=[
        "an exact fit",
        "the fullest machine that holds it",
        "what is left over",
        "of equal machines the one in the fuller rack",
        "or in the smaller rack",
        "one rack before two",
        "full machines, and the rest where it fits tightest",
        "the nearest tier before the fuller one",
        "full racks, and the rest where it fits tightest",
    ],
)
def test_a_gang_goes_where_it_breaks_up_least(machines, gangs, last):
    assert places(machines, gangs)[-1] == last


def test_by_other_rules_it_goes_where_most_is_free():
    assert places([4, 4, 4], [3, 2, 1], emptiest=1.0)[1:] == [["m1:2"], ["m2:1"]]
