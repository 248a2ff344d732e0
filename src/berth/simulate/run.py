"""One simulation: a trace, a cluster, a policy and a network in; what became of every job out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from berth.cluster.gpus import gpu_part
from berth.cluster.model import Cluster, DeviceType
from berth.errors import InputError, QuantityError, UnknownNameError
from berth.native.structs import to_native
from berth.network._contention_kernels import new_flows, new_loads
from berth.network.fabric import Fabric
from berth.network.sharing import LinkShares
from berth.schedule.checks import check_policy
from berth.schedule.decide import phases_for
from berth.schedule.failures import raise_failure
from berth.schedule.hooks import hooks
from berth.schedule.job_columns import JobColumns
from berth.schedule.policies.registry import load_policy
from berth.schedule.policy import Policy
from berth.schedule.records import Array, JobStatus, World
from berth.schedule.world import new_world
from berth.simulate.engine import LOG_FULL, OVER, advance
from berth.simulate.engine_state import (
    CLOCK,
    FAULT,
    LOG,
    LOG_PLACE,
    EngineState,
    Net,
    NetworkMode,
    new_accounts,
)
from berth.simulate.faults import FaultSpec, faults_of
from berth.simulate.jobs import Jobs, device_types_of, gangs_may_choose, read_jobs
from berth.simulate.knowledge import ESTIMATES, Estimates
from berth.simulate.livelock import LivelockDetector
from berth.simulate.policy_errors import located
from berth.simulate.reference import reference_device, seconds_here
from berth.simulate.speed import speed_hooks_for
from berth.simulate.window import JobWindow
from berth.workload.mix import Mix, load_mix
from berth.workload.trace import Trace

Network = Literal["off", "static", "on"]
NETWORKS: dict[Network, int] = {
    "off": NetworkMode.OFF,
    "static": NetworkMode.STATIC,
    "on": NetworkMode.SHARED,
}
_CHUNK = 20_000  # events between two updates of the progress bar
Progress = Callable[[int, int], None]
Watch = Callable[[World, Array], int]


@dataclass(frozen=True)
class Setting:
    """Everything of a simulation but the trace, the cluster and the policy."""

    network: Network = "on"
    congestion: float = 1.0
    eviction_s: float = 40.0
    eviction_large_s: float = 60.0
    checkpoint_s: float = 1800.0
    estimate_error: float = 0.0
    # what schedulers know of durations, to `estimate_error`; or what they learn
    estimates: Estimates = "known"
    preemptible: float = 1.0  # share of the jobs that can be evicted and moved, where the trace does not say
    mix: Mix = field(default_factory=lambda: load_mix("balanced"))
    seed: int = 0
    reference_device: str | DeviceType | None = None  # of durations; None: the most common type
    faults: Array = field(default_factory=lambda: np.zeros(0, FAULT))
    fault_spec: FaultSpec | None = None  # drawn at the start of a run, with `seed` added to its own
    quotas: Mapping[str, int] = field(default_factory=dict)  # devices by virtual cluster
    log: bool = False
    # from this many jobs on, a run without a log keeps only what its figures need of a job that has ended
    window_from: int = 250_000

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise UnknownNameError("network", str(self.network), NETWORKS)
        if self.estimates not in ESTIMATES:
            raise UnknownNameError("choice of estimates", str(self.estimates), ESTIMATES)
        for name in ("eviction_s", "eviction_large_s", "checkpoint_s"):
            if not 0.0 <= (value := getattr(self, name)) < math.inf:
                what = "can't be negative" if value < 0 else "must be finite"
                raise QuantityError(f"{name} {value:g}: {what}")
        if not 0.0 <= self.estimate_error < 1.0:
            raise QuantityError(f"estimate_error {self.estimate_error:g}: from 0 to below 1")
        if not 0.0 <= self.preemptible <= 1.0:
            raise QuantityError(f"preemptible {self.preemptible:g}: from 0 to 1")


@dataclass(frozen=True, eq=False)
class Run:
    """What became of every job."""

    policy: str
    trace: Trace
    cluster: Cluster
    setting: Setting
    jobs: Jobs
    world: World
    accounts: Array  # ACCOUNT, by job row
    clock: Array
    log: Array
    log_places: Array
    cpu_s: float
    livelock: str = ""  # why it was stopped before its end, see livelock.py
    # of a long trace: the fields of its jobs' records that figures need, see window.py
    kept: Array | None = None

    @property
    def records(self) -> Array:
        """The jobs' records; of a long trace without a log, the fields in `window.KEPT`."""
        return self.world.jobs if self.kept is None else self.kept

    @cached_property
    def unfinished(self) -> tuple[str, ...]:
        """Ids of the jobs that fit the cluster and never finish."""
        left = (self.records["state"] != JobStatus.DONE) & (self.records["state"] != JobStatus.REFUSED)
        return tuple(str(self.trace.job_ids[row]) for row in np.flatnonzero(left))


def simulate(
    trace: Trace,
    cluster: Cluster,
    policy: Policy | str,
    setting: Setting | None = None,
    *,
    name: str | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Run:
    """Runs the trace to its end: until nothing can happen, or no progress is made (see `Run.unfinished`).

    The policy may be its text, as for `--policy`. `progress` is called with the number of jobs that have ended and of
    all jobs. `watch` is called with the world and the clock, and returns after how many events it wants to be called
    again.
    """
    setting = setting or Setting()
    if isinstance(policy, str):
        name, policy = name or policy, load_policy(policy)
    if not isinstance(policy, Policy):
        raise InputError(
            f"{policy!r} is not a policy", hint="pass an instance of one, or its text: 'fifo', 'mine.py:Mine'"
        )
    with located(policy):
        check_policy(policy)
        reference = reference_device(cluster, setting.reference_device)
        cluster = gpu_part(cluster, device_types_of(trace, cluster))
        fabric, network = Fabric(cluster, setting.congestion), NETWORKS[setting.network]
        trace = seconds_here(trace, cluster, fabric, network, setting.mix, setting.seed, reference)
        faults = faults_of(setting.faults, setting.fault_spec, setting.seed, trace, cluster)
        chosen = bool(trace.offers) or gangs_may_choose(policy.rules(), trace, cluster)
        whole = setting.log or watch is not None or chosen or len(trace) < setting.window_from
        engine = Engine(
            trace,
            cluster,
            fabric,
            _prepared(policy, trace),
            replace(setting, faults=faults),
            whole=whole,
            explained=watch is not None,
        )
        started = time.thread_time()  # other simulations may run in other threads
        livelock = engine.run(progress, watch)
        return engine.result(name or type(policy).__name__.lower(), livelock, time.thread_time() - started)


class Engine:
    """The state of one simulation and the compiled functions that advance it."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        fabric: Fabric,
        policy: Policy,
        setting: Setting,
        *,
        whole: bool = True,  # records of all jobs are kept
        explained: bool = True,  # and say why a job waits
    ) -> None:
        self.trace, self.cluster, self.policy, self.setting = trace, cluster, policy, setting
        self.jobs = read_jobs(
            trace,
            cluster,
            fabric,
            NETWORKS[setting.network],
            setting.mix,
            seed=setting.seed,
            estimate_error=setting.estimate_error,
            estimates=setting.estimates,
            preemptible=setting.preemptible,
            quotas=setting.quotas,
            gangs_choose=gangs_may_choose(policy.rules(), trace, cluster),
            as_columns=not whole,
        )
        records = self.jobs.records
        self._window = JobWindow(records, len(cluster.tiers)) if isinstance(records, JobColumns) else None
        self.world = new_world(
            cluster,
            policy,
            records,
            records=None if self._window is None else self._window.jobs,
            eviction_s=setting.eviction_s,
            eviction_large_s=setting.eviction_large_s,
            quotas=tuple(setting.quotas.values()),
            shapes=self.jobs.shapes,
            explained=explained,
        )
        accounts = new_accounts(self.world.jobs) if self._window is None else self._window.accounts
        self.state = _new_state(cluster, self.jobs, accounts, setting)
        self._logged: list[Array] = []
        self._places: list[Array] = []
        self._world, self._hooks = to_native(self.world), to_native(hooks(policy))
        self._net, self._state = to_native(_new_net(cluster, fabric, len(trace))), to_native(self.state)
        phases = phases_for(policy.rules(), self._world, self._hooks, with_shapes=len(self.world.shapes) > 0)
        self._phases = to_native(phases)
        self._speed = to_native(speed_hooks_for(self._world, self._state, self._net, self.state.clock))

    def run(self, progress: Progress | None = None, watch: Watch | None = None) -> str:
        """Runs to the end; returns why the run was stopped before it, or ""."""
        clock, events = self.state.clock, _CHUNK
        if watch is not None:
            events = watch(self.world, clock)
        detector, livelock = LivelockDetector(), ""
        while not livelock and (outcome := self._advance(events)) != OVER:
            self._raise_failure()
            livelock = detector.reached(self.world, clock, len(self.setting.faults))
            if outcome == LOG_FULL:
                self._empty_log()
            if progress is not None:
                progress(int(clock[0]["finished"]), len(self.world.jobs))
            if watch is not None:
                events = watch(self.world, clock)
        self._raise_failure()
        return livelock

    def result(self, policy: str, livelock: str, cpu_s: float) -> Run:
        """What became of every job."""
        self._empty_log()
        if self._window is not None:
            self._window.close()
        return Run(
            policy=policy,
            trace=self.trace,
            cluster=self.cluster,
            setting=self.setting,
            jobs=self.jobs,
            world=self.world,
            accounts=self.state.accounts if self._window is None else self._window.kept_accounts,
            clock=self.state.clock,
            log=np.concatenate(self._logged),
            log_places=np.concatenate(self._places),
            cpu_s=cpu_s,
            livelock=livelock,
            kept=None if self._window is None else self._window.records,
        )

    def _advance(self, events: int) -> int:
        if self._window is not None:
            self._window.write_until(int(self.state.clock[0]["arrived"]) + events)
        outcome: int = advance(
            self._world, self._hooks, self._phases, self._state, self._net, self._speed, events
        )
        if self._window is not None:
            self._window.collect(int(self.state.clock[0]["arrived"]))
        return outcome

    def _raise_failure(self) -> None:
        raise_failure(self.policy, self.world.params, lambda row: str(self.trace.job_ids[row]))

    def _empty_log(self) -> None:
        """Takes what the buffers hold; a buffer that is too small even when empty is doubled."""
        clock = self.state.clock[0]
        if clock["log"] == 0 and clock["logging"]:
            self.state = self.state._replace(
                log=np.zeros(2 * len(self.state.log), LOG),
                log_places=np.zeros(2 * len(self.state.log_places), LOG_PLACE),
            )
            self._state = to_native(self.state)
        part = self.state.log[: clock["log"]].copy()
        part["places"] += sum(len(places) for places in self._places)
        self._logged.append(part)
        self._places.append(self.state.log_places[: clock["log_places"]].copy())
        clock["log"] = clock["log_places"] = 0


def _prepared(policy: Policy, trace: Trace) -> Policy:
    """What `prepare` returns: the policy that runs."""
    prepared = policy.prepare(trace)
    if not isinstance(prepared, Policy):
        raise InputError(
            f"{type(policy).__name__}.prepare returned {prepared!r}, which is not a policy",
            hint="return self, or replace(self, ...)",
        )
    return prepared


def _new_state(cluster: Cluster, jobs: Jobs, accounts: Array, setting: Setting) -> EngineState:
    clock = np.zeros(1, CLOCK)
    clock["wake"] = np.inf
    clock["network"], clock["device_types"] = NETWORKS[setting.network], len(cluster.device_types)
    clock["logging"], clock["checkpoint_s"] = setting.log, setting.checkpoint_s
    size = 4 * len(jobs.records) + 16 * cluster.devices + 100_000 if setting.log else 1
    return EngineState(
        clock=clock,
        accounts=accounts,
        heap=np.zeros(2 * cluster.devices + 2, np.int32),
        faults=np.ascontiguousarray(setting.faults),
        traffic=jobs.traffic,
        log=np.zeros(size, LOG),
        log_places=np.zeros(2 * size if setting.log else 1, LOG_PLACE),
    )


def _new_net(cluster: Cluster, fabric: Fabric, jobs: int) -> Net:
    edges = cluster.devices * max(1, len(cluster.tiers))
    return Net(
        fabric.arrays,
        LinkShares(fabric.arrays.capacity, jobs, edges).state,
        new_flows(jobs),
        new_loads(len(fabric.arrays.capacity)),
    )
