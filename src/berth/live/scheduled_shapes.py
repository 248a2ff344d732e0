"""Jobs with alternatives in the scheduler's arrays: their shapes, the chosen one, and the devices of its parts.

Every job has rows of its own among the shapes, also if another job offers the same: so the arrays depend on the
records of the journal only, and not on which jobs a snapshot still knew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.cluster.model import Cluster
from berth.live.demand import fits_ever, requested
from berth.live.devices import Devices
from berth.live.job import Seat
from berth.schedule.records import SHAPE_NUMBERS, Array, World
from berth.schedule.shape_table import ShapeTable, write_offer
from berth.workload.binding import BoundShape, bind, device_index
from berth.workload.shapes import Offer, Part, Shape

Place = tuple[int, int, int, int]  # machine, device type, devices, tied part of the requested shape or -1


def bound_alternatives(offer: Offer, cluster: Cluster) -> tuple[BoundShape, ...]:
    """Return the alternatives that a cluster can ever hold, in its numbers."""
    return tuple(
        bind(requested(one, cluster), cluster) for one in offer.alternatives if fits_ever(one, cluster)
    )


def fewest_devices(bound: Sequence[BoundShape]) -> int:
    """Return the smallest number of devices with which a job can start."""
    return min((one.size for one in bound), default=1)


def with_offer(world: World, row: int, offer: Offer, bound: Sequence[BoundShape], cluster: Cluster) -> World:
    """Return the arrays with the shapes of a job, whose record describes the first of them."""
    record, table = world.jobs[row], ShapeTable()
    write_offer(record, table, offer, bound, cluster)
    record["first_shape"] += len(world.shapes)
    record["shape"] += len(world.shapes)
    shapes = table.shapes.copy()
    shapes["first_tied"] += len(world.tied)
    return world._replace(
        shapes=np.concatenate([world.shapes, shapes]), tied=np.concatenate([world.tied, table.tied])
    )


def without_other_shapes(world: World, rows: Sequence[int]) -> World:
    """Return the arrays with the shapes of these jobs only, in the order of the jobs."""
    shapes: list[Array] = [world.shapes[:0]]
    tied: list[Array] = [world.tied[:0]]
    for row in rows:
        record = world.jobs[row]
        if not record["shape_count"]:
            continue
        first, moved = int(record["first_shape"]), sum(map(len, shapes))
        for shape in world.shapes[first : first + int(record["shape_count"])].copy():
            ties = world.tied[shape["first_tied"] : shape["first_tied"] + shape["tied_count"]]
            shape["first_tied"] = sum(map(len, tied))
            shapes.append(np.array([shape], world.shapes.dtype))
            tied.append(ties)
        for name in SHAPE_NUMBERS:
            if record[name] >= 0:
                record[name] += moved - first
    return world._replace(shapes=np.concatenate(shapes), tied=np.concatenate(tied))


def part_seats(
    shape: Shape, asked: Shape, places: Sequence[Place], devices: Devices, cluster: Cluster
) -> tuple[Seat, ...]:
    """Return the devices of each part, given the places of a shape that was just placed.

    `asked`: the shape without the parts that come with machines. Parts that are tied to a tier have places of their
    own; the others share the rest, in the order of parts and machines.
    """
    pools: dict[tuple[int, int], list[int]] = {}
    for machine, kind in sorted({(place[0], place[1]) for place in places}):
        count = sum(place[2] for place in places if place[:2] == (machine, kind))
        pools[machine, kind] = list(devices.pick(machine, kind, count).devices)
    index = {part.name: number for number, part in enumerate(shape.parts)}
    taken: dict[tuple[int, int, int], list[int]] = {}  # part, machine, device type

    def take(part: Part, machine: int, kind: int, count: int) -> int:
        pool = pools[machine, kind]
        numbers = [pool.pop(0) for _ in range(min(count, len(pool)))]
        if numbers:
            taken.setdefault((index[part.name], machine, kind), []).extend(numbers)
        return len(numbers)

    for machine, kind, count, number in sorted(places):
        if number >= 0:
            take(asked.parts[number], machine, kind, count)
    own = {place[3] for place in places}
    for number, part in enumerate(asked.parts):
        for name, count in part.devices if number not in own else ():
            left = count
            for machine, kind in pools:
                if kind == device_index(cluster, name):
                    left -= take(part, machine, kind, left)
            assert not left, f"part {part.name} lacks {left} {name}"
    return tuple(
        Seat(machine, kind, tuple(numbers), part) for (part, machine, kind), numbers in sorted(taken.items())
    )


def tied_places(seats: Sequence[Seat], bound: BoundShape, shape: Shape) -> list[Place]:
    """Return the places of seats as the scheduler has them: those of untied parts joined."""
    names = [shape.parts[seat.part].name if seat.part is not None else "" for seat in seats]
    tied = {bound.shape.parts[one.part].name: one.part for one in bound.tied}
    counts: dict[tuple[int, int, int], int] = {}
    for seat, name in zip(seats, names, strict=True):
        key = seat.machine, seat.device_type, tied.get(name, -1)
        counts[key] = counts.get(key, 0) + len(seat.devices)
    return [(machine, kind, count, part) for (machine, kind, part), count in sorted(counts.items())]
