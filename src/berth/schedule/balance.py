"""How evenly a gang is spread over machines, and what an uneven spread costs it.

In a hierarchical all-reduce over n machines each sends 2 (n - 1) / n of the bytes, divided among its m devices of
the gang, so the machine with fewest devices is the slowest. Ten devices as 5 + 5 exchange up to five times faster
than as 8 + 1 + 1. The imbalance is (n - 1) / (n m) with the smallest m; what it costs a job is a line through three
measured or modelled points, `shape_imbalance` and `shape_slowdown` of its record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.native.kernels import inlined, kernel
from berth.schedule.records import Array, World, places_of


@inlined
def imbalance(machines: int, smallest: int) -> float:
    """The imbalance of a shape: 0 on one machine, at most 1."""
    return (machines - 1) / (machines * smallest)


@inlined
def sensitive_to_imbalance(world: World, job: Any) -> bool:
    """Whether the worst of its known shapes slows a job by more than the policy tolerates."""
    return job.shape_slowdown[2] > 1.0 + world.rules[0].imbalance_tolerance


@kernel
def slowdown_by_imbalance(job: Any, x: float) -> float:
    """Slowdown of a gang with imbalance x, against its best shape on several machines."""
    if x <= job.shape_imbalance[0]:
        return 1.0
    k = 1 if x <= job.shape_imbalance[1] else 2
    width = job.shape_imbalance[k] - job.shape_imbalance[k - 1]
    if width <= 0.0:
        return job.shape_slowdown[k]
    rise = (job.shape_slowdown[k] - job.shape_slowdown[k - 1]) / width
    return job.shape_slowdown[k - 1] + rise * (x - job.shape_imbalance[k - 1])


@kernel
def imbalance_of(world: World, claim: int) -> float:
    """The imbalance of places that are taken."""
    machines, smallest = 0, 1 << 30
    for place in places_of(world, claim):
        machines += 1
        smallest = min(smallest, place.count)
    return imbalance(machines, smallest)


@kernel
def best_shape(free: Array, need: int) -> tuple[float, int, int]:
    """(imbalance, smallest part, machines) of the best shape for a gang; 2, 0, 0 if there is none."""
    most = 0
    for count in free:
        most = max(most, count)
    having = np.zeros(most + 1, np.int64)
    for count in free:
        having[count] += 1
    best, best_part, best_machines = 2.0, 0, 0
    for part in range(min(most, need), 0, -1):
        machines, held, size = 0, 0, most
        while size >= part and held < need:
            taken = min(having[size], (need - held + size - 1) // size)
            machines, held, size = machines + taken, held + taken * size, size - 1
        if held < need or machines * part > need:
            continue
        x = imbalance(machines, part)
        if x < best:
            best, best_part, best_machines = x, part, machines
    return best, best_part, best_machines


@kernel
def free_per_host(world: World, device_type: int, tier: int, group: int) -> Array:
    """Free devices of one type on each host of a group."""
    start, stop = world.groups[tier, group].start, world.groups[tier, group].stop
    free = np.zeros(stop - start, np.int64)
    for at in range(start, stop):
        if world.hosts[at].device_type == device_type:
            free[at - start] = world.hosts[at].free
    return free


@kernel
def most_balanced_group(world: World, device_type: int, devices: int, tier: int) -> int:
    """The group of a tier in which a gang is spread most evenly, ties: the fullest; -1: none holds it."""
    best, best_x, best_free, at = -1, 2.0, 1 << 30, 0
    while at < len(world.hosts):
        number = world.hosts[at].group[tier]
        group = world.groups[tier, number]
        free = group.free[device_type]
        if free >= devices:
            x, _, _ = best_shape(free_per_host(world, device_type, tier, number), devices)
            if x < best_x or (x == best_x and free < best_free):
                best, best_x, best_free = number, x, free
        at = group.stop
    return best


@kernel
def balanced_shares(free: Array, need: int) -> Array:
    """Devices to take on each host for the best shape: the fullest set of hosts that allows it."""
    _, part, machines = best_shape(free, need)
    order = by_free_devices(free)
    first = 0
    while free[order[first]] < part:
        first += 1
    held = 0
    for k in range(first, first + machines):
        held += free[order[k]]
    while held < need:
        held += free[order[first + machines]] - free[order[first]]
        first += 1
    taken, rest = np.zeros(len(free), np.int64), need - machines * part
    for k in range(
        first, first + machines
    ):  # fewest free devices first, so that as many as possible are full
        at = order[k]
        more = min(rest, free[at] - part)
        taken[at] = part + more
        rest -= more
    return taken


@kernel
def by_free_devices(free: Array) -> Array:
    """Hosts by free devices, fewest first, ties in their order: a counting sort."""
    most = 0
    for count in free:
        most = max(most, count)
    following = np.zeros(most + 2, np.int64)  # by number of free devices: where the next such host goes
    for count in free:
        following[count + 1] += 1
    for count in range(1, most + 1):
        following[count] += following[count - 1]
    order = np.zeros(len(free), np.int64)
    for at in range(len(free)):
        order[following[free[at]]] = at
        following[free[at]] += 1
    return order


@kernel
def scattered_shares(free: Array, need: int) -> Array:
    """Devices to take of each host, one by one from the host with most free devices; ties: the first."""
    shares = np.zeros(len(free), np.int64)
    for _ in range(need):
        best = 0
        for k in range(len(free)):
            if free[k] - shares[k] > free[best] - shares[best]:
                best = k
        shares[best] += 1
    return shares
