"""How often the 95 % intervals of one trace hold the truth: `python benchmarks/intervals.py`.

Autoregressive jobs, where the truth is known, and simulated traces, where it is the ratio over all seeds.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.intervals import JOB_STATISTICS, job_intervals
from berth.simulate.run import Setting, simulate
from berth.simulate.trace_source import TraceSource

Floats = NDArray[np.float64]
CLUSTER = "2x4x8:H100"
SOURCE = "generate:jobs={jobs},load={load},durations=lognormal:1h:1,sizes=powers-of-two"


def correlated(rho: float, count: int, generator: np.random.Generator) -> Floats:
    """Log-normal times whose logarithms are autoregressive."""
    steps = generator.standard_normal(count) * math.sqrt(1 - rho * rho)
    logs, now = np.empty(count), float(generator.standard_normal())
    for at in range(count):
        logs[at] = now = rho * now + steps[at]
    return np.exp(logs)


def coverage(pairs: list[tuple[Floats, Floats]], truth: dict[str, float]) -> dict[str, float]:
    """The share of intervals that hold the truth, by statistic."""
    held = dict.fromkeys(truth, 0)
    for mine, base in pairs:
        for name, interval in job_intervals(mine, base, draws=300).items():
            assert interval is not None
            held[name] += interval[0] <= truth[name] <= interval[1]
    return {name: count / len(pairs) for name, count in held.items()}


def completion_times(policy: str, jobs: int, load: float, seed: int) -> Floats:
    """Completion times of one generated trace."""
    cluster = load_cluster(CLUSTER)
    trace = TraceSource(SOURCE.format(jobs=jobs, load=load)).trace(cluster, seed)
    run = simulate(trace, cluster, load_policy(policy), Setting(seed=seed))
    return np.asarray(run.records["end_s"] - run.records["arrival_s"])


def main() -> None:
    """Prints both tables."""
    generator = np.random.default_rng(1)
    print("autoregressive: jobs, rho, mean, p99")
    for count, rho in product((300, 1000, 3000), (0.0, 0.5, 0.9)):
        pairs = [(correlated(rho, count, generator), correlated(rho, count, generator)) for _ in range(300)]
        found = coverage(pairs, dict.fromkeys(JOB_STATISTICS, 1.0))
        print(count, rho, *(f"{share:.2f}" for share in found.values()), flush=True)
    print("simulated, srtf over fifo: jobs, load, mean, p99")
    for jobs, load in product((1000, 4000), (0.5, 0.7, 0.9)):
        pairs = [
            (completion_times("srtf", jobs, load, seed), completion_times("fifo", jobs, load, seed))
            for seed in range(100)
        ]
        truth = {
            name: float(np.exp(np.mean([math.log(one.value(a) / one.value(b)) for a, b in pairs])))
            for name, one in JOB_STATISTICS.items()
        }
        found = coverage(pairs, truth)
        print(jobs, load, *(f"{share:.2f}" for share in found.values()), flush=True)


if __name__ == "__main__":
    main()
