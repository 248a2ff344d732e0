"""How fast a running job works on its placement, and how that changes as others come and go on its links."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types

from berth.native.kernels import indirect, inlined, kernel, types_of
from berth.network._flow_kernels import TREE
from berth.network.compiled import communication_s, describe, flow, join, leave, overlapped_s
from berth.schedule.progress import advance_progress
from berth.schedule.records import Array, World, places_of
from berth.simulate.engine_state import EngineState, Net, NetworkMode
from berth.simulate.heap import update


class SpeedHooks(NamedTuple):
    """Called by address, so that without a network none of this is compiled."""

    enter: Any  # sets the speed of a gang that takes its place
    depart: Any  # updates the speeds of others when a gang leaves


def speed_hooks_for(world: World, engine: EngineState, net: Net, clock: Array) -> SpeedHooks:
    """Both functions; they do nothing where all devices are alike and nothing is sent."""
    signature = types.void(*types_of(world, engine, net), types.int64, types.float64)
    if clock["network"][0] == NetworkMode.OFF and clock["device_types"][0] == 1:
        return SpeedHooks(_nothing.pointer(signature), _nothing.pointer(signature))
    return SpeedHooks(enter.pointer(signature), depart.pointer(signature))


@indirect
def _nothing(world: World, engine: EngineState, net: Net, row: int, now: float) -> None:
    """Where nothing is sent, no speed changes."""


@kernel
def machines_of(world: World, row: int) -> tuple[Array, Array]:
    """Machines and devices on each, as the network's kernels take them."""
    first, size = world.jobs[row].first_place, 0
    for _ in places_of(world, first):
        size += 1
    machines, counts = np.empty(size, np.int32), np.empty(size, np.int32)
    for i, place in enumerate(places_of(world, first)):
        machines[i], counts[i] = world.hosts[place.host].machine, place.count
    return machines, counts


@inlined
def traffic_of(world: World, engine: EngineState, row: int) -> Any:
    """The traffic record of a running job on its devices."""
    job = world.jobs[row]
    return engine.traffic[job.traffic_row + world.hosts[world.places[job.first_place].host].device_type]


@indirect
def enter(world: World, engine: EngineState, net: Net, row: int, now: float) -> None:
    """Sets the speed of a gang that has just taken its place, and of those it now shares links with."""
    job, clock = world.jobs[row], engine.clock[0]
    if job.shape >= 0 and not world.shapes[job.shape].gang:
        job.speed = 1.0 / job.slowdown[job.tier]
        return
    traffic = traffic_of(world, engine, row)
    job.compute_share = traffic.compute_s / traffic.near_s  # on these devices
    if clock.network == NetworkMode.OFF or job.gpus == 1:
        job.speed = traffic.near_s / traffic.compute_s
        return
    machines, counts = machines_of(world, row)
    if clock.network == NetworkMode.SHARED and len(machines) > 1:
        links, loads, sending, fixed = flow(
            traffic.all_reduce,
            traffic.all_to_all,
            traffic.server,
            traffic.algorithm,
            machines,
            counts,
            net.fabric,
        )
        alone = overlapped_s(traffic.compute_s, sending + fixed, traffic.overlap, traffic.forward)
        job.speed = traffic.near_s / alone
        volume, used = 0.0, 0
        for load in loads:
            volume = max(volume, load)
        if volume > 0.0:
            for i in range(len(loads)):
                if loads[i] > 0:
                    links[used], loads[used] = links[i], loads[i] / volume
                    used += 1
            describe(
                net.flows, row, traffic.compute_s, traffic.forward, traffic.overlap, volume, sending + fixed
            )
            changed = join(net.shares, net.flows, net.loads, row, links[:used], loads[:used])
            follow(world, engine, net, changed, now)
        return
    tree = traffic.algorithm == TREE
    comm = communication_s(
        traffic.all_reduce, traffic.all_to_all, traffic.server, tree, machines, counts, net.fabric
    )
    job.speed = traffic.near_s / overlapped_s(traffic.compute_s, comm, traffic.overlap, traffic.forward)


@indirect
def depart(world: World, engine: EngineState, net: Net, row: int, now: float) -> None:
    """Takes a gang off its links; the gangs it shared them with go on faster."""
    follow(world, engine, net, leave(net.shares, net.flows, net.loads, row), now)


@kernel
def follow(world: World, engine: EngineState, net: Net, changed: Array, now: float) -> None:
    """Accounts for the work of jobs whose iterations changed, then lets them go on at the new speed."""
    for row in changed:
        job, account = world.jobs[row], engine.accounts[row]
        advance_progress(job, now)
        account_exposed_comm(job, account, job.gpus, 1.0)
        job.speed = traffic_of(world, engine, row).near_s / net.flows.seconds[row]
        if account.heap_index >= 0:
            account.finish_s = finish_time_of(job, now)
            update(engine, row)


@inlined
def account_exposed_comm(job: Any, account: Any, gpus: int, unit: float) -> None:
    """Adds what the network cost since this was last called; the speed has not changed in between.

    `gpus` are those that it held, `unit` the seconds of that shape in a second of the one its record describes.
    """
    worked = account.accounted_remaining_s - job.true_remaining_s * unit
    account.exposed_comm_gpu_s += worked * (1.0 / job.speed - job.compute_share) * gpus
    account.accounted_remaining_s = job.true_remaining_s


@kernel
def finish_time_of(job: Any, now: float) -> float:
    """When a running job finishes at its current speed."""
    if job.speed <= 0:
        return math.inf
    return max(now, job.restored_at_s) + job.true_remaining_s / job.speed
