"""Bytes that a job puts on each link in one iteration. Plain functions, also run compiled (see compiled.py).

A phase is a part of an iteration in which everything sends at once: one stage of the ring, or one exchange.
`leaving[level, i]` is what machine i sends out of its group of that level during the phase. Phases follow
each other, so their bytes add up per link and their seconds add up too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.network._kernels import (
    exchange_latency_s,
    inside_ring_s,
    largest,
    nest,
    peak_rate,
    total,
    tree_latency_s,
    widest_tier,
)
from berth.network.fabric import FabricArrays

RING, HIERARCHICAL, TREE, FLAT = 0, 1, 2, 3


class Route(NamedTuple):
    """A placement in its nested form (see `_kernels`), and the links that it crosses."""

    machines: IntArray
    fan: IntArray
    within: IntArray
    top: int  # the nearest tier that holds all of it
    links: IntArray
    slots: IntArray  # [level, machine] -> the position of the machine's link among `links`
    net: FabricArrays


def flow(
    all_reduce: float,
    all_to_all: float,
    server: float,
    algorithm: int,
    machines: IntArray,
    counts: IntArray,
    net: FabricArrays,
) -> tuple[IntArray, FloatArray, float, float]:
    """Links, bytes on each, seconds these take on idle links, seconds that do not depend on links."""
    machines, fan, within = nest(machines, counts, net)
    top, n = widest_tier(fan), within[-1, 0]
    links, slots = _slots(machines, top, net)
    route = Route(machines, fan, within, top, links, slots, net)
    loads = np.zeros(len(links))
    sending, fixed = 0.0, 0.0
    if all_reduce > 0 and n > 1:
        sent, rest = _all_reduce(all_reduce, algorithm, route, loads)
        sending, fixed = sending + sent, fixed + rest
    if all_to_all > 0 and n > 1:
        sent, rest = _exchange(all_to_all, route, loads)
        sending, fixed = sending + sent, fixed + rest
    if server > 0 and n > 1:
        for _ in range(2):
            sent, rest = _exchange(server * (n - 1) / n, route, loads)
            sending, fixed = sending + sent, fixed + rest
    return links, loads, sending, fixed


def _all_reduce(volume: float, algorithm: int, route: Route, loads: FloatArray) -> tuple[float, float]:
    """A tree, one of the two rings, or (RING) the one that is faster on these links while no other job sends."""
    if algorithm == TREE:
        return _pipelined(volume, True, route, loads)
    nested = np.zeros(len(loads))
    sent, rest = _hierarchical(volume, route, nested)
    flat = np.zeros(len(loads))
    flat_sent, flat_rest = _pipelined(volume, False, route, flat)
    if algorithm == FLAT or (algorithm == RING and flat_sent + flat_rest < sent + rest):
        loads += flat
        return flat_sent, flat_rest
    loads += nested
    return sent, rest


def _slots(machines: IntArray, top: int, net: FabricArrays) -> tuple[IntArray, IntArray]:
    """The links that a placement crosses, and the position of each machine's link among them."""
    slots = np.empty((top, len(machines)), dtype=np.int32)
    links = np.empty(top * len(machines), dtype=np.int32)
    count = 0
    for level in range(top):
        for i in range(len(machines)):
            link = net.links[level, machines[i]]
            if i == 0 or link != net.links[level, machines[i - 1]]:
                links[count] = link
                count += 1
            slots[level, i] = count - 1
    return links[:count].copy(), slots


def _phase(leaving: FloatArray, route: Route, loads: FloatArray) -> float:
    """Adds a phase's bytes to the loads; the seconds that its most loaded link takes alone."""
    slots, links, net = route.slots, route.links, route.net
    own = np.zeros(len(links))
    for level in range(slots.shape[0]):
        for i in range(slots.shape[1]):
            own[slots[level, i]] += leaving[level, i]
    loads += own
    seconds = 0.0
    for slot in range(len(links)):
        if own[slot] > 0:
            seconds = max(seconds, own[slot] / net.capacity[links[slot]])
    return seconds


def _hierarchical(volume: float, route: Route, loads: FloatArray) -> tuple[float, float]:
    machines, fan, slots, net = route.machines, route.fan, route.slots, route.net
    sending, fixed = 0.0, inside_ring_s(volume, fan, net)
    share = np.ones(len(machines))
    for tier in range(1, route.top + 1):
        leaving = np.zeros(slots.shape)
        sent, done = 0.0, 0.0  # the last machine to have sent, and the last whose steps are over
        for i in range(len(machines)):
            n = fan[tier, i]
            for level in range(tier):
                leaving[level, i] = 2.0 * (n - 1) / n * volume / share[i]
            seconds = leaving[0, i] / peak_rate(machines[i], fan[0, i], tier, net)
            sent = max(sent, seconds)
            done = max(done, seconds + 2.0 * (n - 1) * net.latency_s[tier])
            share[i] *= n
        sent = max(sent, _phase(leaving, route, loads))
        sending += sent
        fixed += max(0.0, done - sent)
    return sending, fixed


def _pipelined(volume: float, tree: bool, route: Route, loads: FloatArray) -> tuple[float, float]:
    """A flat ring or a tree: the same bytes cross every link, once, for any number of machines behind it."""
    machines, fan, top, slots, net = route.machines, route.fan, route.top, route.slots, route.net
    n = total(fan[0])
    crossing = 2.0 * volume if tree else 2.0 * (n - 1) / n * volume
    fixed = tree_latency_s(fan, net) if tree else 2.0 * (n - 1) * net.latency_s[top]
    inside = crossing / net.busy[0] if largest(fan[0]) > 1 else 0.0
    if top == 0:
        return 0.0, inside + fixed
    behind = np.zeros(len(route.links))
    for level in range(top):
        for i in range(len(machines)):
            behind[slots[level, i]] += 1
    leaving = np.empty(slots.shape)
    slowest = inside
    for i in range(len(machines)):
        slowest = max(slowest, crossing / peak_rate(machines[i], fan[0, i], top, net))
        for level in range(top):
            leaving[level, i] = crossing / behind[slots[level, i]]
    return max(slowest, _phase(leaving, route, loads)), fixed


def _exchange(volume: float, route: Route, loads: FloatArray) -> tuple[float, float]:
    """An all-to-all; what stays inside the machines only counts where it takes longer than the rest."""
    machines, fan, within, slots, net = route.machines, route.fan, route.within, route.slots, route.net
    n = within[-1, 0]
    leaving = np.empty(slots.shape)
    sending = 0.0
    for i in range(len(machines)):
        for level in range(slots.shape[0]):
            leaving[level, i] = fan[0, i] * (volume * (n - within[level, i]) / (n - 1))
            if leaving[level, i] > 0:
                sending = max(sending, leaving[level, i] / peak_rate(machines[i], fan[0, i], level + 1, net))
    sending = max(sending, _phase(leaving, route, loads))
    inside = volume * (largest(fan[0]) - 1) / (n - 1) / net.busy[0]
    return sending, max(0.0, inside - sending) + exchange_latency_s(within, net)
