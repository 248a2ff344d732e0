"""How fast a running job works where it stands, and how that changes when others come and go on its links."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.compile import kernel, step
from berth.network import compiled
from berth.network._flow_kernels import TREE
from berth.network._sharing_kernels import add, remove
from berth.schedule.attempt import book, touch
from berth.schedule.view import Array, World
from berth.simulate.heap import update
from berth.simulate.view import OFF, SHARED, Course, Net

_communication_s, _flow, _overlapped_s = compiled.communication_s, compiled.flow, compiled.overlapped_s


@kernel
def placement(world: World, row: int) -> tuple[Array, Array]:
    """Machines and devices on each, as the network's kernels take them."""
    entry, size = world.jobs[row].head, 0
    while entry >= 0:
        size += 1
        entry = world.places[entry].next
    machines, counts = np.empty(size, np.int32), np.empty(size, np.int32)
    entry = world.jobs[row].head
    for i in range(size):
        machines[i] = world.hosts[world.places[entry].host].machine
        counts[i] = world.places[entry].count
        entry = world.places[entry].next
    return machines, counts


@step
def enter(world: World, course: Course, net: Net, row: int, now: float) -> None:
    """Sets the speed of a gang that has just taken its place, and of those it now shares links with."""
    job, clock = world.jobs[row], course.clock[0]
    course.flows[row].crosses = 0
    traffic = course.traffic[job.traffic + world.hosts[world.places[job.head].host].kind]
    job.compute = traffic.compute_s / traffic.near_s  # on these devices
    if clock.network == OFF or job.gpus == 1:
        job.speed = traffic.near_s / traffic.compute_s
        return
    machines, counts = placement(world, row)
    if clock.network == SHARED and len(machines) > 1:
        links, loads, sending, fixed = _flow(
            traffic.all_reduce,
            traffic.all_to_all,
            traffic.server,
            traffic.algorithm,
            machines,
            counts,
            net.fabric,
        )
        alone = _overlapped_s(traffic.compute_s, sending + fixed, traffic.overlap, traffic.forward)
        job.speed = traffic.near_s / alone
        join(world, course, net, row, links, loads, alone, now)
        return
    tree = traffic.algorithm == TREE
    comm = _communication_s(
        traffic.all_reduce, traffic.all_to_all, traffic.server, tree, machines, counts, net.fabric
    )
    job.speed = traffic.near_s / _overlapped_s(traffic.compute_s, comm, traffic.overlap, traffic.forward)


@kernel
def join(
    world: World, course: Course, net: Net, row: int, links: Array, loads: Array, alone: float, now: float
) -> None:
    """Brings a gang onto the links: it asks for its bytes per iteration, once per iteration."""
    volume = loads.max() if len(loads) else 0.0
    if volume <= 0.0:
        return
    flow = course.flows[row]
    flow.crosses, flow.volume, flow.alone_s = 1, volume, alone
    used = loads > 0
    changed = add(net.shares, row, links[used], loads[used] / volume, volume / alone)
    follow(world, course, net, changed, now)


@step
def depart(world: World, course: Course, net: Net, row: int, now: float) -> None:
    """A gang leaves the links; those it shared them with go on faster."""
    course.flows[row].crosses = 0
    follow(world, course, net, remove(net.shares, row), now)


@kernel
def follow(world: World, course: Course, net: Net, changed: Array, now: float) -> None:
    """Jobs whose share of a link changed: their work so far is booked, then they go on at the new speed."""
    for row in changed:
        job, flow = world.jobs[row], course.flows[row]
        touch(job, now)
        book(job)
        seconds = max(flow.alone_s, flow.volume / net.shares.rate[row])
        kind = world.hosts[world.places[job.head].host].kind
        job.speed = course.traffic[job.traffic + kind].near_s / seconds
        if job.heap_at >= 0:
            job.finish = expected_end(job, now)
            update(world.jobs, course.heap, course.clock, row)


@kernel
def expected_end(job: Any, now: float) -> float:
    """When a running job ends at its present speed."""
    if job.speed <= 0:
        return math.inf
    return max(now, job.stall) + job.left / job.speed
