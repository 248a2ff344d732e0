"""One simulation: a trace, a cluster, a policy and a network in; what became of every job out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from berth.cluster.gpus import gpu_part
from berth.cluster.model import Cluster
from berth.handed import handed
from berth.network.fabric import Fabric
from berth.network.sharing import LinkShares
from berth.schedule.hooks import hooks
from berth.schedule.policy import Policy
from berth.schedule.steps import steps_for
from berth.schedule.view import DONE, REFUSED, Array, World
from berth.schedule.world import new_world
from berth.simulate.blame import heard
from berth.simulate.engine import LOG_FULL, OVER, advance
from berth.simulate.faults import check_faults
from berth.simulate.jobs import Jobs, read_jobs
from berth.simulate.motion import motion_for
from berth.simulate.standstill import Standstill
from berth.simulate.view import CLOCK, FAULT, FLOW, LOG, LOG_PLACE, OFF, SHARED, STATIC, Course, Net
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
    faults: Array = field(default_factory=lambda: np.zeros(0, FAULT))
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
    standstill: bool = False  # it was stopped, since nothing got done any more

    @property
    def records(self) -> Array:
        """The jobs' records."""
        return self.world.jobs

    @property
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
    with heard(policy) as raise_errors:
        return _play(trace, cluster, policy, setting or Setting(), name, progress, watch, raise_errors)


def _play(
    trace: Trace,
    cluster: Cluster,
    policy: Policy,
    setting: Setting,
    name: str | None,
    progress: Callable[[int, int], None] | None,
    watch: Callable[[World, Array], int] | None,
    raise_errors: Callable[[], None],
) -> Run:
    policy, cluster = policy.prepare(trace), gpu_part(cluster)
    check_faults(setting.faults, cluster)
    fabric = Fabric(cluster, setting.congestion)
    jobs = read_jobs(
        trace,
        cluster,
        fabric,
        NETWORKS[setting.network],
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
    net = Net(fabric.arrays, LinkShares(fabric.arrays.capacity, len(jobs.records), edges).state)
    functions, scene, links = handed(hooks(policy)), handed(world), handed(net)
    books = handed(course)
    steps = handed(steps_for(policy.rules(), scene, functions))
    motion = handed(motion_for(scene, books, links, course.clock))
    logged: list[Array] = []
    places: list[Array] = []
    started = time.process_time()
    events = _CHUNK if watch is None else watch(world, course.clock)
    standstill, stands = Standstill(), False
    while not stands and (outcome := advance(scene, functions, steps, books, links, motion, events)) != OVER:
        raise_errors()
        stands = standstill.reached(world, course.clock, len(setting.faults))
        if outcome == LOG_FULL:
            course = _empty_log(course, logged, places)
            books = handed(course)
        if progress is not None:
            progress(int(course.clock[0]["finished"]), len(jobs.records))
        if watch is not None:
            events = watch(world, course.clock)
    raise_errors()
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
        flows=np.zeros(len(jobs.records), FLOW),
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
