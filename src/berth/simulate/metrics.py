"""What a run amounts to: completion times, waits, use of the devices, the network's toll, dollars."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from berth.schedule.view import DONE
from berth.simulate.run import Run


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
    p99_wait_s: float
    gpu_utilisation: float  # device-seconds held / device-seconds there were
    fragmentation: float  # share of device-seconds free while a job waited that asked for no more
    exposed_comm_gpu_s: float
    evictions: int
    moves: int
    lost_gpu_s: float
    tier_share: dict[str, float]  # of the device-seconds of jobs with more than one GPU
    cost_usd: float | None  # of the whole cluster until the last job is over
    never_schedulable: int
    unfinished: tuple[str, ...]  # ids of jobs that could run and never finish; counted in no figure
    cpu_s: float

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "unfinished": list(self.unfinished)}


def summarise(run: Run) -> Summary:
    """The figures of a run."""
    jobs = run.records
    done = jobs[jobs["state"] == DONE]
    jct = done["end"] - done["arrival"]
    first = float(jobs["arrival"].min()) if len(jobs) else 0.0
    makespan = float(done["end"].max()) - first if len(done) else 0.0
    there_was = run.cluster.devices * makespan
    price = run.cluster.usd_per_hour
    return Summary(
        policy=run.policy,
        jobs=len(jobs),
        finished=len(done),
        mean_jct_s=_mean(jct),
        p50_jct_s=_percentile(jct, 50),
        p95_jct_s=_percentile(jct, 95),
        p99_jct_s=_percentile(jct, 99),
        makespan_s=makespan,
        mean_wait_s=_mean(done["waited"]),
        p99_wait_s=_percentile(done["waited"], 99),
        gpu_utilisation=float(done["attained"].sum()) / there_was if there_was else 0.0,
        fragmentation=float(run.clock[0]["idle_wanted_s"]) / there_was if there_was else 0.0,
        exposed_comm_gpu_s=float(done["exposed"].sum()),
        evictions=int(run.clock[0]["evictions"]),
        moves=int(run.clock[0]["moves"]),
        lost_gpu_s=float(done["lost"].sum()),
        tier_share=_tier_share(run),
        cost_usd=None if price is None else price * makespan / 3600,
        never_schedulable=len(run.jobs.too_large) + len(run.jobs.over_quota),
        unfinished=run.unfinished,
        cpu_s=run.cpu_s,
    )


def _tier_share(run: Run) -> dict[str, float]:
    gangs = run.records[run.records["gpus"] > 1]
    at_tier = gangs["at_tier"].sum(axis=0)
    total = float(at_tier.sum())
    shares = at_tier / total if total else at_tier
    return {tier.name: float(share) for tier, share in zip(run.cluster.tiers, shares, strict=False)}


def _mean(values: np.ndarray[Any, Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _percentile(values: np.ndarray[Any, Any], rank: float) -> float:
    return float(np.percentile(values, rank)) if len(values) else 0.0
