"""Slowdown of a job by tier: from the profile of its model, until its own step times are known.

Measured times replace the profile tier by tier; tiers that were not measured keep their ratio. A device of unknown
speed (a custom type, a CPU core) counts as fast as the reference device, so that jobs can start there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import device_type
from berth.cluster.model import Cluster, DeviceType
from berth.errors import InputError
from berth.live.profiles import Numbers, profile_of
from berth.network.fabric import Fabric
from berth.schedule.records import MAX_TIERS, Array
from berth.schedule.world import new_jobs
from berth.simulate.engine_state import NetworkMode
from berth.simulate.jobs import describe_models
from berth.workload.profile import REFERENCE_DEVICE, JobProfile

_FIELDS = ("slowdown", "compute_share", "skew", "message_bytes", "shape_imbalance", "shape_slowdown")


class Sensitivities:
    """Slowdowns and traffic by model and size, computed once each."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._fabric = Fabric(cluster)
        self._known: dict[tuple[str, int], Array] = {}  # by the profile's numbers, and devices

    def write(self, record: Array, numbers: Numbers, gpus: int) -> None:
        """Write the slowdowns and traffic of a job into its record."""
        key = json.dumps(numbers, sort_keys=True), gpus
        if key not in self._known:
            found, profile = new_jobs(1), profile_of(numbers)
            found["gpus"] = gpus
            cluster, names = _with_speeds(self._cluster, profile), np.array([profile.name], object)
            describe_models(found, names, cluster, self._fabric, NetworkMode.SHARED, lambda _: profile)
            self._known[key] = found
        for name in _FIELDS:
            record[name] = self._known[key][name][0]


def _with_speeds(cluster: Cluster, profile: JobProfile) -> Cluster:
    usual = device_type(REFERENCE_DEVICE).flops

    def with_speed(device: DeviceType) -> DeviceType:
        try:
            profile.compute(device)
        except InputError:
            return replace(device, flops=usual)
        return device

    types = tuple(map(with_speed, cluster.device_types))
    return cluster if types == cluster.device_types else replace(cluster, device_types=types)


def learned_slowdowns(
    profile: NDArray[np.float64], step_s: Mapping[int, float], floor: int
) -> NDArray[np.float64]:
    """Return the slowdown at each tier, given step times at the tiers where the job has run."""
    nearest = min(step_s)
    near_s = step_s[nearest] / profile[nearest]
    slow = profile.copy()
    for tier, seconds in step_s.items():
        slow[tier] = seconds / near_s
    slow[: floor + 1] = slow[floor]
    slow /= slow[floor]
    return np.maximum.accumulate(slow[:MAX_TIERS])
