"""How fast the simulator is: jobs per CPU-second on 76,573 real jobs, after everything is loaded.

    python benchmarks/simulate.py [--shared DIR] [--repeats 3]

Prints, side by side in one run: each policy's jobs per CPU-second with its spread and its bar, a naive Python
event loop on the same work, ten times the jobs against one time, one pass over a long queue, memory, and what
compiling cost. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.workload.distributions import like, load_sizes
from berth.workload.generate import GenerateSpec, generate
from berth.workload.reading import read_trace
from berth.workload.selection import Selection
from berth.workload.trace import Trace
from results import Figure, figure, finish, options, progress

COUNTED = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0)
NETWORKED = Setting(network="on", congestion=5.0)
RUNS = [
    ("fifo", "64x8", COUNTED, 100_000),
    ("srtf", "64x8", COUNTED, 100_000),
    ("srsf", "64x8", COUNTED, 100_000),
    ("tiresias", "64x8", COUNTED, 100_000),
    ("dally:mode=tuned", "8x8x8:V100-16", NETWORKED, 60_000),
    ("berth", "8x8x8:V100-16", NETWORKED, 100_000),
]
MEMORY_BAR_MB = 600
GROWTH_BAR = 13.0
PASS_BAR_MS = 50.0
LONG_TRACE, LONG_TRACE_BAR_MB = 3_000_000, 1_500
QUEUE_BAR = 2.2
QUEUE_TRACES = 9
LARGE_BAR_S = 10.0
PLAIN, ELSE = "a plain Python loop, strict FIFO by counting", "Growth, passes, memory"


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
    return 1000 * run.cpu_s / int(run.clock[0]["moments"])


def queue_growth(policy: str, seeds: int) -> list[float]:
    """CPU time of 20,000 jobs that all come at once over that of 10,000, for each of several traces."""

    def cpu_s(jobs: int, seed: int) -> float:
        spec = GenerateSpec(jobs=jobs, load=1.0, gpus=512, sizes=load_sizes("powers-of-two"), seed=seed)
        trace = generate(spec)
        at_once = replace(trace, frame=trace.frame.with_columns(pl.lit(0.0).alias("submit_s")))
        return simulate(at_once, load_cluster("8x8x8:V100-16"), load_policy(policy), NETWORKED).cpu_s

    return [cpu_s(20_000, seed) / cpu_s(10_000, seed) for seed in range(1, seeds + 1)]


def large_cluster_s(policy: str) -> float:
    """CPU seconds of 100,000 jobs on 100,000 GPUs."""
    spec = GenerateSpec(jobs=100_000, load=0.9, gpus=100_000, sizes=load_sizes("powers-of-two"), seed=1)
    return simulate(generate(spec), load_cluster("25x50x10x8:V100-16"), load_policy(policy), NETWORKED).cpu_s


def long_trace_mb() -> float:
    """Memory at most of a process that runs the long trace, once it is compiled."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run_long_trace)


def run_long_trace() -> float:
    """Memory at most of this process, which has run the long trace."""
    spec = GenerateSpec(jobs=LONG_TRACE, load=0.75, gpus=1024, sizes=load_sizes("powers-of-two"), seed=1)
    summarise(simulate(generate(spec), load_cluster("8x16x8"), load_policy("fifo"), COUNTED))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = options(__doc__)
    default = os.environ.get("BERTH_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    parser.add_argument("--shared", type=Path, default=Path(default))
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if not (given.shared / "traces").is_dir():
        print(f"error: no traces below {given.shared}\n  name the folder with --shared", file=sys.stderr)
        return 2
    trace = philly(given.shared)
    few = Selection(limit=200).apply(trace)
    progress("compiling what is not compiled yet")
    loading = compiled_before(few)
    started = time.process_time()
    run_all(few)
    loading.append(figure(ELSE, "loading the kernels", "CPU-s", [time.process_time() - started]))
    found = [*speeds(trace, given.repeats), *others(trace, given.repeats), *loading]
    return finish("simulate", found, given.results)


def run_all(trace: Trace) -> None:
    for policy, cluster, setting, _ in RUNS:
        simulate(trace, load_cluster(cluster), load_policy(policy), setting)


def compiled_before(trace: Trace) -> list[Figure]:
    """In a process of its own: what compiling takes must not count as memory of the simulator."""
    child = multiprocessing.get_context("spawn").Process(target=run_all, args=(trace,))
    child.start()
    child.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = used.ru_utime + used.ru_stime
    note = "less if that was done before"
    return [
        figure(ELSE, "the first run, which compiles", "CPU-s", [spent_s], note=note),
        figure(ELSE, "memory of the first run", "MB", [used.ru_maxrss / 1024], note=note),
    ]


def speeds(trace: Trace, repeats: int) -> list[Figure]:
    """Jobs per CPU-second of every policy, and of a plain loop in Python."""
    title = f"{len(trace.submit_s):,} Philly jobs"
    found = []
    for policy, cluster, setting, bar in RUNS:
        progress(policy)
        rates = measure(trace, policy, cluster, setting, repeats)
        what = f"{policy} on {cluster}"
        found.append(figure(title, what, "jobs/CPU-s", rates, at_least={"median": bar}))
    naive = [naive_fifo(trace, 512) for _ in range(repeats)]
    found.append(figure(title, PLAIN, "jobs/CPU-s", naive))
    ratio = found[0].median / statistics.median(naive)
    found.append(figure(title, "fifo", "x", [ratio], beside=PLAIN))
    return found


def others(trace: Trace, repeats: int) -> list[Figure]:
    """How time grows with jobs, what a pass costs, memory."""
    progress("growth, passes, memory")
    found = []
    for policy in ("srsf", "fifo"):
        what, bar = f"ten times the jobs at the same load, {policy}", {"median": GROWTH_BAR}
        found.append(
            figure(ELSE, what, "x", [growth(trace, policy)], at_most=bar, beside="the CPU time of one time")
        )
    what = "a pass, up to 10,000 waiting on 1,000 machines, on average"
    found.append(figure(ELSE, what, "CPU-ms", [long_queue_ms("fit-first")], at_most={"median": PASS_BAR_MS}))
    for policy in ("berth", "dally:mode=tuned"):
        what, beside = f"20,000 jobs at once, {policy}", "the CPU time of 10,000"
        found.append(
            figure(
                ELSE,
                what,
                "x",
                queue_growth(policy, QUEUE_TRACES),
                at_most={"median": QUEUE_BAR},
                beside=beside,
            )
        )
        what = f"100,000 jobs on 100,000 GPUs, {policy}"
        bar = {"median": LARGE_BAR_S}
        found.append(figure(ELSE, what, "CPU-s", [large_cluster_s(policy)], at_most=bar))
    what, bar = f"memory at most of {LONG_TRACE:,} jobs", {"median": float(LONG_TRACE_BAR_MB)}
    found.append(figure(ELSE, what, "MB", [long_trace_mb()], at_most=bar))
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found.append(
        figure(
            ELSE, "memory at most, once it is compiled", "MB", [memory_mb], at_most={"median": MEMORY_BAR_MB}
        )
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
