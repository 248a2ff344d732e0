"""Builds a world from a cluster, a policy and job records, for the simulator and for the live controller."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.schedule.job_columns import JobColumns, JobRecords, highest
from berth.schedule.pass_records import (
    BOUND,
    RESERVATION,
    SCARCITY,
    SEGMENT,
    SHAPE_CHOICE,
    STATE,
    THREATENED,
    VICTIM_SEARCH,
    WALK,
)
from berth.schedule.policy import Policy, ranks_by_cluster, uses_cluster
from berth.schedule.records import (
    CLUSTER,
    DECISION,
    DEMAND,
    GROUP,
    HISTORY,
    HOST,
    JOB,
    MANY_FREE,
    MAX_DEVICE_TYPES,
    MAX_TIERS,
    PLACE,
    QUOTA,
    RACK,
    USER,
    WAIT_STATS,
    Array,
    World,
)
from berth.schedule.rules import Blocked, Preempt, rules_record
from berth.schedule.shape_table import ShapeTable, fewest_devices

_PER_SEGMENT = 16  # jobs of a trace; where this is too few, segments grow longer


def new_jobs(count: int) -> Array:
    """Records of jobs about which nothing is known yet."""
    jobs = np.zeros(count, JOB)
    jobs["id"] = np.arange(count)
    for name in ("device_type", "device_type_mask", "quota", "running_index", "first_place", "tier"):
        jobs[name] = -1
    jobs["shape"] = jobs["other_shape"] = jobs["counted_shape"] = -1
    for name in (
        "estimate_error",
        "speed",
        "slowdown",
        "compute_share",
        "shape_slowdown",
        "imbalance_slowdown",
    ):
        jobs[name] = 1.0
    jobs["preemptible"] = jobs["movable"] = 1
    jobs["classes"] = jobs["trust_class"] = -1
    jobs["index_until_s"] = np.inf
    jobs["first_start_s"] = -1.0
    jobs["last_eviction_s"] = jobs["explained_s"] = -np.inf
    jobs["next_checkpoint_s"] = np.inf
    return jobs


def new_world(
    cluster: Cluster,
    policy: Policy,
    jobs: JobRecords,
    *,
    records: Array | None = None,
    eviction_s: float = 40.0,
    eviction_large_s: float = 60.0,
    quotas: Sequence[int] = (),
    shapes: ShapeTable | None = None,
    explained: bool = True,
) -> World:
    """A world in which nothing runs; `eviction_s` is what moving a gang costs where the policy does not say.

    Of jobs as columns, `records` is the array into which their records will be written. Where it need not be
    `explained` why jobs wait, long queues take less time.
    """
    check_limits(cluster)
    hosts, groups = _places(cluster)
    shapes = shapes or ShapeTable()
    sizes, jobs["demand"] = np.unique(fewest_devices(jobs, shapes.shapes), return_inverse=True)
    demands = np.zeros(len(sizes), DEMAND)
    demands["gpus"] = sizes
    wait_stats = np.zeros((max(1, len(sizes)), MAX_TIERS), WAIT_STATS)
    timers = policy.timers([tier.name for tier in cluster.tiers])
    wait_stats["timer_s"][:, : len(timers)] = wait_stats["initial_timer_s"][:, : len(timers)] = timers
    jobs["delay_timer_s"] = np.append(timers, np.zeros(MAX_TIERS - len(timers)))
    devices = cluster.devices
    places = np.zeros(2 * devices + 2, PLACE)
    places["spare"] = np.arange(len(places))
    quota_rows = np.zeros(max(1, len(quotas)), QUOTA)
    quota_rows["allowed"][: len(quotas)], quota_rows["closed"] = quotas, -1
    asked = policy.rules()
    rules, kind = rules_record(asked, eviction_s, eviction_large_s), type(policy)
    rules["has_tie_break"] = asked.keeps_state and kind.tie_break is not Policy.tie_break
    rules["has_update"] = asked.keeps_state and kind.update is not Policy.update
    rules["static_gain"] = kind.gain is Policy.gain
    rules["uses_cluster"], rules["ranks_by_cluster"] = uses_cluster(kind), ranks_by_cluster(kind)
    state = np.zeros(1, STATE)
    state["free"], state["spare"], state["device_types"] = devices, len(places), len(cluster.device_types)
    state["most_free"] = devices
    state["running_wake_s"] = np.inf
    overtakes = rules["blocked"][0] == Blocked.SKIP or rules["preempt"][0] == Preempt.BY_ORDER
    state["explained"] = explained
    reservation = np.zeros(1, RESERVATION)
    reservation["holder"] = reservation["last_holder"] = -1
    walk = np.zeros(1, WALK)
    walk["keeps_answers"] = not explained and rules["static_order"][0] and not rules["uses_cluster"][0]
    walk["segmented"] = walk["keeps_answers"][0] and overtakes and not len(shapes.shapes)
    segments = np.zeros(len(jobs) // _PER_SEGMENT + 2 if walk["segmented"][0] else 1, SEGMENT)
    segments["next"] = np.append(np.arange(1, len(segments)), -1)
    walk["first_segment"] = -1
    reorders = rules["static_order"][0] and rules["reorder_after_s"][0] < np.inf
    state["next_reorder_s"] = 0.0 if reorders else np.inf
    return World(
        jobs=_records(jobs, records),
        hosts=hosts,
        groups=groups,
        racks=racks_of(hosts, groups),
        places=places,
        demands=demands,
        wait_stats=wait_stats,
        quotas=quota_rows,
        users=np.zeros(highest(jobs, "user") + 1, USER),
        history=np.zeros(1 + max(highest(jobs, "classes"), highest(jobs, "trust_class")), HISTORY),
        cluster=_cluster_totals(cluster, hosts),
        waiting=np.zeros(len(jobs) + 1, np.int32),
        segments=segments,
        running=np.zeros(2 * devices + 2, np.int32),
        ending=np.zeros(len(jobs) + 2 * devices + 2, np.int32),
        apart=np.zeros(len(jobs) + 2 * devices + 2, np.int32),
        victims=np.zeros(2 * devices + 2, np.int32),
        threatened=np.zeros(2 * devices + 3, THREATENED),
        decisions=np.zeros(4 * devices + len(jobs) + 4, DECISION),
        params=policy.constants(),
        rules=rules,
        bound=np.zeros(1, BOUND),
        state=state,
        walk=walk,
        reservation=reservation,
        victim_search=np.zeros(1, VICTIM_SEARCH),
        scarcity=np.zeros(1, SCARCITY),
        shape_choice=np.zeros(1, SHAPE_CHOICE),
        shapes=shapes.shapes,
        tied=shapes.tied,
    )


def _records(jobs: JobRecords, records: Array | None) -> Array:
    if records is not None:
        return records
    assert not isinstance(jobs, JobColumns)
    return jobs


def check_limits(cluster: Cluster) -> None:
    """Refuses a cluster with more tiers or device types than the scheduler's records have fields for."""
    if len(cluster.tiers) > MAX_TIERS:
        raise InputError(
            f"cluster {cluster.name} has {len(cluster.tiers)} tiers; berth schedules on at most {MAX_TIERS}",
            hint="leave out tiers between which bandwidth and latency hardly differ",
        )
    if len(cluster.device_types) > MAX_DEVICE_TYPES:
        count = len(cluster.device_types)
        raise InputError(
            f"cluster {cluster.name} has {count} device types; berth schedules on at most {MAX_DEVICE_TYPES}",
            hint="give types of equal speed one name, or split the cluster",
        )


def _cluster_totals(cluster: Cluster, hosts: Array) -> Array:
    """The record that hooks read totals from; what does not change is set here."""
    totals = np.zeros(1, CLUSTER)
    totals["device_types"] = len(cluster.device_types)
    np.add.at(totals["devices"][0], hosts["device_type"], hosts["size"])
    return totals


def _places(cluster: Cluster) -> tuple[Array, Array]:
    """Hosts in depth-first order, and the range of hosts of every group."""
    order = np.lexsort(cluster.groups)
    rows = [
        (machine, device_type, count)
        for machine in order
        for device_type, count in cluster.machines[machine].devices
    ]
    hosts = np.zeros(len(rows), HOST)
    hosts["machine"] = [machine for machine, _, _ in rows]
    hosts["device_type"] = [device_type for _, device_type, _ in rows]
    hosts["size"] = hosts["free"] = [count for _, _, count in rows]
    tiers = len(cluster.tiers)
    for tier in range(tiers):
        hosts["group"][:, tier] = cluster.groups[tier][hosts["machine"]]
    groups = np.zeros((tiers, max(len(names) for names in cluster.group_names)), GROUP)
    for tier in range(tiers):
        numbers, first, counts = np.unique(hosts["group"][:, tier], return_index=True, return_counts=True)
        groups["start"][tier, numbers] = first
        groups["stop"][tier, numbers] = first + counts
        np.add.at(groups["free"][tier], (hosts["group"][:, tier], hosts["device_type"]), hosts["size"])
    return hosts, groups


def racks_of(hosts: Array, groups: Array) -> Array:
    """Machines of each group of tier 1 by their free devices."""
    racks = np.zeros(groups.shape[1] if len(groups) > 1 else 0, RACK)
    if len(racks):
        at = hosts["group"][:, 1], hosts["device_type"], np.minimum(hosts["free"], MANY_FREE)
        np.add.at(racks["machines"], at, 1)
        bits = np.int64(1) << np.arange(MANY_FREE + 1, dtype=np.int64)
        racks["present"] = np.where(racks["machines"] > 0, bits, 0).sum(axis=-1)
    return racks
