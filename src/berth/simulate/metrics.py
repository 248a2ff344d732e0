"""What a run amounts to: completion times, waits, use of the devices, the network's toll, dollars."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from berth.arrays import FloatArray
from berth.schedule.records import JobStatus
from berth.simulate.engine_state import FaultKind
from berth.simulate.run import Run

SLOWDOWN_BOUND_S = 10.0  # the bound that studies of batch schedulers use (bounded slowdown)


@dataclass(frozen=True)
class Summary:
    """The figures of one run. Times in seconds, `gpu_s` in device-seconds."""

    policy: str
    jobs: int
    finished: int
    mean_jct_s: float
    p50_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    makespan_s: float
    mean_wait_s: float
    p95_wait_s: float
    p99_wait_s: float
    mean_slowdown: float  # completion time over the duration at the nearest place, see `slowdowns`
    p95_slowdown: float
    fairness: float  # Jain's index of the speeds at which jobs were served, 1 / slowdown: 1 is all alike
    goodput: float  # device-seconds that finished jobs need at their nearest place / those of machines that were up
    gpu_utilisation: float  # device-seconds held by jobs / device-seconds of machines that were up
    fragmentation: float  # share of the same that was free while a job waited that asked for no more
    exposed_comm_gpu_s: float
    mean_comm_s: float  # exposed communication of a job, on average over finished jobs
    evictions: int
    moves: int
    lost_gpu_s: float
    tier_share: dict[str, float]  # of the device-seconds of jobs with more than one GPU
    cost_usd: float | None  # of the whole cluster until the last job is over
    usd_per_million_examples: float | None  # of finished jobs with alternatives: price of what they held
    deadlines_missed: int | None  # None: no job has one
    shape_changes: int  # attempts in another shape than the one before
    never_schedulable: int
    unfinished: tuple[str, ...]  # ids of jobs that could run and never finish
    cpu_s: float

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "unfinished": list(self.unfinished)}


def summarise(run: Run) -> Summary:
    """The figures of a run."""
    jobs = run.records
    finished = jobs["state"] == JobStatus.DONE
    end, waited, gpus = (jobs[name][finished] for name in ("end_s", "waited_s", "gpus"))
    exposed = run.accounts["exposed_comm_gpu_s"][finished]
    jct = end - jobs["arrival_s"][finished]
    first = float(jobs["arrival_s"].min()) if len(jobs) else 0.0
    makespan = float(end.max()) - first if len(end) else 0.0
    over = float(run.clock[0]["now"]) if run.unfinished else first + makespan
    up_s = _up_s(run, first, over)
    needed_s, num_gpu = run.trace.duration_s[finished], run.trace.num_gpu[finished]
    slow = slowdowns(jct, needed_s)
    price = run.cluster.usd_per_hour
    return Summary(
        policy=run.policy,
        jobs=len(jobs),
        finished=len(end),
        mean_jct_s=_mean(jct),
        p50_jct_s=_percentile(jct, 50),
        p95_jct_s=_percentile(jct, 95),
        p99_jct_s=_percentile(jct, 99),
        makespan_s=makespan,
        mean_wait_s=_mean(waited),
        p95_wait_s=_percentile(waited, 95),
        p99_wait_s=_percentile(waited, 99),
        mean_slowdown=_mean(slow),
        p95_slowdown=_percentile(slow, 95),
        fairness=jain(1 / slow),
        goodput=float((needed_s * num_gpu).sum()) / up_s if up_s else 0.0,
        gpu_utilisation=_held_s(run) / up_s if up_s else 0.0,
        fragmentation=float(run.clock[0]["idle_wanted_s"]) / up_s if up_s else 0.0,
        exposed_comm_gpu_s=float(exposed.sum()),
        mean_comm_s=_mean(exposed / np.maximum(1, gpus)),
        evictions=int(run.clock[0]["evictions"]),
        moves=int(run.clock[0]["moves"]),
        lost_gpu_s=float(run.accounts["lost_gpu_s"][finished].sum()),
        tier_share=_tier_share(run),
        cost_usd=None if price is None else price * makespan / 3600,
        usd_per_million_examples=_usd_per_million(run, finished),
        deadlines_missed=_deadlines_missed(run),
        shape_changes=int(run.accounts["reshapes"].sum()),
        never_schedulable=len(run.jobs.too_large) + len(run.jobs.over_quota),
        unfinished=run.unfinished,
        cpu_s=run.cpu_s,
    )


def slowdowns(jct_s: FloatArray, needed_s: FloatArray) -> FloatArray:
    """Completion times over durations; jobs shorter than 10 s count as that long, and none is faster than 1.

    Without the bound a job of a second that waits for an hour would weigh more than a thousand others.
    """
    return np.maximum(1.0, jct_s / np.maximum(needed_s, SLOWDOWN_BOUND_S))


def jain(shares: FloatArray) -> float:
    """Jain's fairness index, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything."""
    squares = float(shares @ shares)
    return float(shares.sum()) ** 2 / (len(shares) * squares) if squares else 1.0


def _usd_per_million(run: Run, finished: np.ndarray[Any, Any]) -> float | None:
    """Dollars per million examples of the finished jobs whose work is counted in examples; None: there are none."""
    examples, usd = 0.0, 0.0
    for row in np.flatnonzero(finished & (run.records["shape"] >= 0)):
        offer = run.trace.offers.get(run.trace.job_ids[row])
        if offer is not None and offer.work.unit == "examples":
            work = offer.work
            examples, usd = examples + work.amount, usd + float(run.accounts[row]["usd"])
    return usd / examples * 1e6 if examples else None


def _deadlines_missed(run: Run) -> int | None:
    """Jobs that ended after their deadline, or never."""
    due = {job: offer.deadline_s for job, offer in run.trace.offers.items() if offer.deadline_s is not None}
    if not due:
        return None
    ends = {job: run.records[row] for row, job in enumerate(run.trace.job_ids) if job in due}
    return sum(
        bool(record["state"] != JobStatus.DONE or record["end_s"] - record["arrival_s"] > due[job])
        for job, record in ends.items()
    )


def _held_s(run: Run) -> float:
    """Device-seconds held, also by jobs that never finish."""
    jobs, now = run.records, float(run.clock[0]["now"])
    running = jobs[jobs["state"] == JobStatus.RUNNING]
    return float(jobs["attained_gpu_s"].sum() + ((now - running["updated_s"]) * running["gpus"]).sum())


def _up_s(run: Run, first_s: float, over_s: float) -> float:
    """Device-seconds of machines that were up from the first submission to the end."""
    total = run.cluster.devices * (over_s - first_s)
    sizes, failures, since = run.cluster.sizes, Counter[int](), dict[int, float]()
    for time_s, machine, what in run.setting.faults.tolist():
        if what == FaultKind.FAIL:
            since.setdefault(machine, time_s)
            failures[machine] += 1
        elif what == FaultKind.REPAIR:
            failures[machine] -= 1
            if not failures[machine]:
                total -= _overlap_s(since.pop(machine), time_s, first_s, over_s) * int(sizes[machine])
    for machine, start_s in since.items():
        total -= _overlap_s(start_s, over_s, first_s, over_s) * int(sizes[machine])
    return total


def _overlap_s(start_s: float, stop_s: float, first_s: float, over_s: float) -> float:
    """How much of an outage lies within the run."""
    return max(0.0, min(stop_s, over_s) - max(start_s, first_s))


def _tier_share(run: Run) -> dict[str, float]:
    at_tier = run.accounts["tier_gpu_s"][run.records["gpus"] > 1].sum(axis=0)
    total = float(at_tier.sum())
    shares = at_tier / total if total else at_tier
    return {tier.name: float(share) for tier, share in zip(run.cluster.tiers, shares, strict=False)}


def _mean(values: np.ndarray[Any, Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _percentile(values: np.ndarray[Any, Any], rank: float) -> float:
    return float(np.percentile(values, rank)) if len(values) else 0.0
