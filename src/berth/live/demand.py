"""The demand of a job, in terms of one cluster: device types, tiers, and the key of its measured step times."""

from __future__ import annotations

from dataclasses import replace

from berth.cluster.catalogue import known_devices, resolve
from berth.cluster.gpus import usable_types
from berth.cluster.model import Cluster
from berth.errors import SpecError, UnknownNameError
from berth.live.setup import Setup
from berth.live.spec import JobSpec
from berth.workload.binding import BoundShape, UnfitError, bind, bind_offer, device_index
from berth.workload.shapes import Offer, Part, Shape


def device_types_of(setup: Setup, spec: JobSpec) -> tuple[int, ...]:
    """Return the indices of the device types that a job accepts: those it names, or any GPU."""
    if spec.offer is not None:
        names = {name for shape in spec.offer.alternatives for name in shape.devices}
        found = (device_index(setup.cluster, name) for name in sorted(names))
        return tuple(index for index in found if index is not None)
    wanted = [spec.kind] if spec.kind is not None else spec.any_of
    if wanted is None:
        return usable_types(setup.cluster)
    named = {type_index(setup, name) for name in wanted}
    return tuple(sorted(index for index in named if index is not None))


def type_index(setup: Setup, name: str) -> int | None:
    """Return the index of a device type by its name or, as in plans and cluster files, an alias; None if unknown."""
    names = setup.device_type_names
    return names.index(name) if name in names else device_index(setup.cluster, name)


def tier_range_of(setup: Setup, spec: JobSpec) -> tuple[int, int]:
    """Return (nearest tier worth waiting for, farthest allowed) of a job; the last tier if it fits nowhere."""
    nearest, last = nearest_tier_of(setup, spec), len(setup.tiers) - 1
    if nearest is None:
        return last, last
    widest = _level(setup, spec.required, last)
    return min(max(nearest, _level(setup, spec.preferred, nearest)), widest), widest


def _level(setup: Setup, tier: str | None, otherwise: int) -> int:
    """Return the level of a tier; `otherwise` if the cluster does not have it any more."""
    return setup.tiers.index(tier) if tier in setup.tiers else otherwise


def fits(setup: Setup, spec: JobSpec) -> bool:
    """Return whether the cluster can ever hold the job within its required tier."""
    if spec.offer is not None:
        return any(fits_ever(shape, setup.cluster) for shape in spec.offer.alternatives)
    nearest = nearest_tier_of(setup, spec)
    if nearest is None:
        return False
    return spec.required is None or nearest <= _level(setup, spec.required, -1)


def nearest_tier_of(setup: Setup, spec: JobSpec) -> int | None:
    """Return the nearest tier with a group that can ever hold the job; None if there is none."""
    kinds = device_types_of(setup, spec)
    for level, largest in enumerate(setup.largest):
        if any(spec.gpus <= largest[kind] for kind in kinds):
            return level
    return None


def fits_ever(shape: Shape, cluster: Cluster) -> bool:
    """Return whether a cluster can ever hold a shape; one that names tiers of another cluster does not fit."""
    try:
        bind(requested(shape, cluster), cluster)
    except (UnfitError, UnknownNameError, SpecError):
        return False
    return True


def requested(shape: Shape, cluster: Cluster) -> Shape:
    """Return a shape without the parts that come with the machines of the others.

    These are parts on CPU cores where the cluster lists no such device type: Slurm, Ray and most files list GPUs only.
    """
    kept = tuple(part for part in shape.parts if not _comes_with_machines(part, cluster))
    return replace(shape, parts=kept or shape.parts)


def _comes_with_machines(part: Part, cluster: Cluster) -> bool:
    return all(_is_cpu(name) and device_index(cluster, name) is None for name, _ in part.devices)


def _is_cpu(name: str) -> bool:
    key = resolve(name)
    return key is not None and known_devices()[key].device.kind == "cpu"


def bind_requested(offer: Offer, cluster: Cluster) -> tuple[BoundShape, ...]:
    """Return the alternatives of a job in the numbers of a cluster; refuse those that it can never hold."""
    shapes = tuple(requested(shape, cluster) for shape in offer.alternatives)
    return bind_offer(replace(offer, alternatives=shapes), cluster)


def sensitivity_key(setup: Setup, spec: JobSpec) -> str:
    """Return the key of jobs that are assumed to have equal step times at equal tiers."""
    if spec.offer is not None:
        return f"{spec.name}/{'+'.join(shape.name for shape in spec.offer.alternatives)}"
    return f"{spec.name}/{spec.gpus}/{'+'.join(setup.device_type_names[kind] for kind in device_types_of(setup, spec))}"
