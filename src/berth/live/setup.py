"""The setup of a controller: cluster, policy, and the cost of evictions. It is in the journal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from berth.cluster.model import Cluster
from berth.cluster.serialize import cluster_from_dict, cluster_to_dict
from berth.errors import InputError
from berth.native.cache import fingerprint
from berth.schedule.hooks import hooks
from berth.schedule.policies.registry import load_policy, policy_names
from berth.schedule.policy import Policy

DEFAULT_DURATION_S = 3600.0
_SUBSTITUTE = "fifo"  # keeps the queue in order while a policy can't be used; it decides nothing


@dataclass(frozen=True, eq=False)
class Setup:
    """A cluster and how it is scheduled."""

    cluster: Cluster
    policy: str = "berth"
    eviction_s: float = 40.0
    eviction_large_s: float = 60.0
    store: str = "local"  # the prefix of tokens: no two stores use the same
    paused: str | None = None  # why the policy can't be used: nothing is decided

    @cached_property
    def tiers(self) -> tuple[str, ...]:
        """Names, nearest first."""
        return tuple(tier.name for tier in self.cluster.tiers)

    @cached_property
    def device_type_names(self) -> tuple[str, ...]:
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
        """Return the policy; refuse one that needs a trace in advance. While it is paused, another takes its place."""
        if self.paused is not None:
            return load_policy(_SUBSTITUTE)
        policy = load_policy(self.policy)
        if type(policy).prepare is not Policy.prepare:
            raise InputError(
                f"policy {self.policy!r} needs a whole trace in advance, so it can only be simulated",
                hint="live, use berth, dally or tiresias",
            )
        return policy

    def to_dict(self) -> dict[str, Any]:
        """Return it as the journal has it, with the fingerprint of the code."""
        return {
            "cluster": cluster_to_dict(self.cluster),
            "policy": self.policy,
            "eviction_s": self.eviction_s,
            "eviction_large_s": self.eviction_large_s,
            "store": self.store,
            "code": fingerprint(),
        } | ({} if self.paused is None else {"paused": self.paused})


def setup_from_dict(plain: dict[str, Any]) -> Setup:
    """Return the setup that `to_dict` describes."""
    facts = {name: plain[name] for name in ("policy", "eviction_s", "eviction_large_s", "store")}
    return Setup(cluster=cluster_from_dict(plain["cluster"]), paused=plain.get("paused"), **facts)


def usable(setup: Setup) -> Setup:
    """Return a setup, paused if its policy can't be loaded."""
    if setup.paused is not None:
        return setup
    try:
        policy = setup.load_policy()
        if setup.policy.partition(":")[0] not in policy_names():
            hooks(policy)
            policy.timers(setup.tiers)
    except Exception as error:  # noqa: BLE001 - it runs a user's file
        return replace(setup, paused=one_line(error))
    return setup


def one_line(error: Exception) -> str:
    """Return what is wrong with a policy, and where, without a hint."""
    if isinstance(error, InputError):
        return f"{error.where}: {error.what}" if error.where else error.what
    return str(error) or type(error).__name__
