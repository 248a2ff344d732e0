"""Checks whether the NICs of the machines carry what a plan sends between its stages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from berth.cluster.model import Cluster
from berth.plan.plan import Plan, Stage
from berth.units import format_bandwidth, format_bytes, format_rate

Nic = tuple[float, int]  # bytes per second of a machine, and its devices of a type


def nic_notes(plan: Plan) -> list[str]:
    """Return a note for each crossing that needs more bandwidth than the NICs on one side have together.

    The cost model gives every device a NIC of its own, but the devices of one machine share one.
    """
    source = plan.problem.source
    if source is None or source.cluster is None:
        return []
    notes = []
    for one, other in pairwise(plan.stages):
        flow = float(source.profile.cross_bytes[one.last]) / source.profile.batch * plan.throughput
        for stage in (one, other):
            nics = _nics(source.cluster, stage.type_name)
            if flow > sum(rate for rate, _ in _used(nics, stage.replicas)):
                notes.append(_note(plan, stage, one.last, flow, nics))
    return notes


def _note(plan: Plan, stage: Stage, layer: int, flow: float, nics: list[Nic]) -> str:
    crossing = f"{format_bytes(flow)}/s cross after {plan.problem.layers[layer]}"
    total, machines = 0.0, 0
    for rate, _ in nics[: stage.replicas]:
        total, machines = total + rate, machines + 1
        if total >= flow:
            spread = f"spread the {stage.replicas} {stage.type_name} over {machines} machines"
            return f"{crossing}, more than the NICs of full machines carry: {spread}"
    own = min(rate / devices for rate, devices in nics)
    which = f"all {machines} machines of" if machines == len(nics) else f"{machines} machines for the"
    return (
        f"{crossing}, but {which} {stage.type_name} carry {format_bytes(total)}/s, which "
        f"feeds {format_rate(plan.throughput * total / flow)}: plan with --bandwidth {format_bandwidth(own)}, a "
        "device's share of its machine's NIC"
    )


def _nics(cluster: Cluster, type_name: str) -> list[Nic]:
    """Return the NIC of each machine with such devices, the fastest first."""
    index = next(at for at, device in enumerate(cluster.device_types) if device.name == type_name)
    each, found = cluster.tiers[-1].bytes_per_s, []
    for machine in cluster.machines:
        here = sum(count for device, count in machine.devices if device == index)
        if here:
            found.append((min(each * here, machine.nic_bytes_per_s or each * here), here))
    return sorted(found, reverse=True)


def _used(nics: list[Nic], replicas: int) -> Iterator[Nic]:
    """Yield the NICs in use when replicas fill one machine after the other."""
    for rate, devices in nics:
        if replicas > 0:
            yield rate, devices
        replicas -= devices
