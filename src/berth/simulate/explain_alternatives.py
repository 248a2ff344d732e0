"""What a job of a simulation could have run as: its alternatives on the cluster, and when it took which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from berth.simulate.engine_state import Event
from berth.simulate.run import Run
from berth.workload.binding import UnfitError, bind, run_s
from berth.workload.shape_spec import part_to_dict
from berth.workload.shapes import Offer, Shape, devices_text


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative of a job, at the nearest place that the cluster has for it."""

    name: str
    parts: tuple[Mapping[str, Any], ...]  # as they are written in a trace
    devices: Mapping[str, int]
    tier: str | None = None  # the nearest that holds it; None: the cluster can never hold it
    step_s: float | None = None
    run_s: float | None = None  # for all of the work, alone
    usd: float | None = None  # for all of the work; None: its devices have no price
    starts_s: tuple[float, ...] = ()  # when the job took it
    never_fits: str | None = None  # why the cluster can never hold it


def alternatives_of(run: Run, row: int) -> tuple[Alternative, ...]:
    """The alternatives of a job in the order of its offer; none for a plain gang."""
    offer = run.trace.offers.get(str(run.trace.job_ids[row]))
    if offer is None:
        return ()
    starts = _starts(run, row)
    return tuple(_alternative(run, offer, shape, starts.get(shape, ())) for shape in offer.alternatives)


def name_and_devices(shape: Shape) -> str:
    """`fast (4 T4 + 8 cpu-core)`; a name that says how many devices of each type there are (`4 T4 + 8 cores`) alone."""
    counted = all(f"{count} " in shape.name for count in shape.devices.values())
    return shape.name if counted else f"{shape.name} ({devices_text(shape.devices)})"


def _alternative(run: Run, offer: Offer, shape: Shape, starts_s: Sequence[float]) -> Alternative:
    parts = tuple(part_to_dict(part) for part in shape.parts)
    try:
        bound = bind(shape, run.cluster)
    except UnfitError as error:
        why = error.what.removeprefix(f"{shape.name} ")
        never = why if why == error.what else f"it {why}"
        return Alternative(shape.name, parts, shape.devices, never_fits=never)
    seconds = run_s(offer, bound, bound.nearest_tier)
    usd = None if bound.usd_per_hour is None else bound.usd_per_hour * seconds / 3600.0
    return Alternative(
        shape.name,
        parts,
        shape.devices,
        run.cluster.tiers[bound.nearest_tier].name,
        bound.step_s[bound.nearest_tier],
        seconds,
        usd,
        tuple(starts_s),
    )


def _starts(run: Run, row: int) -> dict[Shape, list[float]]:
    """When the job took each shape: its starts, and changes while it ran."""
    found: dict[Shape, list[float]] = {}
    before = -1
    for entry in run.log[run.log["job"] == row]:
        what, shape = int(entry["what"]), int(entry["shape"])
        if what == Event.STARTED or (what == Event.MOVED and shape != before):
            found.setdefault(run.jobs.shapes.bound[shape].shape, []).append(float(entry["time"]))
        if what in (Event.STARTED, Event.MOVED):
            before = shape
    return found
