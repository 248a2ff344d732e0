"""The processes of an attempt: which ranks run on which machines and devices.

A gang has one process for each device or machine. A job with parts has the processes of its first part first; those
of a plan have the ranks that `berth train` expects: its stages in order, then its servers. Readers of a plan are
threads of the first stage. A part that holds no devices of its own, because the cluster does not list its device type
(CPU cores, on most), runs on the machines of the other parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from berth.live.backend import Member
from berth.live.job import Attempt, Seat
from berth.live.spec import JobSpec, shape_of
from berth.live.state import ControllerState
from berth.workload.shapes import Part, Shape

_SERVERS, _READERS = "servers-", "readers"  # parts of a plan: see plan/shape.py


def members_of(state: ControllerState, attempt: Attempt) -> tuple[Member, ...]:
    """Return the processes of an attempt, in rank order."""
    spec = state.jobs[attempt.job].spec
    names = [machine.name for machine in state.cluster.machines]
    shape = shape_of(spec, attempt.shape)
    places = _of_gang(spec, attempt.seats) if shape is None else _of_parts(shape, attempt.seats)
    found: list[Member] = []
    on_machine: dict[int, int] = {}
    for machine, devices, part in places:
        local = on_machine[machine] = on_machine.get(machine, -1) + 1
        found.append(Member(len(found), local, names[machine], devices, part))
    return tuple(found)


def plan_text(spec: JobSpec, name: str | None) -> str | None:
    """Return the plan of an alternative, as it was submitted; None if it has none."""
    shape = shape_of(spec, name)
    return None if shape is None or shape.plan_digest is None else spec.plans.get(shape.plan_digest)


Process = tuple[int, tuple[int, ...], str | None]  # machine, devices, part


def _of_gang(spec: JobSpec, seats: Sequence[Seat]) -> Iterator[Process]:
    on_machine: dict[int, list[int]] = {}
    for seat in seats:
        on_machine.setdefault(seat.machine, []).extend(seat.devices)
    for machine, devices in on_machine.items():
        if spec.per == "machine":
            yield machine, tuple(devices), None
        else:
            yield from ((machine, (device,), None) for device in devices)


def _of_parts(shape: Shape, seats: Sequence[Seat]) -> Iterator[Process]:
    machines = list(dict.fromkeys(seat.machine for seat in seats))
    for number, part in _in_rank_order(shape):
        own: list[tuple[int, tuple[int, ...]]] = [
            (seat.machine, (device,)) for seat in seats if seat.part == number for device in seat.devices
        ]
        if not own:
            own = [(machines[count % len(machines)], ()) for count in range(part.size)]
        for machine, devices in own:
            yield from ((machine, devices, part.name) for _ in range(part.processes))


def _in_rank_order(shape: Shape) -> list[tuple[int, Part]]:
    """Return the parts that have processes, with their numbers."""
    parts = list(enumerate(shape.parts))
    if shape.plan_digest is None:
        return parts
    runs = [one for one in parts if one[1].name != _READERS]
    return sorted(runs, key=lambda one: one[1].name.startswith(_SERVERS))
