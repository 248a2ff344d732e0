"""The arithmetic of collectives. Plain functions, also run compiled (see compiled.py).

All kernels read a placement in its nested form: entry i is one of its machines, in depth-first order, and
  fan[0, i]     devices on the machine,
  fan[l, i]     groups of level l - 1 that the placement touches inside the machine's group of level l,
  within[l, i]  devices of the placement inside that group.
A stage at tier l moves bytes between groups of level l - 1. After the reduce-scatters below it, machine i
holds the 1 / (fan[1, i] * ... * fan[l-1, i]) part of the vector. docs/design/network.md has the formulas.
"""

from __future__ import annotations

import numpy as np

from berth.arrays import Int64Array, IntArray
from berth.network.fabric import FabricArrays
from berth.reproducible import power


def nest(machines: IntArray, counts: IntArray, net: FabricArrays) -> tuple[IntArray, IntArray, IntArray]:
    """The placement's machines in depth-first order, with `fan` and `within`."""
    tiers, size = net.groups.shape[0], len(machines)
    keys = np.empty(size, dtype=np.int64)
    for i in range(size):
        keys[i] = net.rank[machines[i]] * size + i
    sort(keys)
    sorted_machines = np.empty(size, dtype=machines.dtype)
    fan = np.empty((tiers, size), dtype=np.int32)
    within = np.empty((tiers, size), dtype=np.int32)
    for i in range(size):
        at = keys[i] % size
        sorted_machines[i] = machines[at]
        fan[0, i] = within[0, i] = counts[at]
    for tier in range(1, tiers):
        start = 0
        for stop in range(1, size + 1):
            here = net.groups[tier, sorted_machines[start]]
            if stop < size and net.groups[tier, sorted_machines[stop]] == here:
                continue
            children, devices = 1, within[0, start]
            for i in range(start + 1, stop):
                children += (
                    net.groups[tier - 1, sorted_machines[i]] != net.groups[tier - 1, sorted_machines[i - 1]]
                )
                devices += within[0, i]
            for i in range(start, stop):
                fan[tier, i], within[tier, i] = children, devices
            start = stop
    return sorted_machines, fan, within


def sort(values: IntArray | Int64Array) -> None:
    """Sorts whole numbers in place (Shell's method): numba takes seconds to compile np.sort or np.argsort."""
    gap = 1
    while 3 * gap < len(values):
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, len(values)):
            value, k = values[i], i
            while k >= gap and values[k - gap] > value:
                values[k] = values[k - gap]
                k -= gap
            values[k] = value
        gap //= 3


def largest(values: IntArray) -> int:
    """The largest of several numbers above 0: numba takes long to compile `values.max()`."""
    found = 0
    for value in values:
        found = max(found, value)
    return found


def total(values: IntArray) -> int:
    """The sum of several numbers: numba takes long to compile `values.sum()`."""
    found = 0
    for value in values:
        found += value
    return found


def widest_tier(fan: IntArray) -> int:
    """The nearest tier that holds the whole placement."""
    for tier in range(fan.shape[0] - 1, 0, -1):
        if largest(fan[tier]) > 1:
            return tier
    return 0


def busy_rate(machine: int, devices: int, tier: int, net: FabricArrays) -> float:
    """Bytes/s of `devices` devices of a machine together at a tier above it, all other devices sending too."""
    return float(min(devices * net.busy[tier], net.nic[machine] / net.oversubscription[tier]))


def peak_rate(machine: int, devices: int, tier: int, net: FabricArrays) -> float:
    """The same on an idle network."""
    return float(min(devices * net.peak[tier], net.nic[machine]))


def inside_ring_s(volume: float, fan: IntArray, net: FabricArrays) -> float:
    """Ring all-reduce inside the machines: the one with most devices is the slowest."""
    n = largest(fan[0])
    return float(2.0 * (n - 1) / n * volume / net.busy[0] + 2.0 * (n - 1) * net.latency_s[0])


def hierarchical_ring_s(volume: float, machines: IntArray, fan: IntArray, net: FabricArrays) -> float:
    """Reduce-scatter up the tiers, all-gather down; each stage waits for its slowest machine."""
    total = inside_ring_s(volume, fan, net)
    share = np.ones(len(machines))
    for tier in range(1, fan.shape[0]):
        stage = 0.0
        for i in range(len(machines)):
            n = fan[tier, i]
            if n > 1:
                rate = share[i] * busy_rate(machines[i], fan[0, i], tier, net)
                stage = max(stage, 2.0 * (n - 1) / n * volume / rate + 2.0 * (n - 1) * net.latency_s[tier])
            share[i] *= n
        total += stage
    return total


def narrowest_rate(machines: IntArray, fan: IntArray, net: FabricArrays) -> float:
    """The slowest step of a ring or tree through all devices that uses every device's link at once."""
    tier = widest_tier(fan)
    rate = net.busy[0] if largest(fan[0]) > 1 else np.inf
    if tier > 0:
        for i in range(len(machines)):
            rate = min(rate, busy_rate(machines[i], fan[0, i], tier, net))
    return rate


def flat_ring_s(volume: float, machines: IntArray, fan: IntArray, net: FabricArrays) -> float:
    """Rings through all devices, one channel per device: pipelined, so only the narrowest step counts."""
    n = total(fan[0])
    if n == 1:
        return 0.0
    latency = net.latency_s[widest_tier(fan)]
    return float(2.0 * (n - 1) / n * volume / narrowest_rate(machines, fan, net) + 2.0 * (n - 1) * latency)


def tree_s(volume: float, machines: IntArray, fan: IntArray, net: FabricArrays) -> float:
    """Two complementary binary trees: each device sends the vector up and down once; logarithmic latency."""
    if total(fan[0]) == 1:
        return 0.0
    return 2.0 * volume / narrowest_rate(machines, fan, net) + tree_latency_s(fan, net)


def tree_latency_s(fan: IntArray, net: FabricArrays) -> float:
    """Up and down a tree of trees: 2 log2(n) steps at each tier."""
    total = 0.0
    for tier in range(fan.shape[0]):
        steps, reached = 0, 1
        while reached < largest(fan[tier]):
            steps, reached = steps + 1, 2 * reached
        total += 2.0 * steps * net.latency_s[tier]
    return total


def all_reduce_s(volume: float, machines: IntArray, fan: IntArray, net: FabricArrays, tree: bool) -> float:
    """A tree, or the faster of the two rings."""
    if tree:
        return tree_s(volume, machines, fan, net)
    return min(hierarchical_ring_s(volume, machines, fan, net), flat_ring_s(volume, machines, fan, net))


def all_to_all_s(
    volume: float, machines: IntArray, fan: IntArray, within: IntArray, net: FabricArrays
) -> float:
    """Every device sends `volume` bytes, evenly to the others, all at once: the most loaded link decides."""
    devices = within[-1, 0]
    if devices == 1:
        return 0.0
    slowest = 0.0
    for i in range(len(machines)):
        slowest = max(slowest, volume * (fan[0, i] - 1) / (devices - 1) / net.busy[0])
        for tier in range(1, fan.shape[0]):
            leaving = fan[0, i] * (volume * (devices - within[tier - 1, i]) / (devices - 1))
            if leaving > 0:
                slowest = max(slowest, leaving / busy_rate(machines[i], fan[0, i], tier, net))
    return slowest + exchange_latency_s(within, net)


def exchange_latency_s(within: IntArray, net: FabricArrays) -> float:
    """One message to every other device, in turn; the device with the farthest peers is the slowest."""
    slowest = 0.0
    for i in range(within.shape[1]):
        total = (within[0, i] - 1) * net.latency_s[0]
        for tier in range(1, within.shape[0]):
            total += (within[tier, i] - within[tier - 1, i]) * net.latency_s[tier]
        slowest = max(slowest, total)
    return slowest


def server_s(volume: float, machines: IntArray, fan: IntArray, within: IntArray, net: FabricArrays) -> float:
    """Pull, then push, against servers sharded evenly over the job's own devices."""
    n = within[-1, 0]
    return 2.0 * all_to_all_s(volume * (n - 1) / n, machines, fan, within, net)


def communication_s(
    all_reduce: float,
    all_to_all: float,
    server: float,
    tree: bool,
    machines: IntArray,
    counts: IntArray,
    net: FabricArrays,
) -> float:
    """All that one iteration sends, one collective after the other; kinds without bytes cost nothing."""
    sorted_machines, fan, within = nest(machines, counts, net)
    total = 0.0
    if all_reduce > 0:
        total += all_reduce_s(all_reduce, sorted_machines, fan, net, tree)
    if all_to_all > 0:
        total += all_to_all_s(all_to_all, sorted_machines, fan, within, net)
    if server > 0:
        total += server_s(server, sorted_machines, fan, within, net)
    return total


def overlapped_s(compute: float, communication: float, overlap: float, forward: float) -> float:
    """f*c + (((1-f)*c)^y + comm^y)^(1/y): gradients travel behind the backward pass, forward hides nothing.

    The larger term is taken out, so that a large y neither over- nor underflows.
    """
    backward = (1.0 - forward) * compute
    large, small = max(backward, communication), min(backward, communication)
    if small == 0.0:
        return forward * compute + large
    if overlap == 1.0:
        return compute + communication
    return float(forward * compute + large * power(1.0 + power(small / large, overlap), 1.0 / overlap))
