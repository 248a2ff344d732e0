"""What a controller is opened with: a cluster, a policy, and what moving a job costs. It stands in the journal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from berth.cluster.model import Cluster
from berth.cluster.serialize import cluster_from_dict, cluster_to_dict
from berth.errors import InputError
from berth.native.cache import fingerprint
from berth.schedule.policies.registry import load_policy
from berth.schedule.policy import Policy

DEFAULT_DURATION_S = 3600.0


@dataclass(frozen=True, eq=False)
class Setup:
    """The rules of one cluster."""

    cluster: Cluster
    policy: str = "berth"
    eviction_s: float = 40.0
    eviction_large_s: float = 60.0
    store: str = "local"  # a name that tokens begin with, so that no two stores ever use the same

    @cached_property
    def tiers(self) -> tuple[str, ...]:
        """Names, nearest first."""
        return tuple(tier.name for tier in self.cluster.tiers)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Names of the device types."""
        return tuple(kind.name for kind in self.cluster.device_types)

    @cached_property
    def largest(self) -> tuple[tuple[int, ...], ...]:
        """By tier and device type: the devices of the largest group."""
        cluster = self.cluster
        of_device = [cluster.groups[level][cluster.device_machine] for level in range(len(cluster.tiers))]
        kinds = [cluster.device_type == kind for kind in range(len(cluster.device_types))]
        return tuple(
            tuple(int(np.bincount(groups[kind]).max(initial=0)) for kind in kinds) for groups in of_device
        )

    def load_policy(self) -> Policy:
        """The policy, ready for a world without a trace."""
        policy = load_policy(self.policy)
        if type(policy).prepare is not Policy.prepare:
            raise InputError(
                f"policy {self.policy!r} must read a whole trace beforehand, so it only simulates",
                hint="live, use berth, dally or tiresias",
            )
        return policy

    def plain(self) -> dict[str, Any]:
        """As it stands in the journal, with the code it was made by."""
        return {
            "cluster": cluster_to_dict(self.cluster),
            "policy": self.policy,
            "eviction_s": self.eviction_s,
            "eviction_large_s": self.eviction_large_s,
            "store": self.store,
            "code": fingerprint(),
        }


def setup_of(plain: dict[str, Any]) -> Setup:
    """The setup that was written down."""
    facts = {name: plain[name] for name in ("policy", "eviction_s", "eviction_large_s", "store")}
    return Setup(cluster=cluster_from_dict(plain["cluster"]), **facts)
