"""Whether the machines' ports carry what a plan sends between its stages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from berth.plan.build import Setup
from berth.plan.plan import Plan, Stage
from berth.units import format_bandwidth, format_bytes, format_rate

Port = tuple[float, int]  # bytes per second of a machine, and its devices of a type


def port_notes(setup: Setup, plan: Plan) -> list[str]:
    """Crossings that ask for more than the ports of the machines on one side have together.

    The model gives every unit a port of its own, but the units of one machine share theirs.
    """
    notes = []
    for one, other in pairwise(plan.stages):
        flow = float(setup.profile.cross_bytes[one.last]) / setup.profile.batch * plan.throughput
        for stage in (one, other):
            ports = _ports(setup, stage.type_name)
            if ports and flow > sum(rate for rate, _ in _packed(ports, stage.units)):
                notes.append(_port_note(plan, stage, one.last, flow, ports))
    return notes


def _port_note(plan: Plan, stage: Stage, layer: int, flow: float, ports: list[Port]) -> str:
    crossing = f"{format_bytes(flow)}/s cross behind {plan.problem.layers[layer]}"
    total, machines = 0.0, 0
    for rate, _ in ports[: stage.units]:
        total, machines = total + rate, machines + 1
        if total >= flow:
            spread = f"spread the {stage.units} {stage.type_name} over {machines} machines"
            return f"{crossing}, more than the ports of full machines carry: {spread}"
    own = min(rate / devices for rate, devices in ports)
    which = f"all {machines} machines of" if machines == len(ports) else f"{machines} machines for the"
    return (
        f"{crossing}, but {which} {stage.type_name} carry {format_bytes(total)}/s, which "
        f"feeds {format_rate(plan.throughput * total / flow)}: plan with --bandwidth {format_bandwidth(own)}, a unit's "
        "part of its machine's port"
    )


def _ports(setup: Setup, type_name: str) -> list[Port]:
    """Of each machine that has such devices, the best first."""
    if setup.cluster is None:
        return []
    index = next(at for at, kind in enumerate(setup.cluster.device_types) if kind.name == type_name)
    each, found = setup.cluster.tiers[-1].bytes_per_s, []
    for machine in setup.cluster.machines:
        here = sum(count for kind, count in machine.devices if kind == index)
        if here:
            found.append((min(each * here, machine.nic_bytes_per_s or each * here), here))
    return sorted(found, reverse=True)


def _packed(ports: list[Port], units: int) -> Iterator[Port]:
    """The ports in use when units fill one machine after the other."""
    for rate, devices in ports:
        if units > 0:
            yield rate, devices
        units -= devices
