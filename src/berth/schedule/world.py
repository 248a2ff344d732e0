"""Builds a world from a cluster, a policy and rows of jobs: the same for the simulator and for live."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.schedule.policy import Policy
from berth.schedule.view import (
    DEMAND,
    GROUP,
    HOST,
    JOB,
    MAX_KINDS,
    MAX_TIERS,
    OFFER,
    PLACE,
    QUOTA,
    STATE,
    Array,
    World,
)


def new_jobs(count: int) -> Array:
    """Records of jobs about which nothing is known yet."""
    jobs = np.zeros(count, JOB)
    jobs["id"] = np.arange(count)
    for name in ("kind", "kinds", "quota", "run_at", "heap_at", "head", "tier", "first_start"):
        jobs[name] = -1
    for name in ("doubt", "speed", "slow", "compute", "shape_s", "bent"):
        jobs[name] = 1.0
    jobs["evicted"] = jobs["noted"] = -np.inf
    jobs["next_checkpoint"] = np.inf
    return jobs


def new_world(
    cluster: Cluster,
    policy: Policy,
    jobs: Array,
    *,
    eviction_s: float = 40.0,
    eviction_large_s: float = 60.0,
    quotas: Sequence[int] = (),
) -> World:
    """A world in which nothing runs yet."""
    check_limits(cluster)
    hosts, groups = _places(cluster)
    sizes, jobs["demand"] = np.unique(jobs["gpus"], return_inverse=True)
    demands = np.zeros(len(sizes), DEMAND)
    demands["gpus"] = sizes
    offers = np.zeros((max(1, len(sizes)), MAX_TIERS), OFFER)
    timers = policy.timers([tier.name for tier in cluster.tiers])
    offers["timer"][:, : len(timers)] = offers["fixed"][:, : len(timers)] = timers
    jobs["timer"][:, : len(timers)] = timers
    devices = cluster.devices
    places = np.zeros(2 * devices + 2, PLACE)
    places["spare"] = np.arange(len(places))
    quota_rows = np.zeros(max(1, len(quotas)), QUOTA)
    quota_rows["allowed"][: len(quotas)], quota_rows["closed"] = quotas, -1
    state = _state(policy, devices, len(places), eviction_s, eviction_large_s)
    state["kinds"] = len(cluster.device_types)
    return World(
        jobs=jobs,
        hosts=hosts,
        groups=groups,
        places=places,
        demands=demands,
        offers=offers,
        quotas=quota_rows,
        waiting=np.zeros(len(jobs) + 1, np.int32),
        running=np.zeros(2 * devices + 2, np.int32),
        ending=np.zeros(len(jobs) + 2 * devices + 2, np.int32),
        decisions=np.zeros((4 * devices + len(jobs) + 4, 3), np.int32),
        my=policy.constants(),
        state=state,
    )


def check_limits(cluster: Cluster) -> None:
    """Refuses a cluster with more tiers or device types than the scheduler's records have fields for."""
    if len(cluster.tiers) > MAX_TIERS:
        raise InputError(
            f"cluster {cluster.name} has {len(cluster.tiers)} tiers; berth schedules on at most {MAX_TIERS}",
            hint="leave out tiers between which bandwidth and latency hardly differ",
        )
    if len(cluster.device_types) > MAX_KINDS:
        count = len(cluster.device_types)
        raise InputError(
            f"cluster {cluster.name} has {count} device types; berth schedules on at most {MAX_KINDS}",
            hint="give types of equal speed one name, or split the cluster",
        )


def _places(cluster: Cluster) -> tuple[Array, Array]:
    """Hosts in depth-first order, and the range of hosts of every group."""
    order = np.lexsort(cluster.groups)
    rows = [(machine, kind, count) for machine in order for kind, count in cluster.machines[machine].devices]
    hosts = np.zeros(len(rows), HOST)
    hosts["machine"] = [machine for machine, _, _ in rows]
    hosts["kind"] = [kind for _, kind, _ in rows]
    hosts["size"] = hosts["free"] = [count for _, _, count in rows]
    tiers = len(cluster.tiers)
    for tier in range(tiers):
        hosts["group"][:, tier] = cluster.groups[tier][hosts["machine"]]
    groups = np.zeros((tiers, max(len(names) for names in cluster.group_names)), GROUP)
    for tier in range(tiers):
        numbers, first, counts = np.unique(hosts["group"][:, tier], return_index=True, return_counts=True)
        groups["start"][tier, numbers] = first
        groups["stop"][tier, numbers] = first + counts
        np.add.at(groups["free"][tier], (hosts["group"][:, tier], hosts["kind"]), hosts["size"])
    return hosts, groups


def _state(policy: Policy, devices: int, places: int, eviction_s: float, eviction_large_s: float) -> Array:
    rules = policy.rules()
    state = np.zeros(1, STATE)
    state["free"], state["spare"], state["held"], state["reserved"] = devices, places, -1, -1
    state["second_key"] = type(policy).then is not Policy.then
    for name in ("preempt", "blocked", "steady", "wakes", "period_s", "look_ahead"):
        state[name] = getattr(rules, name)
    for name in (
        "min_run_s",
        "budget_s",
        "margin",
        "hold_after_s",
        "hold_share",
        "rekey_after_s",
        "move_up",
        "defragment",
        "shape",
        "farther",
        "learns",
    ):
        state[name] = getattr(rules, name)
    for name in ("by_rank", "emptiest", "link_ratio"):
        state[name] = getattr(rules, name)
    state["keys_hold"], state["running_wake"] = rules.keys_hold, np.inf
    own = rules.eviction_s
    state["eviction_s"] = eviction_s if own is None else own
    state["eviction_large_s"] = eviction_large_s if own is None else own
    return state
