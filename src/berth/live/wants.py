"""What a job asks for, in the numbers of one cluster: kinds of devices, tiers, and what it is known by."""

from __future__ import annotations

from berth.live.setup import Setup
from berth.live.spec import JobSpec


def kinds_of(setup: Setup, spec: JobSpec) -> tuple[int, ...]:
    """The device types a job takes, as the cluster numbers them."""
    wanted = [spec.kind] if spec.kind is not None else spec.any_of
    return tuple(index for index, name in enumerate(setup.kinds) if wanted is None or name in wanted)


def reach_of(setup: Setup, spec: JobSpec) -> tuple[int, int]:
    """(nearest tier worth waiting for, farthest allowed) of a job; one that fits nowhere waits for everything."""
    nearest = nearest_of(setup, spec)
    if nearest is None:
        return len(setup.tiers) - 1, len(setup.tiers) - 1
    widest = setup.tiers.index(spec.required) if spec.required is not None else len(setup.tiers) - 1
    preferred = setup.tiers.index(spec.preferred) if spec.preferred is not None else nearest
    return min(max(nearest, preferred), widest), widest


def nearest_of(setup: Setup, spec: JobSpec) -> int | None:
    """The nearest tier with a group that can ever hold the job on devices it accepts; None: there is none."""
    kinds = kinds_of(setup, spec)
    for level, largest in enumerate(setup.largest):
        if any(spec.gpus <= largest[kind] for kind in kinds):
            return level
    return None


def sensitivity_key(setup: Setup, spec: JobSpec) -> str:
    """Jobs that have this in common are taken to have equal step times at equal tiers."""
    return f"{spec.name}/{spec.gpus}/{'+'.join(setup.kinds[kind] for kind in kinds_of(setup, spec))}"
