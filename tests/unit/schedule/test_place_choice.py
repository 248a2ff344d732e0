"""Which devices a gang takes, against a plain search over nested lists: every start of random runs.

The rule: the nearest tier at which some group holds the gang; there the group with fewest free devices, and of equal
ones that in the fuller parent. Inside a group whole children are filled, the emptiest first, and what is left goes to
the fullest child that holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from berth.schedule import Policy, Rules, StaticOrder
from berth.simulate.events import event_frame
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs


@dataclass(frozen=True)
class Anywhere(Policy):
    """First come, first served; a job that fits may overtake."""

    emptiest: bool = False

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), worst_fit=self.emptiest)


class Node:
    """A group of the cluster: a machine, a rack, and so on."""

    def __init__(self, text: Any, numbers: Any, parent: Node | None = None) -> None:
        self.parent, self.children = parent, []
        self.size = self.count = 0
        if isinstance(text, int):
            self.name, self.size, self.count = f"m{next(numbers)}", text, text
        else:
            self.children = [Node(child, numbers, self) for child in text]

    @property
    def free(self) -> int:
        return self.count if not self.children else sum(child.free for child in self.children)

    @property
    def tier(self) -> int:
        return 1 + self.children[0].tier if self.children else 0

    def groups(self, tier: int) -> list[Node]:
        """Groups of a tier inside this one, in their order."""
        if self.tier == tier:
            return [self]
        return [group for child in self.children for group in child.groups(tier)]

    def take(self, gpus: int, emptiest: bool) -> dict[str, int]:
        """Takes devices inside this group."""
        if not self.children:
            self.count -= gpus
            return {self.name: gpus}
        taken: dict[str, int] = {}
        while gpus:
            holding = [child for child in self.children if child.free >= gpus]
            if holding and not emptiest:
                child = min(holding, key=lambda one: one.free)
            else:
                child = max(self.children, key=lambda one: one.free)
            count = min(gpus, child.free)
            taken |= child.take(count, emptiest)
            gpus -= count
        return taken

    def place(self, gpus: int, emptiest: bool) -> dict[str, int]:
        """Takes the place that the rule names."""
        for tier in range(self.tier + 1):
            found = [group for group in self.groups(tier) if group.free >= gpus]
            if found and emptiest:
                return max(found, key=lambda group: group.free).take(gpus, emptiest)
            if found:
                above = [group.parent.free if group.parent else 0 for group in found]
                best = min(range(len(found)), key=lambda at: (found[at].free, above[at]))
                return found[best].take(gpus, emptiest)
        raise AssertionError(f"{gpus} devices do not fit")


def numbered(text: str) -> tuple[str, int]:
    machine, _, count = text.partition(":")
    return machine, int(count)


TREES = {
    "machines": [4, 4, 8, 2],
    "racks": [[4, 4], [8], [4, 2, 2]],
    "equal racks": [[4, 4, 4], [4, 4, 4], [4, 4, 4]],
    "halls": [[[4, 4], [4]], [[8, 2], [4, 4]]],
}


@pytest.mark.parametrize("emptiest", [False, True], ids=["fullest", "emptiest"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("seed", range(3))
def test_every_gang_of_a_random_run_is_where_the_rule_puts_it(tree, emptiest, seed):
    dice, whole = np.random.default_rng([seed, len(tree)]), Node(TREES[tree], iter(range(100)))
    sizes = [1, 1, 2, 3, 4, 5, 7, 11]
    rows = [
        (int(dice.integers(2000)), int(dice.choice(sizes)), int(dice.integers(20, 400))) for _ in range(80)
    ]
    setting = Setting(network="off", log=True)
    run = simulate(jobs(sorted(rows)), cluster(TREES[tree]), Anywhere(emptiest), setting)
    machines = {machine.name: machine for machine in whole.groups(0)}
    held: dict[str, dict[str, int]] = {}
    spread = 0
    for event, job, gpus, places in event_frame(run).select("event", "job", "gpus", "places").rows():
        if event == "started":
            held[job] = whole.place(gpus, emptiest)
            assert dict(map(numbered, places)) == held[job], job
            spread += len(held[job]) > 1
        elif event == "finished":
            for name, count in held.pop(job).items():
                machines[name].count += count
    assert spread > 10, "hardly any gang was spread: this would show little"
    assert whole.free == sum(machine.size for machine in machines.values())


def test_a_machine_that_is_down_is_left_out():
    # m0 would fit best; it is drained from the start.
    down = faults([(0, 0, "drain"), (1000, 0, "undrain")])
    run = simulate(
        jobs([(1, 2, 10), (2, 4, 10)]),
        cluster([2, 4, 8]),
        Anywhere(),
        Setting(network="off", log=True, faults=down),
    )
    log = event_frame(run)
    assert log.filter(log["event"] == "started")["places"].to_list() == [["m1:2"], ["m2:4"]]


TYPES = {
    # the nearest tier decides between types, and at the same tier the type that comes first: the fastest
    "the faster type": ([{"T4": 4}, {"H100": 4}], [4], [["m1:4"]]),
    "the slower one where the faster is taken": ([{"T4": 4}, {"H100": 4}], [4, 4], [["m1:4"], ["m0:4"]]),
    "one machine of the slower before two of the faster": (
        [{"T4": 4}, {"H100": 2}, {"H100": 2}],
        [4],
        [["m0:4"]],
    ),
    "two machines of the faster before two of the slower": (
        [{"T4": 2}, {"H100": 2}, {"H100": 2}, {"T4": 2}],
        [4],
        [["m1:2", "m2:2"]],
    ),
    "never both": ([{"T4": 3, "H100": 2}, {"T4": 1, "H100": 1}], [4], [["m0:3", "m1:1"]]),
}


@pytest.mark.parametrize("name", TYPES)
def test_of_several_types_a_gang_takes_one(name):
    machines, gangs, expected = TYPES[name]
    rows = [(number, gpus, 1000, "resnet50") for number, gpus in enumerate(gangs)]
    run = simulate(jobs(rows), cluster(machines), Anywhere(), Setting(network="off", log=True))
    log = event_frame(run)
    assert [sorted(where) for where in log.filter(log["event"] == "started")["places"].to_list()] == expected
