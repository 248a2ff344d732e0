"""Dominant resource fairness (Ghodsi et al., NSDI 2011) over device types: `--policy examples/drf.py`."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule import Blocked, ClusterView, JobView, Policy, Rules


@dataclass(frozen=True)
class Drf(Policy):
    """The user whose largest share of any device type is smallest goes first."""

    def rules(self) -> Rules:
        return Rules(blocked=Blocked.STOP)  # if the first job does not fit, the cluster is full

    @staticmethod
    def order(job: JobView, now: float, params: Drf, cluster: ClusterView) -> float:
        share = 0.0
        for device_type in range(cluster.device_types):
            share = max(share, cluster.user_devices[device_type] / cluster.devices[device_type])
        return share
