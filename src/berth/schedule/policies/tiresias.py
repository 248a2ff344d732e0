"""Tiresias (Gu et al., NSDI 2019): least attained service, without or with the Gittins index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from berth import reproducible
from berth.errors import InputError
from berth.schedule import JobView, Policy, PreemptByOrder, Rules, StaticOrder
from berth.schedule.policies.constant import array, number
from berth.schedule.policies.las import (
    LasJob,
    check_queues,
    place_in_line,
    rank,
    sinks_at,
    starved_at,
    update_queue,
)

if TYPE_CHECKING:
    from typing import Self

    from berth.workload.trace import Trace

_STEPS = 200  # of the table of indices: as many bounds, then the rank from each bound on


@dataclass(frozen=True)
class Tiresias(Policy):
    """Least attained service first, in three queues (2D-LAS); a job with a large tensor is kept together.

    Its authors' simulator gives a mean completion time of 184,694.87 s for philly480 on 160 flat GPUs, this
    policy 183,168.29 s. The rule is the same; that program looks for a job's next demotion with seconds where
    GPU-seconds are meant, and in whole seconds, so gangs sink late. Rewritten with those two slips the
    rule gives 184,694.87 s, without them 183,162.23 s; the rest is the order of jobs evicted at one moment.
    """

    Job = LasJob
    first: float = number(3250, "GPU-seconds at which a job leaves the first queue")
    second: float = number(7200, "GPU-seconds at which it leaves the second")
    starvation: float = number(0, "a job that waited this many times what it ran is first again; 0: never")
    skew: float = number(0.3, "largest tensor / all parameters above which a job is kept together")

    def __post_init__(self) -> None:
        check_queues(self.first, self.second)

    def rules(self) -> Rules:
        """Jobs with least service run; a running job's order changes with time."""
        return Rules(
            order=StaticOrder() if self.starvation == 0 else None,
            preempt=PreemptByOrder(monotone_order=True),
            wake_running=True,
        )

    @staticmethod
    def update(job: LasJob, now: float, params: Tiresias) -> None:
        """Sinks, or comes back to the first queue."""
        update_queue(job, now, params.first, params.second, params.starvation)

    @staticmethod
    def order(job: LasJob, now: float, params: Tiresias) -> float:
        """The queue."""
        return rank(job, now)

    @staticmethod
    def tie_break(job: LasJob, now: float, params: Tiresias) -> float:
        """First in, first out."""
        return place_in_line(job)

    @staticmethod
    def allowed_tier(job: JobView, now: float, params: Tiresias) -> int:
        """Skewed jobs are consolidated, others may be anywhere."""
        return job.nearest_tier if job.skew > params.skew else job.widest_tier

    @staticmethod
    def wake(job: LasJob, now: float, params: Tiresias) -> float:
        """When it sinks, or has starved."""
        if job.tier >= 0:
            return sinks_at(job, now, params.first, params.second)
        return starved_at(job, params.starvation)


@dataclass(frozen=True)
class Gittins(Policy):
    """The queues of Tiresias, and inside each the highest Gittins index first (Tiresias-G).

    The index is the chance to end within the next `delta` of service over the service that takes.
    The distribution of GPU-seconds is that of the trace itself, so it knows more than a real scheduler,
    which would have only the past. The index is constant between the steps of a table.
    """

    Job = LasJob
    delta: float = number(3250, "GPU-seconds of service that the index looks ahead")
    skew: float = number(0.3, "largest tensor / all parameters above which a job is kept together")
    first: float = number(3250, "GPU-seconds at which a job leaves the first queue")
    second: float = number(7200, "GPU-seconds at which it leaves the second")
    steps: tuple[float, ...] = array()

    def __post_init__(self) -> None:
        check_queues(self.first, self.second)

    def rules(self) -> Rules:
        """Jobs that are most likely to end soon run."""
        return Rules(order=StaticOrder(), preempt=PreemptByOrder(), wake_running=True)

    def prepare(self, trace: Trace) -> Self:
        """Reads the distribution of service from the trace."""
        if not 0.0 < self.delta < math.inf:
            raise InputError(
                f"policy gittins, delta: {self.delta:g} GPU-seconds are nothing to look ahead by"
            )
        return replace(self, steps=tuple(index_table(trace.num_gpu * trace.duration_s, self.delta)))

    @staticmethod
    def update(job: LasJob, now: float, params: Gittins) -> None:
        """Sinks."""
        update_queue(job, now, params.first, params.second, 0.0)

    @staticmethod
    def order(job: LasJob, now: float, params: Gittins) -> float:
        """The queue."""
        return job.queue

    @staticmethod
    def tie_break(job: LasJob, now: float, params: Gittins) -> float:
        """The table's rank for the service so far."""
        return params.steps[_STEPS + step_of(job.attained_gpu_s, params.steps)]

    allowed_tier = staticmethod(Tiresias.allowed_tier)

    @staticmethod
    def wake(job: LasJob, now: float, params: Gittins) -> float:
        """When a running job sinks a queue or reaches the next step."""
        if job.tier < 0:
            return math.inf
        soon = sinks_at(job, now, params.first, params.second)
        step = step_of(job.attained_gpu_s, params.steps) + 1
        if step < _STEPS:
            soon = min(soon, now + max(1e-3, params.steps[step] - job.attained_gpu_s) / job.gpus)
        return soon


def step_of(attained: float, table: Sequence[float]) -> int:
    """The last step whose bound has been reached, to a thousandth of a GPU-second."""
    low, high = 0, _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        if table[middle] <= attained + 1e-3:
            low = middle
        else:
            high = middle
    return low


def index_table(services: Any, delta: float) -> list[float]:
    """Bounds, geometrically spaced, and minus the Gittins index at each.

    At service a it is P(ends within delta) / E(service until it ends or delta is over), both given that it
    has not ended at a. A job that outlived all of them comes last. The same bits on every CPU: sums run from
    the shortest service to the longest.
    """
    services = np.sort(np.asarray(services, float))
    widest = max(2.0 * delta, float(services[-1]))
    growth = reproducible.log(widest / delta) / (_STEPS - 2)
    between = [delta * reproducible.exp(growth * step) for step in range(1, _STEPS - 2)]
    bounds = [0.0, delta, *between, widest]
    ranks = []
    for bound in bounds:
        left = services[services > bound] - bound
        ending = np.count_nonzero(left <= delta)
        ranks.append(-float(ending / np.cumsum(np.minimum(left, delta))[-1]) if len(left) else 0.0)
    return [*bounds, *ranks]
