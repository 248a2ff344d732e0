"""How fast a running job works on its placement, and how that changes as others come and go on its links."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.compile import kernel, step
from berth.network import compiled
from berth.network._flow_kernels import TREE
from berth.schedule.attempt import book, touch
from berth.schedule.view import Array, World
from berth.simulate.heap import update
from berth.simulate.view import OFF, SHARED, Course, Net

_communication_s, _flow, _overlapped_s = compiled.communication_s, compiled.flow, compiled.overlapped_s
_describe, _join, _leave = compiled.describe, compiled.join, compiled.leave


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
        volume = loads.max() if len(loads) else 0.0
        if volume > 0.0:
            _describe(
                net.flows, row, traffic.compute_s, traffic.forward, traffic.overlap, volume, sending + fixed
            )
            used = loads > 0
            changed = _join(net.shares, net.flows, net.loads, row, links[used], loads[used] / volume)
            follow(world, course, net, changed, now)
        return
    tree = traffic.algorithm == TREE
    comm = _communication_s(
        traffic.all_reduce, traffic.all_to_all, traffic.server, tree, machines, counts, net.fabric
    )
    job.speed = traffic.near_s / _overlapped_s(traffic.compute_s, comm, traffic.overlap, traffic.forward)


@step
def depart(world: World, course: Course, net: Net, row: int, now: float) -> None:
    """Take a gang off its links; the gangs it shared them with go on faster."""
    follow(world, course, net, _leave(net.shares, net.flows, net.loads, row), now)


@kernel
def follow(world: World, course: Course, net: Net, changed: Array, now: float) -> None:
    """Account for the work of jobs whose iterations changed, then let them go on at the new speed."""
    for row in changed:
        job = world.jobs[row]
        touch(job, now)
        book(job)
        kind = world.hosts[world.places[job.head].host].kind
        job.speed = course.traffic[job.traffic + kind].near_s / net.flows.seconds[row]
        if job.heap_at >= 0:
            job.finish = expected_end(job, now)
            update(world.jobs, course.heap, course.clock, row)


@kernel
def expected_end(job: Any, now: float) -> float:
    """When a running job ends at its present speed."""
    if job.speed <= 0:
        return math.inf
    return max(now, job.stall) + job.left / job.speed
