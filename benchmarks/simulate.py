"""How fast the simulator is: jobs per CPU-second on 76,573 real jobs, after everything is loaded.

    python benchmarks/simulate.py [--shared DIR] [--repeats 3] [--json]

Prints, side by side in one run: each policy's jobs per CPU-second with its spread and its bar, a naive Python
event loop on the same work, ten times the jobs against one time, one pass over a long queue, memory, and what
compiling cost. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from berth.cluster.load import load_cluster
from berth.report.terminal import console, table
from berth.schedule.policies.registry import load_policy
from berth.simulate.run import Setting, simulate
from berth.workload.distributions import like
from berth.workload.generate import GenerateSpec, generate
from berth.workload.reading import read_trace
from berth.workload.selection import Selection
from berth.workload.trace import Trace

COUNTED = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0)
NETWORKED = Setting(network="on", congestion=5.0)
RUNS = [
    ("fifo", "64x8", COUNTED, 100_000),
    ("srtf", "64x8", COUNTED, 100_000),
    ("srsf", "64x8", COUNTED, 100_000),
    ("tiresias", "64x8", COUNTED, 100_000),
    ("dally:mode=tuned", "8x8x8:V100-16", NETWORKED, 20_000),
    ("berth", "8x8x8:V100-16", NETWORKED, 20_000),
]
MEMORY_BAR_MB = 600
GROWTH_BAR = 13.0
PASS_BAR_MS = 50.0


@dataclass(frozen=True)
class Speed:
    """Jobs per CPU-second of one policy, over the repeats."""

    policy: str
    cluster: str
    bar: int
    jobs_per_s: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.jobs_per_s)

    @property
    def met(self) -> bool:
        return self.median >= self.bar


def philly(shared: Path) -> Trace:
    trace = read_trace(shared / "traces" / "philly" / "philly.csv.xz")
    return Selection(since="2017-10-01", sizes="powers-of-two", max_gpus=64).apply(trace)


def measure(trace: Trace, policy: str, cluster: str, setting: Setting, repeats: int) -> list[float]:
    speeds = []
    for _ in range(repeats):
        run = simulate(trace, load_cluster(cluster), load_policy(policy), setting)
        speeds.append(len(run.records) / run.cpu_s)
    return speeds


def naive_fifo(trace: Trace, gpus: int) -> float:
    """Strict FIFO by counting, in plain Python: what the compiled loop is compared with."""
    import heapq

    started = time.process_time()
    free, head = gpus, 0
    queue: list[tuple[int, float]] = []
    running: list[tuple[float, int]] = []
    for now, need, duration in zip(
        trace.submit_s.tolist(), trace.num_gpu.tolist(), trace.duration_s.tolist(), strict=True
    ):
        while running and running[0][0] <= now:
            end, given = heapq.heappop(running)
            free += given
            head, free = start_all(queue, head, running, free, end)
        queue.append((need, duration))
        head, free = start_all(queue, head, running, free, now)
    while running:
        end, given = heapq.heappop(running)
        head, free = start_all(queue, head, running, free + given, end)
    return len(trace.submit_s) / (time.process_time() - started)


def start_all(
    queue: list[tuple[int, float]], head: int, running: list[tuple[float, int]], free: int, now: float
) -> tuple[int, int]:
    import heapq

    while head < len(queue) and queue[head][0] <= free:
        need, duration = queue[head]
        heapq.heappush(running, (now + duration, need))
        free -= need
        head += 1
    return head, free


def growth(trace: Trace, policy: str) -> float:
    """CPU time of ten times the jobs over that of one time, generated alike at the same load."""
    seconds = []
    for jobs in (20_000, 200_000):
        sizes, durations = like(trace)
        spec = GenerateSpec(jobs=jobs, load=0.75, gpus=512, sizes=sizes, durations=durations, seed=1)
        run = simulate(generate(spec), load_cluster("64x8"), load_policy(policy), COUNTED)
        seconds.append(run.cpu_s)
    return seconds[1] / seconds[0]


def long_queue_ms(policy: str) -> float:
    """CPU milliseconds of a pass while up to 10,000 jobs, all come at once, wait for 1,000 machines."""
    jobs = 10_000
    trace = Trace.from_columns(
        {
            "job_id": [str(i) for i in range(jobs)],
            "submit_s": np.zeros(jobs),
            "num_gpu": np.full(jobs, 8, np.int32),
            "duration_s": 3600.0 + np.arange(jobs, dtype=float),
        },
        source="long queue",
        format="berth",
        origin=None,
        notes=(),
    )
    run = simulate(trace, load_cluster("1000x8"), load_policy(policy), COUNTED)
    return 1000 * run.cpu_s / int(run.world.state[0]["passes"])


def main() -> int:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    default = os.environ.get("BERTH_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    parser.add_argument("--shared", type=Path, default=Path(default))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.shared / "traces").is_dir():
        print(f"error: no traces below {options.shared}\n  name the folder with --shared", file=sys.stderr)
        return 2
    trace = philly(options.shared)
    started = time.process_time()
    for policy, cluster, setting, _ in RUNS:
        simulate(Selection(limit=200).apply(trace), load_cluster(cluster), load_policy(policy), setting)
    loading_s = time.process_time() - started
    speeds = [Speed(p, c, bar, measure(trace, p, c, s, options.repeats)) for p, c, s, bar in RUNS]
    figures: dict[str, Any] = {
        "jobs": len(trace.submit_s),
        "loading_cpu_s": loading_s,
        "naive_fifo_jobs_per_s": naive_fifo(trace, 512),
        "ten_times_the_jobs": {policy: growth(trace, policy) for policy in ("srsf", "fifo")},
        "pass_of_10000_waiting_ms": long_queue_ms("fit-first"),
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    return report(speeds, figures, as_json=options.json)


def report(speeds: list[Speed], figures: dict[str, Any], *, as_json: bool) -> int:
    missed = [speed.policy for speed in speeds if not speed.met]
    if max(figures["ten_times_the_jobs"].values()) > GROWTH_BAR:
        missed.append("growth")
    if figures["pass_of_10000_waiting_ms"] > PASS_BAR_MS:
        missed.append("pass")
    if figures["max_rss_mb"] > MEMORY_BAR_MB:
        missed.append("memory")
    if as_json:
        results = [asdict(speed) for speed in speeds]
        print(json.dumps({"results": results, "missed": missed, **figures}, indent=2))
        return 1 if missed else 0
    rows = [
        [
            speed.policy,
            speed.cluster,
            f"{speed.median:,.0f}",
            f"{min(speed.jobs_per_s):,.0f}-{max(speed.jobs_per_s):,.0f}",
            f"{speed.bar:,}",
            "yes" if speed.met else "NO",
        ]
        for speed in speeds
    ]
    screen = console()
    title = f"Jobs per CPU-second, {figures['jobs']:,} Philly jobs"
    screen.print(table(title, ["policy", "cluster", "median", "spread", "bar", "met"], rows, left=2))
    fifo = next(speed.median for speed in speeds if speed.policy == "fifo")
    naive = figures["naive_fifo_jobs_per_s"]
    print(
        f"A plain Python loop, strict FIFO by counting: {naive:,.0f} jobs/s: fifo is {fifo / naive:.1f} times it."
    )
    for policy, ratio in figures["ten_times_the_jobs"].items():
        print(
            f"Ten times the jobs at the same load take {ratio:.1f} times as long ({policy}; bar {GROWTH_BAR:g})."
        )
    pass_ms, memory_mb = figures["pass_of_10000_waiting_ms"], figures["max_rss_mb"]
    print(f"A pass with up to 10,000 waiting on 1,000 machines: {pass_ms:.3f} ms on average.")
    print(
        f"Memory at most {memory_mb:.0f} MB; loading the kernels took {figures['loading_cpu_s']:.1f} CPU s."
    )
    print("All bars met." if not missed else f"Bars missed: {', '.join(missed)}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
