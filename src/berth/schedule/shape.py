"""The shape of a gang over several machines: how many it stands on, and how small its smallest part is.

In a hierarchical all-reduce each machine sends 2 (n - 1) / n of the bytes to n - 1 others, divided among its m
devices of the gang, so the machine with fewest devices is the slowest. Ten devices as 5 + 5 exchange up to five
times faster than as 8 + 1 + 1. `thinness` is (n - 1) / (n m); what that costs a job is a line through three
measured or modelled points, `shape_x` and `shape_s` of its record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.compile import inlined, kernel
from berth.schedule.view import Array, World


@inlined
def thinness(machines: int, smallest: int) -> float:
    """0 on one machine, at most 1."""
    return (machines - 1) / (machines * smallest)


@inlined
def minds_shape(job: Any, tolerance: float) -> bool:
    """Whether the worst of its known shapes slows a job by more than it takes no notice of."""
    return job.shape_s[2] > 1.0 + tolerance


@kernel
def slow_by_shape(job: Any, x: float) -> float:
    """Slow-down of a gang of so much thinness, against the best shape on several machines."""
    if x <= job.shape_x[0]:
        return 1.0
    k = 1 if x <= job.shape_x[1] else 2
    width = job.shape_x[k] - job.shape_x[k - 1]
    if width <= 0.0:
        return job.shape_s[k]
    rise = (job.shape_s[k] - job.shape_s[k - 1]) / width
    return job.shape_s[k - 1] + rise * (x - job.shape_x[k - 1])


@kernel
def thinness_of(world: World, head: int) -> float:
    """Of places that are taken."""
    machines, smallest = 0, 1 << 30
    while head >= 0:
        machines += 1
        smallest = min(smallest, world.places[head].count)
        head = world.places[head].next
    return thinness(machines, smallest)


@kernel
def best_shape(free: Array, need: int) -> tuple[float, int, int]:
    """(thinness, smallest part, machines) of the best shape for a gang; 2, 0, 0 if there is none."""
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
        x = thinness(machines, part)
        if x < best:
            best, best_part, best_machines = x, part, machines
    return best, best_part, best_machines


@kernel
def free_of(world: World, kind: int, tier: int, group: int) -> Array:
    """Free devices of one type on each host of a group."""
    start, stop = world.groups[tier, group].start, world.groups[tier, group].stop
    free = np.zeros(stop - start, np.int64)
    for at in range(start, stop):
        if world.hosts[at].kind == kind:
            free[at - start] = world.hosts[at].free
    return free


@kernel
def roundest_at(world: World, kind: int, devices: int, tier: int) -> int:
    """The group of a tier in which a gang has the best shape, among equals the fullest; -1: none holds it."""
    best, best_x, best_free, at = -1, 2.0, 1 << 30, 0
    while at < len(world.hosts):
        number = world.hosts[at].group[tier]
        group = world.groups[tier, number]
        free = group.free[kind]
        if free >= devices:
            x, _, _ = best_shape(free_of(world, kind, tier, number), devices)
            if x < best_x or (x == best_x and free < best_free):
                best, best_x, best_free = number, x, free
        at = group.stop
    return best


@kernel
def shares(free: Array, need: int) -> Array:
    """Devices to take on each host for the best shape: the tightest set of hosts, filled up where it can be."""
    _, part, machines = best_shape(free, need)
    order = np.argsort(free, kind="mergesort")
    first = 0
    while free[order[first]] < part:
        first += 1
    while free[order[first : first + machines]].sum() < need:
        first += 1
    chosen = order[first : first + machines]
    taken = np.zeros(len(free), np.int64)
    taken[chosen] = part
    rest = need - machines * part
    for at in chosen:  # those with least room first, so that as many as can be are full
        more = min(rest, free[at] - part)
        taken[at] += more
        rest -= more
    return taken
