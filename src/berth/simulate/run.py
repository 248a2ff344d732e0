"""One simulation: a trace, a cluster, a policy and a network in; what became of every job out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from berth.cluster.gpus import gpu_part
from berth.cluster.model import Cluster, DeviceType
from berth.errors import InputError
from berth.handed import handed
from berth.network._contention_kernels import new_flows, new_loads
from berth.network.fabric import Fabric
from berth.network.sharing import LinkShares
from berth.schedule.checks import check_policy
from berth.schedule.failures import raise_failure
from berth.schedule.hooks import hooks
from berth.schedule.policy import Policy
from berth.schedule.steps import steps_for
from berth.schedule.view import DONE, REFUSED, Array, World
from berth.schedule.world import new_world
from berth.simulate.blame import placed
from berth.simulate.engine import LOG_FULL, OVER, advance
from berth.simulate.faults import FaultSpec, faults_of
from berth.simulate.jobs import Jobs, read_jobs
from berth.simulate.motion import motion_for
from berth.simulate.reference import reference_device, seconds_here
from berth.simulate.standstill import Standstill
from berth.simulate.view import CLOCK, FAULT, LOG, LOG_PLACE, OFF, SHARED, STATIC, Course, Net
from berth.workload.mix import Mix, load_mix
from berth.workload.trace import Trace

Network = Literal["off", "static", "on"]
NETWORKS: dict[Network, int] = {"off": OFF, "static": STATIC, "on": SHARED}
_CHUNK = 20_000  # events between two looks at the progress bar


@dataclass(frozen=True)
class Setting:
    """Everything of a simulation but the trace, the cluster and the policy."""

    network: Network = "on"
    congestion: float = 1.0
    eviction_s: float = 40.0
    eviction_large_s: float = 60.0
    checkpoint_s: float = 1800.0
    doubt: float = 0.0
    mix: Mix = field(default_factory=lambda: load_mix("balanced"))
    seed: int = 0
    reference_device: str | DeviceType | None = None  # of durations; None: the most common type
    faults: Array = field(default_factory=lambda: np.zeros(0, FAULT))
    fault_spec: FaultSpec | None = None  # drawn at the start of a run, with `seed` added to its own
    quotas: Mapping[str, int] = field(default_factory=dict)  # devices by virtual cluster
    log: bool = False


@dataclass(frozen=True, eq=False)
class Run:
    """What became of every job."""

    policy: str
    trace: Trace
    cluster: Cluster
    setting: Setting
    jobs: Jobs
    world: World
    clock: Array
    log: Array
    log_places: Array
    cpu_s: float
    standstill: str = ""  # why it was stopped before its end, see standstill.py

    @property
    def records(self) -> Array:
        """The jobs' records."""
        return self.world.jobs

    @cached_property
    def unfinished(self) -> tuple[str, ...]:
        """Ids of the jobs that fit the cluster and never finish."""
        left = (self.records["state"] != DONE) & (self.records["state"] != REFUSED)
        return tuple(str(self.trace.job_ids[row]) for row in np.flatnonzero(left))


def simulate(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    setting: Setting | None = None,
    *,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[World, Array], int] | None = None,
) -> Run:
    """Plays the trace to its end. `progress` is told how many of how many jobs are over.

    The end is when nothing can happen any more, or nothing gets done any more: see `Run.unfinished`.

    `watch` is shown the world and the clock, and says after how many events it wants to see them again.
    """
    with placed(policy):
        return _play(trace, cluster, policy, setting or Setting(), name, progress, watch)


def _play(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    setting: Setting,
    name: str | None,
    progress: Callable[[int, int], None] | None,
    watch: Callable[[World, Array], int] | None,
) -> Run:
    check_policy(policy)
    reference, cluster = reference_device(cluster, setting.reference_device), gpu_part(cluster)
    fabric = Fabric(cluster, setting.congestion)
    network = NETWORKS[setting.network]
    trace = seconds_here(trace, cluster, fabric, network, setting.mix, setting.seed, reference)
    setting = replace(
        setting, faults=faults_of(setting.faults, setting.fault_spec, setting.seed, trace, cluster)
    )
    policy = _prepared(policy, trace)
    jobs = read_jobs(
        trace,
        cluster,
        fabric,
        network,
        setting.mix,
        seed=setting.seed,
        doubt=setting.doubt,
        quotas=setting.quotas,
    )
    world = new_world(
        cluster,
        policy,
        jobs.records,
        eviction_s=setting.eviction_s,
        eviction_large_s=setting.eviction_large_s,
        quotas=tuple(setting.quotas.values()),
    )
    course = _course(cluster, jobs, setting)
    edges = cluster.devices * max(1, len(cluster.tiers))
    net = Net(
        fabric.arrays,
        LinkShares(fabric.arrays.capacity, len(jobs.records), edges).state,
        new_flows(len(jobs.records)),
        new_loads(len(fabric.arrays.capacity)),
    )
    functions, scene, links = handed(hooks(policy)), handed(world), handed(net)
    books = handed(course)
    steps = handed(steps_for(policy.rules(), scene, functions))
    motion = handed(motion_for(scene, books, links, course.clock))
    logged: list[Array] = []
    places: list[Array] = []
    started = time.process_time()
    events = _CHUNK if watch is None else watch(world, course.clock)
    standstill, stands = Standstill(), ""

    def job_id(row: int) -> str:
        return str(trace.job_ids[row])

    while not stands and (outcome := advance(scene, functions, steps, books, links, motion, events)) != OVER:
        raise_failure(policy, world.my, job_id)
        stands = standstill.reached(world, course.clock, len(setting.faults))
        if outcome == LOG_FULL:
            course = _empty_log(course, logged, places)
            books = handed(course)
        if progress is not None:
            progress(int(course.clock[0]["finished"]), len(jobs.records))
        if watch is not None:
            events = watch(world, course.clock)
    raise_failure(policy, world.my, job_id)
    _empty_log(course, logged, places)
    return Run(
        policy=name or type(policy).__name__.lower(),
        trace=trace,
        cluster=cluster,
        setting=setting,
        jobs=jobs,
        world=world,
        clock=course.clock,
        log=np.concatenate(logged) if logged else np.zeros(0, LOG),
        log_places=np.concatenate(places) if places else np.zeros(0, LOG_PLACE),
        cpu_s=time.process_time() - started,
        standstill=stands,
    )


def _prepared(policy: Policy, trace: Trace) -> Policy:
    """Let a policy learn from the trace what it may; what it returns runs."""
    prepared = policy.prepare(trace)
    if not isinstance(prepared, Policy):
        raise InputError(
            f"{type(policy).__name__}.prepare returned {prepared!r}, which is not a policy",
            hint="return self, or replace(self, ...)",
        )
    return prepared


def _course(cluster: Cluster, jobs: Jobs, setting: Setting) -> Course:
    clock = np.zeros(1, CLOCK)
    clock["wake"] = np.inf
    clock["network"], clock["kinds"] = NETWORKS[setting.network], len(cluster.device_types)
    clock["logging"], clock["checkpoint_s"] = setting.log, setting.checkpoint_s
    size = 4 * len(jobs.records) + 16 * cluster.devices + 100_000 if setting.log else 1
    return Course(
        clock=clock,
        heap=np.zeros(2 * cluster.devices + 2, np.int32),
        faults=np.ascontiguousarray(setting.faults),
        traffic=jobs.traffic,
        log=np.zeros(size, LOG),
        log_places=np.zeros(2 * size if setting.log else 1, LOG_PLACE),
    )


def _empty_log(course: Course, logged: list[Array], places: list[Array]) -> Course:
    """Takes what the buffers hold; a buffer too small even when empty is doubled."""
    clock = course.clock[0]
    if clock["log"] == 0 and clock["logging"]:
        course = course._replace(
            log=np.zeros(2 * len(course.log), LOG), log_places=np.zeros(2 * len(course.log_places), LOG_PLACE)
        )
    offset = sum(len(part) for part in places)
    part = course.log[: clock["log"]].copy()
    part["places"] += offset
    logged.append(part)
    places.append(course.log_places[: clock["log_places"]].copy())
    clock["log"] = clock["log_places"] = 0
    return course
