"""The ledger against a model that is too simple to be wrong: a dict of sets, counted anew each time."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from berth.cluster import Ledger
from berth.cluster.expand import expand
from berth.cluster.spec import ClusterSpec
from berth.errors import LedgerError

_machine = st.fixed_dictionaries(
    {
        "count": st.integers(1, 2),
        "devices": st.dictionaries(
            st.sampled_from(["T4", "V100", "cpu-core"]), st.integers(1, 3), min_size=1
        ),
    }
)


def _level(depth: int) -> st.SearchStrategy[dict]:
    if depth == 0:
        return st.fixed_dictionaries({"machines": st.lists(_machine, min_size=1, max_size=3)})
    group = st.tuples(st.integers(1, 2), _level(depth - 1)).map(lambda pair: {"count": pair[0], **pair[1]})
    return st.fixed_dictionaries({"groups": st.lists(group, min_size=1, max_size=2)})


clusters = st.integers(0, 2).flatmap(_level).map(lambda text: expand(ClusterSpec.model_validate(text), "any"))


class LedgerAgainstSets(RuleBasedStateMachine):
    @initialize(cluster=clusters)
    def build(self, cluster):
        self.cluster, self.ledger = cluster, Ledger(cluster)
        self.held: dict[int, list[int]] = {}
        self.shut: set[int] = set()

    def machine_of(self, device):
        return int(self.cluster.device_machine[device])

    def may_take(self, job, devices):
        taken = {device for gang in self.held.values() for device in gang}
        return (
            job not in self.held
            and len(set(devices)) == len(devices)
            and all(0 <= d < self.cluster.devices and d not in taken for d in devices)
            and all(self.machine_of(d) not in self.shut for d in devices)
        )

    @rule(job=st.integers(0, 6), data=st.data())
    def allocate(self, job, data):
        some = st.integers(-1, self.cluster.devices)
        free = [d for d in range(self.cluster.devices) if self.may_take(-2, [d])]
        sensible = (
            st.lists(st.sampled_from(free), min_size=1, max_size=6, unique=True) if free else st.nothing()
        )
        devices = data.draw(sensible | st.lists(some, min_size=1, max_size=6))
        before = self.ledger.snapshot()
        try:
            self.ledger.allocate(job, devices)
        except LedgerError:
            assert not self.may_take(job, devices)
            after = self.ledger.snapshot()
            assert before.gangs == after.gangs
            for name in ("holder", "following", "free", "shut"):
                assert np.array_equal(getattr(before, name), getattr(after, name))
        else:
            assert self.may_take(job, devices)
            self.held[job] = devices

    @precondition(lambda self: self.held)
    @rule(data=st.data(), undo=st.booleans())
    def release(self, data, undo):
        job = data.draw(st.sampled_from(sorted(self.held)))
        if undo:
            removal = self.ledger.remove(job)
            assert removal.devices.tolist() == self.held[job]
            removal.undo()
        else:
            assert self.ledger.release(job).tolist() == self.held.pop(job)

    @rule(data=st.data(), action=st.sampled_from(["drain", "fail", "undrain"]))
    def change_machine(self, data, action):
        machine = data.draw(st.integers(0, len(self.cluster.machines) - 1))
        hit = getattr(self.ledger, action)(machine)
        if action == "undrain":
            self.shut.discard(machine)
            return
        self.shut.add(machine)
        if action == "fail":
            gangs = self.held.items()
            assert hit == tuple(
                sorted(j for j, gang in gangs if any(self.machine_of(d) == machine for d in gang))
            )

    @rule()
    def try_something_and_go_back(self):
        snapshot = self.ledger.snapshot()
        for job in self.ledger.jobs:
            self.ledger.release(job)
        self.ledger.undrain(0)
        self.ledger.restore(snapshot)

    @invariant()
    def holders_agree(self):
        assert set(self.ledger.jobs) == set(self.held)
        for job, devices in self.held.items():
            assert self.ledger.devices_of(job).tolist() == devices
            assert set(np.flatnonzero(self.ledger.holder == job).tolist()) == set(devices)

    @invariant()
    def every_count_equals_a_recount(self):
        taken = {device for gang in self.held.values() for device in gang}
        free = [
            d for d in range(self.cluster.devices) if d not in taken and self.machine_of(d) not in self.shut
        ]
        for level, names in enumerate(self.cluster.group_names):
            for kind in (None, *range(len(self.cluster.device_types))):
                expected = [0] * len(names)
                for device in free:
                    if kind in (None, self.cluster.device_type[device]):
                        expected[self.cluster.groups[level][self.machine_of(device)]] += 1
                assert self.ledger.free_by(level, kind).tolist() == expected
        self.ledger.audit()

    @invariant()
    def tiers_agree(self):
        for devices in self.held.values():
            machines = [self.machine_of(device) for device in devices]
            spans = [len({int(row[machine]) for machine in machines}) for row in self.cluster.groups]
            assert self.ledger.tier_of(devices) == spans.index(1)


LedgerAgainstSets.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLedgerAgainstSets = LedgerAgainstSets.TestCase
