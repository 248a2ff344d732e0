"""From a trace to the records the scheduler walks: sizes, work, and what distance does to each job."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import known_names, resolve
from berth.cluster.gpus import usable_types
from berth.cluster.memo import per_cluster
from berth.cluster.model import Cluster
from berth.errors import nearest
from berth.network._flow_kernels import RING, TREE
from berth.network.fabric import Fabric
from berth.network.flow import alone_s, flow_of
from berth.network.iteration import iteration_time
from berth.network.placement import Placement
from berth.network.spread import realise, spreads, usable_devices
from berth.network.traffic import Traffic
from berth.schedule.job_columns import JobColumns, JobRecords, set_by_class
from berth.schedule.records import MAX_TIERS, Array, JobStatus
from berth.schedule.rules import Rules
from berth.schedule.shape_table import ShapeTable, fewest_gpus, write_gang, write_offer
from berth.schedule.world import new_jobs
from berth.simulate.engine_state import TRAFFIC, NetworkMode
from berth.simulate.knowledge import Estimates, set_knowledge
from berth.simulate.quotas import charge_jobs
from berth.workload.binding import BoundShape, absent_types, bind_fitting, device_index
from berth.workload.mix import Mix
from berth.workload.profile import JobProfile
from berth.workload.profiles import load_profile
from berth.workload.shapes import Offer, Part, Shape, Work
from berth.workload.streams import uniforms
from berth.workload.trace import Trace


@dataclass(frozen=True, eq=False)
class Jobs:
    """Records of jobs, their traffic, and what had to be assumed about them."""

    records: JobRecords
    traffic: Array
    models: NDArray[np.object_]
    modelled: int  # jobs whose model was drawn from the mix
    too_large: tuple[str, ...]  # ids of jobs that the cluster can never hold
    over_quota: tuple[str, ...] = ()  # ids of jobs larger than the quota of their virtual cluster
    shapes: ShapeTable = field(default_factory=ShapeTable)  # of jobs with alternatives


def read_jobs(
    trace: Trace,
    cluster: Cluster,
    fabric: Fabric,
    network: int,
    mix: Mix,
    *,
    seed: int = 0,
    estimate_error: float = 0.0,
    estimates: Estimates = "known",
    preemptible: float = 1.0,
    quotas: Mapping[str, int] | None = None,
    gangs_choose: bool = False,
    as_columns: bool = False,
) -> Jobs:
    """The records of a trace's jobs on a cluster. `estimate_error` 0.5: remaining times are known to +-50 % only.

    `gangs_choose`: gangs choose among device types even if no job has alternatives, see `gangs_may_choose`.
    `as_columns`: of a trace without alternatives, as columns from which records are made later.
    """
    count = len(trace.submit_s)
    records = JobColumns(new_jobs(1), count) if as_columns else new_jobs(count)
    records["arrival_s"], records["gpus"] = trace.submit_s, trace.num_gpu
    for name in ("work_s", "true_remaining_s", "estimated_remaining_s", "checkpointed_remaining_s"):
        records[name] = trace.duration_s
    records["widest_tier"] = len(cluster.tiers) - 1
    if estimate_error:
        drawn = uniforms(seed, "estimate errors", len(records))
        records["estimate_error"] = 1.0 + estimate_error * (2.0 * drawn - 1.0)
        records["estimated_remaining_s"] *= records["estimate_error"]
    if trace.frame["priority"].null_count() < len(records):
        records["priority"] = trace.frame["priority"].fill_null(0).to_numpy()
    users: dict[str | None, int] = {}
    records["user"] = [users.setdefault(name, len(users)) for name in trace.frame["user"].to_list()]
    set_knowledge(records, trace, estimates, preemptible, seed)
    too_large = _floors(records, cluster, trace)
    models, modelled = draw_models(trace, mix, seed)
    traffic = describe_models(
        records,
        models,
        cluster,
        fabric,
        network,
        lambda name: load_profile(name, trace.place_of("model", name)),
    )
    if len(usable_types(cluster)) < len(cluster.device_types):  # plain gangs ask for GPUs
        records["device_type_mask"] = sum(1 << index for index in usable_types(cluster))
    shapes = describe_offers(records, trace, cluster, network)
    if (len(shapes.shapes) and len(usable_types(cluster)) > 1) or gangs_choose:
        describe_gangs(records, models, cluster, fabric, network, shapes)
    if not trace.offers:
        shapes.shapes["usd_excess"] = 0.0  # ordinary gangs look for the type on which they end first
    over_quota = charge_jobs(records, trace, quotas or {}, fewest_gpus(records, shapes.shapes))
    return Jobs(records, traffic, models, modelled, too_large, over_quota, shapes)


def gangs_may_choose(rules: Rules, trace: Trace, cluster: Cluster) -> bool:
    """Whether gangs choose among device types though no job has alternatives.

    Not in a trace with several priorities: choosing there costs time in proportion to the queue for each job.
    """
    one_priority = trace.frame["priority"].fill_null(0).n_unique() <= 1
    return rules.choose_types and one_priority and len(usable_types(cluster)) > 1


def _floors(records: JobRecords, cluster: Cluster, trace: Trace) -> tuple[str, ...]:
    """Writes the nearest tier of each job; refuses those that fit in none, and returns their ids."""
    for gpus in np.unique(records["gpus"]).tolist():
        rows = records["gpus"] == gpus
        floor = nearest_tier(cluster, gpus)
        if floor is None:
            records["state"][rows] = JobStatus.REFUSED
        else:
            records["nearest_tier"][rows] = floor
    return too_large(trace, cluster)


def too_large(trace: Trace, cluster: Cluster) -> tuple[str, ...]:
    """Ids of jobs that the cluster can never hold."""
    sizes = [gpus for gpus in np.unique(trace.num_gpu) if nearest_tier(cluster, int(gpus)) is None]
    ids = [trace.job_ids[row] for row in np.flatnonzero(np.isin(trace.num_gpu, sizes))]
    if not trace.offers:
        return tuple(ids)
    plain = [job for job in ids if job not in trace.offers]
    return (
        *plain,
        *(
            job
            for job in trace.job_ids
            if job in trace.offers and not bound_offer(cluster, trace.offers[job])
        ),
    )


@dataclass(frozen=True, slots=True)
class AbsentTypes:
    """Device types that jobs with alternatives ask for and a cluster lacks, and what is left out for it."""

    names: tuple[str, ...] = ()
    mistyped: str = ""  # of the first that berth does not know either, where it is and what may be meant
    alternatives: int = 0
    jobs: tuple[str, ...] = ()  # ids of those with no other alternative


def absent_types_of(trace: Trace, cluster: Cluster) -> AbsentTypes:
    """The device types of a trace's alternatives that the cluster lacks."""
    names: dict[str, str | None] = {}  # and where each is written first
    alternatives, jobs = 0, []
    for job, offer in trace.offers.items():
        absent = [absent_types(shape, cluster) for shape in offer.alternatives]
        for found, where in itertools.zip_longest(absent, offer.where):
            for name in found:
                names.setdefault(name, where)
        alternatives += sum(map(bool, absent))
        if all(absent):
            jobs.append(job)
    unknown = next((name for name in names if resolve(name) is None), None)
    mistyped = "" if unknown is None else _unknown_type(unknown, cluster, names[unknown])
    return AbsentTypes(tuple(names), mistyped, alternatives, tuple(jobs))


def _unknown_type(name: str, cluster: Cluster, where: str | None) -> str:
    near = nearest(name, [kind.name for kind in cluster.device_types]) or nearest(name, known_names())
    meant = f", did you mean {near!r}?" if near else ""
    return f"{where}: no device type is called {name!r}{meant}"


@per_cluster
def nearest_tier(cluster: Cluster, gpus: int) -> int | None:
    """The nearest tier with a group that holds `gpus` devices of one type; None: no group does."""
    for level in range(len(cluster.tiers)):
        group_of_device = cluster.groups[level][cluster.device_machine]
        for kind in usable_types(cluster):
            if np.bincount(group_of_device[cluster.device_type == kind]).max(initial=0) >= gpus:
                return level
    return None


@per_cluster
def bound_offer(cluster: Cluster, offer: Offer) -> tuple[BoundShape, ...]:
    """The shapes of an offer that the cluster can hold."""
    return bind_fitting(offer, cluster)


def device_types_of(trace: Trace, cluster: Cluster) -> frozenset[str]:
    """Names of the cluster's device types that jobs with alternatives ask for."""
    names = {
        name for offer in trace.offers.values() for shape in offer.alternatives for name in shape.devices
    }
    found = (device_index(cluster, name) for name in names)
    return frozenset(cluster.device_types[index].name for index in found if index is not None)


def describe_offers(records: JobRecords, trace: Trace, cluster: Cluster, network: int) -> ShapeTable:
    """Writes the first shape of each job that has alternatives into its record; refuses those that never fit."""
    table = ShapeTable()
    if not trace.offers:
        return table
    for row, job in enumerate(trace.job_ids):
        if (offer := trace.offers.get(job)) is None:
            continue
        bound = bound_offer(cluster, offer)
        records["state"][row] = JobStatus.FUTURE if bound else JobStatus.REFUSED
        if bound:
            assert not isinstance(records, JobColumns)
            write_offer(records[row], table, offer, bound, cluster)
    if network == NetworkMode.OFF:
        table.shapes["slowdown"] = 1.0
        records["slowdown"] = 1.0
    return table


def describe_gangs(
    records: JobRecords,
    models: NDArray[np.object_],
    cluster: Cluster,
    fabric: Fabric,
    network: int,
    table: ShapeTable,
) -> None:
    """Lets plain gangs choose among the device types that they accept, as jobs with alternatives do."""
    offers: dict[tuple[str, int], tuple[Offer, tuple[BoundShape, ...]]] = {}
    assert not isinstance(records, JobColumns)
    for row in np.flatnonzero((records["shape"] < 0) & (records["state"] != JobStatus.REFUSED)):
        key = str(models[row]), int(records["gpus"][row])
        if key not in offers:
            offers[key] = _types_of_gang(*key, cluster, fabric, network)
        offer, bound = offers[key]
        if len(bound) > 1:
            write_gang(records[row], table, offer, bound, cluster)


def _types_of_gang(
    model: str, gpus: int, cluster: Cluster, fabric: Fabric, network: int
) -> tuple[Offer, tuple[BoundShape, ...]]:
    """A gang on each type that can hold it; a step takes as long as the work of a second on the first type."""
    shapes, reference_s = [], 0.0
    for kind in usable_types(cluster):
        traffic = load_profile(model).traffic(cluster.device_types[kind])
        reference_s = reference_s or _by_tier(traffic, gpus, cluster, fabric, network)[0]
        if not best_placements(cluster, gpus, (kind,)):
            continue  # it has too few devices
        near_s, slowdown = _by_tier(traffic, gpus, cluster, fabric, network, (kind,))
        steps = tuple(
            (tier.name, float(near_s * slowdown[level] / reference_s))
            for level, tier in enumerate(cluster.tiers)
        )
        sent = traffic.bytes if gpus > 1 and network != NetworkMode.OFF else 0.0
        name = cluster.device_types[kind].name
        part = Part("all", ((name, gpus),), collective_bytes=sent)
        shapes.append(Shape(f"{gpus} {name}", (part,), steps, 1.0))
    offer = Offer(Work(1.0), tuple(shapes))
    return offer, bind_fitting(offer, cluster)


def draw_models(trace: Trace, mix: Mix, seed: int) -> tuple[NDArray[np.object_], int]:
    """The model of each job: its own, or one drawn from the mix."""
    names = trace.frame["model"].to_numpy().astype(object)
    missing = np.array([name is None for name in names])
    drawn = np.array(mix.models, dtype=object)[mix.assign(len(names), seed)]
    names[missing] = drawn[missing]
    return names, int(missing.sum())


def describe_models(
    records: JobRecords,
    models: NDArray[np.object_],
    cluster: Cluster,
    fabric: Fabric,
    network: int,
    profile_named: Callable[[str], JobProfile] = load_profile,
) -> Array:
    """A traffic record per model, size and device type; writes `slow`, `compute`, `skew` into the jobs."""
    kinds = len(cluster.device_types)
    if network == NetworkMode.OFF and kinds == 1:
        return np.ones(1, TRAFFIC)
    numbers: dict[tuple[str, int], int] = {}
    keys = zip(models, records["gpus"].tolist(), strict=True)
    rows = np.fromiter(
        (numbers.setdefault((str(model), gpus), len(numbers)) for model, gpus in keys), np.int32, len(models)
    )
    records["traffic_row"] = rows * kinds
    table = np.zeros(len(numbers) * kinds, TRAFFIC)
    compute, skew, message = np.ones(len(numbers)), np.zeros(len(numbers)), np.zeros(len(numbers))
    slow = np.ones((len(numbers), MAX_TIERS))
    shape_x, shape_s = np.zeros((len(numbers), 3)), np.ones((len(numbers), 3))
    for (model, gpus), number in numbers.items():
        profile = profile_named(model)
        skew[number] = profile.skew
        if nearest_tier(cluster, gpus) is None:
            continue
        first, *_ = usable = usable_types(cluster)
        for kind in usable:
            traffic = profile.traffic(cluster.device_types[kind])
            near_s, slow_by_tier = _by_tier(traffic, gpus, cluster, fabric, network)
            if kind == first:
                reference_s = near_s
                compute[number], slow[number] = traffic.compute_s / near_s, slow_by_tier
                if network != NetworkMode.OFF:
                    message[number] = traffic.bytes if gpus > 1 else 0.0
                    shape_x[number], shape_s[number] = _by_shape(traffic, gpus, cluster, fabric, network)
            _write(table[number * kinds + kind], traffic, reference_s)
    by_class = {"compute_share": compute, "skew": skew, "slowdown": slow, "message_bytes": message}
    by_class |= {"shape_imbalance": shape_x, "shape_slowdown": shape_s}
    for name, values in by_class.items():
        set_by_class(records, name, values, rows)
    return table


def _by_tier(
    traffic: Traffic,
    gpus: int,
    cluster: Cluster,
    fabric: Fabric,
    network: int,
    kinds: tuple[int, ...] | None = None,
) -> tuple[float, NDArray[np.float64]]:
    """Seconds of an iteration at the nearest placement, and its slow-down at each tier; `kinds`: on these types."""
    slow = np.ones(MAX_TIERS)
    if gpus == 1 or network == NetworkMode.OFF:
        return traffic.compute_s, slow
    seconds: dict[int, float] = {}
    for tier, placement in best_placements(cluster, gpus, kinds).items():
        seconds[tier] = iteration_s(traffic, placement, fabric, network)
    near = seconds[min(seconds)]
    for tier in range(MAX_TIERS):
        known = [value for level, value in seconds.items() if level <= tier]
        slow[tier] = max(known, default=near) / near
    return near, slow


def _by_shape(
    traffic: Traffic, gpus: int, cluster: Cluster, fabric: Fabric, network: int
) -> tuple[list[float], list[float]]:
    """Three shapes over several machines, by thinness: the best, and with a smallest part of two and of one."""
    found: dict[float, float] = {}
    sizes = _sizes_of_one_type(cluster)
    for counts in _shapes(int(sizes.max()), gpus):
        machines = _together(cluster, len(counts))
        if machines is not None and (sizes[machines] >= counts).all():
            placement = Placement.of_counts(dict(zip(machines.tolist(), counts, strict=True)))
            thinness = (len(counts) - 1) / (len(counts) * min(counts))
            found.setdefault(thinness, iteration_s(traffic, placement, fabric, network))
    if not found:
        return [0.0] * 3, [1.0] * 3
    points = sorted(found.items())
    points += points[-1:] * (3 - len(points))
    best = points[0][1]
    slow = np.maximum.accumulate([seconds / best for _, seconds in points])
    return [thinness for thinness, _ in points], slow.tolist()


@per_cluster
def _sizes_of_one_type(cluster: Cluster) -> NDArray[np.int64]:
    """Devices of each machine that a gang may hold: they are of one type."""
    return np.array([max((count for _, count in machine.devices), default=0) for machine in cluster.machines])


def _shapes(size: int, gpus: int) -> list[list[int]]:
    """An even split over the fewest machines, and the same less a part of two devices, or of one."""
    found = [_split(gpus, max(2, -(-gpus // size)))] if gpus > 1 else []
    for part in (2, 1):
        rest = gpus - part
        if rest >= part:
            found.append([*_split(rest, -(-rest // size)), part])
    return found


def _split(total: int, parts: int) -> list[int]:
    return [total // parts + (k < total % parts) for k in range(parts)]


@per_cluster
def _together(cluster: Cluster, count: int) -> NDArray[np.int64] | None:
    """`count` machines of one rack, the largest first; of the whole cluster where no rack has as many."""
    order = np.argsort(-_sizes_of_one_type(cluster), kind="stable")
    if len(cluster.tiers) > 1:
        racks = cluster.groups[1][order]
        for rack in dict.fromkeys(racks.tolist()):
            if (racks == rack).sum() >= count:
                return order[racks == rack][:count]
    return order[:count] if len(order) >= count else None


@per_cluster
def best_placements(
    cluster: Cluster, gpus: int, kinds: tuple[int, ...] | None = None
) -> dict[int, Placement]:
    """The best placement at each tier that can be one, of devices of one type, of `kinds` if they are given.

    It is the same for every model, so looked for once.
    """
    found: dict[int, Placement] = {}
    for kind in kinds or usable_types(cluster):
        usable = usable_devices(cluster, cluster.device_types[kind].name)
        if usable.sum() < gpus:
            continue
        for spread in spreads(cluster, gpus, usable):
            if spread.tier not in found and (placement := realise(cluster, spread, usable)) is not None:
                found[spread.tier] = placement
    return found


def iteration_s(traffic: Traffic, placement: Placement, fabric: Fabric, network: int) -> float:
    """Seconds of an iteration on this placement: with idle links (shared links), or with all jobs sending (static)."""
    if network == NetworkMode.SHARED and len(placement.machines) > 1:
        return alone_s(traffic, flow_of(traffic, placement, fabric))
    return iteration_time(traffic, placement, fabric).seconds


def _write(record: Array, traffic: Traffic, near_s: float) -> None:
    record["compute_s"], record["all_reduce"] = traffic.compute_s, traffic.all_reduce_bytes
    record["all_to_all"], record["server"] = traffic.all_to_all_bytes, traffic.server_bytes
    record["algorithm"] = TREE if traffic.collective == "tree" else RING
    record["overlap"], record["forward"] = traffic.overlap, traffic.forward
    record["near_s"] = near_s
