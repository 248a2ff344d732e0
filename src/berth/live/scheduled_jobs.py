"""Jobs and the scheduler's arrays, in which each has a row: what it asks for, how long it may take, its slowdowns.

The arrays have a fixed length. When they are full they are copied to longer ones without the rows of ended jobs. The
order of the others does not change, so no decision does.
"""

from __future__ import annotations

import numpy as np

from berth.live import _kernels
from berth.live.demand import device_types_of, sensitivity_key, tier_range_of
from berth.live.job import Job
from berth.live.scheduled_shapes import bound_alternatives, fewest_devices, with_offer, without_other_shapes
from berth.live.sensitivity import Sensitivities, learned_slowdowns
from berth.live.setup import DEFAULT_DURATION_S, Setup
from berth.native.kernels import specialize
from berth.native.structs import to_native
from berth.schedule.decide import phases_for
from berth.schedule.hooks import hooks
from berth.schedule.policies.berth import Berth, Rank
from berth.schedule.records import DECISION, DEMAND, MAX_TIERS, USER, WAIT_STATS, Array, World
from berth.schedule.world import new_jobs, new_world
from berth.workload.binding import BoundShape

_FIRST = 256  # rows at the start


class ScheduledJobs:
    """The jobs of one setup as its policy sees them."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.cluster = setup.cluster
        self.policy = policy = setup.load_policy()
        self.timers = np.array(policy.timers(setup.tiers), float)
        self.world = new_world(
            setup.cluster,
            policy,
            new_jobs(_FIRST),
            eviction_s=setup.eviction_s,
            eviction_large_s=setup.eviction_large_s,
        )
        self.hooks = to_native(hooks(policy))
        self.phases = to_native(phases_for(policy.rules(), self.native_world, self.hooks))
        self.run_pass = specialize(_kernels.run_pass, self.native_world, self.hooks, self.phases, 0.0)
        self.join = specialize(_kernels.join, self.native_world, self.hooks, 0, 0.0)
        self.jobs: dict[str, Job] = {}  # those that have not ended
        self.rows: list[Job | None] = []
        self.users: dict[str, int] = {}
        self.step_s: dict[str, dict[int, float]] = {}  # measured, by sensitivity key and tier
        self.durations: dict[str, float] = {}  # of ended jobs, by name
        self.now = 0.0
        self._sensitivities = Sensitivities(setup.cluster)
        self._bound: dict[str, tuple[BoundShape, ...]] = {}  # alternatives, by job

    @property
    def world(self) -> World:
        """The scheduler's arrays; `native_world` has the same arrays for compiled code."""
        return self._world

    @world.setter
    def world(self, world: World) -> None:
        if world is not getattr(self, "_world", None):
            self._world, self.native_world = world, to_native(world)

    def add(self, job: Job) -> None:
        """Add a job, with a row of the scheduler's arrays."""
        self.jobs[job.id] = job
        self._reserve_row()
        bound = self.shapes_of(job)
        fewest = fewest_devices(bound) if job.spec.offer is not None else job.spec.gpus
        self.world = _with_demand(self.world, fewest, self.timers)
        self.world = _with_user(self.world, self.users.setdefault(job.user, len(self.users)))
        job.row = len(self.rows)
        self.rows.append(job)
        self._write_record(job)

    def shapes_of(self, job: Job) -> tuple[BoundShape, ...]:
        """Return the alternatives of a job that the cluster can hold; none for a gang."""
        if job.spec.offer is None:
            return ()
        if job.id not in self._bound:
            self._bound[job.id] = bound_alternatives(job.spec.offer, self.cluster)
        return self._bound[job.id]

    def shape_at(self, job: Job) -> BoundShape | None:
        """Return the shape in which a job runs, or in which it waits to; None for a gang."""
        record = self.world.jobs[job.row]
        number = int(record["shape"]) - int(record["first_shape"])
        return self.shapes_of(job)[number] if record["shape_count"] else None

    def forget_shapes(self, job: Job) -> None:
        """Drop what is known of the alternatives of a job that has ended."""
        self._bound.pop(job.id, None)

    def _reserve_row(self) -> None:
        """Make sure that one more row fits."""
        if len(self.rows) < len(self.world.jobs):
            return
        kept = [row for row, job in enumerate(self.rows) if job is not None]
        if len(self.world.shapes):
            self.world = without_other_shapes(self.world, kept)
        self.world = _with_free_rows(self.world, np.array(kept, np.int64))
        self.rows = [job for job in self.rows if job is not None]
        for row, job in enumerate(self.rows):
            assert job is not None
            job.row = row

    def _write_record(self, job: Job) -> None:
        """Write the record of a new job."""
        spec, record, bound = job.spec, self.world.jobs[job.row], self.shapes_of(job)
        record["arrival_s"], record["gpus"], record["priority"] = self.now, spec.gpus, spec.priority
        fewest = fewest_devices(bound) if spec.offer is not None else spec.gpus
        record["demand"] = np.searchsorted(self.world.demands["gpus"], fewest)
        record["delay_timer_s"][: len(self.timers)] = self.timers
        record["user"] = self.users[job.user]
        # the default policy evicts only jobs that are declared preemptible; all may be migrated unless declared not to
        default = isinstance(self.policy, Berth) and self.policy.order_by == Rank.SERVICE
        record["preemptible"] = not default if spec.preemptible is None else spec.preemptible
        record["movable"] = spec.preemptible is not False
        if spec.offer is not None and bound:
            self.world = with_offer(self.world, job.row, spec.offer, bound, self.cluster)
            return
        kinds = device_types_of(self.setup, spec)
        record["device_type"] = kinds[0] if len(kinds) == 1 else -1
        every = len(kinds) == len(self.setup.device_type_names)
        record["device_type_mask"] = -1 if every else sum(1 << kind for kind in kinds)
        expected_s = spec.duration or self.durations.get(spec.name) or DEFAULT_DURATION_S
        for name in ("work_s", "true_remaining_s", "estimated_remaining_s", "checkpointed_remaining_s"):
            record[name] = expected_s
        record["nearest_tier"], record["widest_tier"] = tier_range_of(self.setup, spec)
        self._sensitivities.write(record, job.profile, spec.gpus)
        self.apply_steps(job)

    def apply_steps(self, job: Job) -> None:
        """Write the slowdown of a job by its measured step times, if there are any."""
        known = self.step_s.get(sensitivity_key(self.setup, job.spec))
        if not known or job.spec.offer is not None:
            return
        record = self.world.jobs[job.row]
        self._sensitivities.write(record, job.profile, job.spec.gpus)
        record["slowdown"] = learned_slowdowns(record["slowdown"].copy(), known, int(record["nearest_tier"]))
        if job.token is not None:
            _kernels.run_at_speed(self.native_world, job.row, self.now)


def _with_demand(world: World, gpus: int, timers: Array) -> World:
    """Return the arrays with an entry for jobs of this size; sizes are in ascending order."""
    sizes = world.demands["gpus"]
    at = int(np.searchsorted(sizes, gpus))
    if at < len(sizes) and sizes[at] == gpus:
        return world
    demands, wait_stats = np.zeros(len(sizes) + 1, DEMAND), np.zeros((len(sizes) + 1, MAX_TIERS), WAIT_STATS)
    others = np.delete(np.arange(len(demands)), at)
    demands[others], wait_stats[others] = world.demands, world.wait_stats
    demands["gpus"][at] = gpus
    wait_stats["timer_s"][at, : len(timers)] = wait_stats["initial_timer_s"][at, : len(timers)] = timers
    world.jobs["demand"][world.jobs["demand"] >= at] += 1
    return world._replace(demands=demands, wait_stats=wait_stats)


def _with_user(world: World, user: int) -> World:
    """The world with totals for the user of this number."""
    if user < len(world.users):
        return world
    users = np.zeros(2 * user, USER)
    users[: len(world.users)] = world.users
    return world._replace(users=users)


def with_usage(world: World, earlier: World, now: float) -> World:
    """The world, in which nothing runs, with what users have used in an earlier one."""
    users = earlier.users.copy()
    users["gpu_s"] += users["gpus"] * np.maximum(0.0, now - users["updated_s"])
    users["gpus"], users["devices"], users["updated_s"] = 0, 0, now
    return world._replace(users=users)


def _with_free_rows(world: World, kept: Array) -> World:
    """Return full arrays with these rows only, in their order, followed by free ones."""
    size = len(world.jobs) if 2 * len(kept) <= len(world.jobs) else 2 * len(world.jobs)
    new_row = np.full(len(world.jobs), -1, np.int32)
    new_row[kept] = np.arange(len(kept), dtype=np.int32)
    jobs = new_jobs(size)
    jobs[: len(kept)] = world.jobs[kept]
    jobs["id"] = np.arange(size)
    state = world.state.copy()
    devices = len(world.running)
    waiting = np.zeros(size + 1, np.int32)
    queued = new_row[world.waiting[state["queue_start"][0] : state["queue_stop"][0]]]
    waiting[: len(queued)] = queued
    running = np.zeros(devices, np.int32)
    count = int(state["running"][0])
    running[:count] = new_row[world.running[:count]]
    ending, apart = np.zeros(size + devices, np.int32), np.zeros(size + devices, np.int32)
    for name, rows, old in (("ending", ending, world.ending), ("apart", apart, world.apart)):
        listed = new_row[old[: int(state[name][0])]]
        listed = listed[listed >= 0]
        rows[: len(listed)] = listed
        state[name] = len(listed)
    state["queue_start"], state["queue_stop"] = 0, len(queued)
    state["decisions"] = 0
    bound = world.bound.copy()
    bound["valid"] = 0  # the bound names a row; it is found again when it is needed
    reservation = world.reservation.copy()
    if (holder := int(reservation["last_holder"][0])) >= 0:
        reservation["last_holder"] = new_row[holder]
    return world._replace(
        jobs=jobs,
        waiting=waiting,
        running=running,
        ending=ending,
        apart=apart,
        decisions=np.zeros(2 * devices + size, DECISION),
        bound=bound,
        state=state,
        reservation=reservation,
    )
