"""Weighted fair share by user: `berth simulate JOBS --cluster CLUSTER --policy examples/fair_share.py:weight=3`."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule import ClusterView, JobView, Policy, number


@dataclass(frozen=True)
class FairShare(Policy):
    """Users hold devices in proportion to their weights; among equals, the user that has used least goes first."""

    user: float = number(0, "number of a user, by first appearance, whose weight is not 1")
    weight: float = number(2, "weight of that user")

    @staticmethod
    def order(job: JobView, now: float, params: FairShare, cluster: ClusterView) -> float:
        return cluster.user_gpus / (params.weight if job.user == params.user else 1.0)

    @staticmethod
    def tie_break(job: JobView, now: float, params: FairShare, cluster: ClusterView) -> float:
        return cluster.user_gpu_s / (params.weight if job.user == params.user else 1.0)
