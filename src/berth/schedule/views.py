"""What a policy's functions are called with, as types: for completion in an editor, and for mypy.

No object has these classes. Compiled code reads the records of records.py, and a policy that is interpreted reads them
through a view; either refuses a field that is not listed here. Times are in seconds since the start of the run.
Users and virtual clusters are numbers, tiers and device types are indices. All of it is read-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class JobView(Protocol):
    """One job: what was asked for, what it has done so far, and what distance costs it."""

    id: int
    """Its row: a number that no other job has at the same time."""
    gpus: int
    """Devices that it needs, all at once."""
    priority: int
    """Higher goes first, whatever the policy's order is."""
    user: int
    """Number of its user, by first appearance."""
    quota: int
    """Number of its virtual cluster; -1: it has none."""
    device_type: int
    """The type of device that it needs; -1: any in `device_type_mask`."""
    device_type_mask: int
    """The types that it accepts, one bit each."""
    nearest_tier: int
    """The nearest tier that can hold it: 0 is one machine."""
    widest_tier: int
    """The farthest tier that its user allows."""
    work_s: float
    """Seconds that it needs at the nearest tier, alone; where that is unknown, as estimated."""
    preemptible: int
    """0: once started it is not evicted for other jobs."""
    movable: int
    """0: nor migrated."""

    state: int
    """1: waiting, 2: running."""
    tier: int
    """The tier at which it runs; -1: it waits."""
    speed: float
    """Seconds of work per second."""
    arrival_s: float
    """When it was submitted."""
    queued_since_s: float
    """When it was submitted or last evicted."""
    waited_s: float
    """Seconds of all waits that have ended."""
    started_s: float
    """When the current attempt started."""
    restored_at_s: float
    """When the current attempt has restored its state and begins to work."""
    first_start_s: float
    """When it first started; -1: not yet."""
    last_eviction_s: float
    """When it was last evicted; -inf: never."""
    evictions: int
    """How often it was evicted."""
    moves: int
    """How often it was migrated."""

    estimated_remaining_s: float
    """Seconds of work that are left at the nearest tier, as far as the scheduler knows."""
    estimate_error: float
    """Estimated over true remaining time; 1 where durations are known."""
    estimate_kind: int
    """0: remaining times are known, to `estimate_error`; 1: learned from jobs that have ended; 2: unknown."""
    given_s: float
    """Its user's estimate of `work_s`; 0: none."""
    done_s: float
    """Seconds of work done, as of `updated_s`."""
    index_s: float
    """Least expected seconds of work per completion (Gittins); `estimated_remaining_s` where that is known."""
    index_until_s: float
    """When `index_s` changes by itself if the job goes on running; inf: it only falls."""
    restore_s: float
    """Seconds that stopping it and restoring its state elsewhere costs."""
    attained_gpu_s: float
    """GPU-seconds of all attempts, as of `updated_s`."""
    ran_s: float
    """Seconds that it ran in all attempts, as of `updated_s`."""
    updated_s: float
    """The time as of which its progress is given."""

    slowdown: Sequence[float]
    """[tier] Iteration time there over that at the nearest tier, with idle links: a lower bound."""
    compute_share: float
    """Share of an iteration at the nearest tier that is computation."""
    skew: float
    """Largest tensor over all parameters."""
    message_bytes: float
    """Bytes sent per iteration; 0: distance costs nothing."""
    imbalance_slowdown: float
    """Slowdown by an uneven spread over machines, at the place that is being considered."""
    shape_imbalance: Sequence[float]
    """Three values of imbalance, for which `shape_slowdown` has the slowdown."""
    shape_slowdown: Sequence[float]
    """Slowdown at each value of `shape_imbalance`."""
    delay_timer_s: Sequence[float]
    """[tier] Seconds to wait for that tier."""
    typical_gpu_s: float
    """GPU-seconds that recent jobs needed; set before `spread` is called."""


class ClusterView(Protocol):
    """Totals of the cluster, and of the user and the virtual cluster of the job that a hook is called for."""

    device_types: int
    """Types of device; the arrays by type have this many entries that count."""
    devices: Sequence[int]
    """[device type] Devices installed."""
    free: Sequence[int]
    """[device type] Devices free now; those reserved for a job or on a machine that is down are not."""
    user_gpus: int
    """Devices of all types that the user's running jobs hold."""
    user_devices: Sequence[int]
    """[device type] Devices that the user's running jobs hold."""
    user_gpu_s: float
    """GPU-seconds that the user's jobs have used until now."""
    quota_gpus: int
    """Devices that the virtual cluster holds; 0 where it has no quota."""
    quota_limit: int
    """Devices that the virtual cluster may hold; 0 where it has no quota."""


class WaitStatsView(Protocol):
    """Recent waits of jobs of one size for one tier, as `observe` reads them."""

    timer_s: float
    """The timer that applies now, in seconds."""
    initial_timer_s: float
    """The timer before anything was learned, in seconds."""
    count: int
    """Waits that are kept."""
    next: int
    """Index of the entry that is overwritten next."""
    at_s: Sequence[float]
    """[i] When a wait ended."""
    wait_s: Sequence[float]
    """[i] How long it was, in seconds."""
    gave_up: Sequence[int]
    """[i] 1: the job took a wider tier instead."""
