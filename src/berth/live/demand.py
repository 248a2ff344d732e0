"""The demand of a job, in terms of one cluster: device types, tiers, and the key of its measured step times."""

from __future__ import annotations

from berth.cluster.gpus import usable_types
from berth.live.setup import Setup
from berth.live.spec import JobSpec


def device_types_of(setup: Setup, spec: JobSpec) -> tuple[int, ...]:
    """Return the indices of the device types that a job accepts: those it names, or any GPU."""
    wanted = [spec.kind] if spec.kind is not None else spec.any_of
    if wanted is None:
        return usable_types(setup.cluster)
    return tuple(index for index, name in enumerate(setup.device_type_names) if name in wanted)


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


def sensitivity_key(setup: Setup, spec: JobSpec) -> str:
    """Return the key of jobs that are assumed to have equal step times at equal tiers."""
    return f"{spec.name}/{spec.gpus}/{'+'.join(setup.device_type_names[kind] for kind in device_types_of(setup, spec))}"
