"""Measures the coverage of 95 % intervals on generated traces: `python benchmarks/intervals.py`, about ten minutes.

The true value is the median (or mean) of the ratio over all traces of a workload. Three tables are printed and written
into docs/design/intervals.md: why the completion times of one run give no interval, intervals over generated traces,
and intervals from one trace and those resampled from it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from berth.arrays import FloatArray
from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.intervals import median_interval, resampled_interval
from berth.simulate.run import Network, Setting, simulate
from berth.simulate.trace_source import gpus_of
from berth.workload.arrivals import load_arrivals
from berth.workload.distributions import load_durations, load_sizes
from berth.workload.generate import GenerateSpec, generate
from berth.workload.resampling import outlasts_blocks, resampled
from berth.workload.trace import Trace
from waiting_page import fill

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design" / "intervals.md"
CLUSTER = load_cluster("2x4x8:H100")
POLICIES = ("srtf", "fifo")
METRICS = ("mean JCT", "p99 JCT", "makespan")
ALIKE = 50  # of 1,000 jobs; a block that is resampled has as many
RESAMPLED = 20  # traces: one and nineteen resampled from it
SEEDS_HEAD = "workload|6 seeds: mean JCT|p99|10: mean JCT|p99|20: mean JCT|p99|t over 6: mean JCT"
DRAWS = 2000  # comparisons over seeds, drawn from the traces of a workload


@dataclass(frozen=True, slots=True)
class Workload:
    """The distribution from which traces are generated."""

    name: str
    load: float
    jobs: int = 1000
    sizes: str = "powers-of-two"
    durations: str = "lognormal:1h:1"
    daily: float = 0.0
    alike: str = ""  # duration_s, submit_s: run times, or gaps, are alike over ALIKE jobs

    def trace(self, seed: int) -> Trace:
        """Return the trace of a seed."""
        spec = GenerateSpec(
            jobs=self.jobs,
            load=self.load,
            gpus=gpus_of(CLUSTER),
            sizes=load_sizes(self.sizes),
            durations=load_durations(self.durations),
            arrivals=load_arrivals("poisson", self.daily),
            seed=seed,
        )
        trace = generate(spec)
        if not self.alike:
            return trace
        columns = {name: trace.frame[name] for name in ("job_id", "submit_s", "num_gpu", "duration_s")}
        factor = np.exp(0.5 * autoregressive(math.exp(-1 / ALIKE), self.jobs, seed) - 0.125)
        gaps_s = np.diff(trace.submit_s, prepend=0.0)
        scaled = trace.duration_s * factor if self.alike == "duration_s" else np.cumsum(gaps_s * factor)
        return Trace.from_columns({**columns, self.alike: scaled}, source="generated")


WORKLOADS = (
    Workload("load 0.5", 0.5),
    Workload("load 0.7", 0.7),
    Workload("load 0.9", 0.9),
    Workload("load 0.7, daily cycle", 0.7, daily=0.8),
    Workload("load 0.7, run times alike", 0.7, alike="duration_s"),
    Workload("load 0.7, gaps alike", 0.7, alike="submit_s"),
    Workload("load 0.7, long tail", 0.7, sizes="philly", durations="lognormal:1h:1.5"),
    Workload("load 0.8, Philly", 0.8, sizes="philly", durations="philly"),
)


def autoregressive(rho: float, count: int, seed: int) -> FloatArray:
    """Return standard normal numbers of which neighbours correlate."""
    generator = np.random.default_rng(seed)
    steps = generator.standard_normal(count) * math.sqrt(1 - rho * rho)
    values, now = np.empty(count), float(generator.standard_normal())
    for at in range(count):
        values[at] = now = rho * now + steps[at]
    return values


@dataclass(frozen=True, slots=True)
class PairedRun:
    """One trace under both policies."""

    jct: tuple[FloatArray, FloatArray]
    run_s: FloatArray  # under the second policy, waits left out
    logs: FloatArray  # logarithm of the ratio in each metric


def run_pair(trace: Trace, seed: int, network: Network = "off") -> PairedRun:
    """Run a trace under both policies; the network is off by default because it takes most of the time."""
    setting = Setting(seed=seed, network=network)
    records = [simulate(trace, CLUSTER, load_policy(name), setting).records for name in POLICIES]
    mine, base = (np.asarray(jobs["end_s"] - jobs["arrival_s"]) for jobs in records)
    figures = np.array(
        [
            (jct.mean(), np.percentile(jct, 99), jobs["end_s"].max())
            for jct, jobs in zip((mine, base), records, strict=True)
        ]
    )
    return PairedRun((mine, base), base - records[1]["waited_s"], np.log(figures[0] / figures[1]))


# Why the completion times of one run give no interval


def block_sums(values: FloatArray, blocks: int) -> FloatArray:
    """Return sums over neighbours; the jobs that don't fill a block are left out."""
    return np.asarray(values[: len(values) // blocks * blocks].reshape(blocks, -1).sum(axis=1))


def students(mine: FloatArray, base: FloatArray, blocks: int) -> tuple[float, float]:
    """Student's t over blocks, for the logarithm of the ratio of means."""
    one, other = block_sums(mine, blocks), block_sums(base, blocks)
    middle = math.log(one.sum() / other.sum())
    spread = float((one / one.mean() - other / other.mean()).std(ddof=1)) / math.sqrt(blocks)
    reach = float(stats.t.ppf(0.975, blocks - 1)) * spread
    return middle - reach, middle + reach


def bca(mine: FloatArray, base: FloatArray) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap of twenty blocks."""

    def statistic(one: FloatArray, other: FloatArray, axis: int = -1) -> FloatArray:
        return np.asarray(np.log(one.sum(axis=axis) / other.sum(axis=axis)))

    sums = block_sums(mine, 20), block_sums(base, 20)
    found = stats.bootstrap(
        sums, statistic, paired=True, vectorized=True, n_resamples=999, rng=np.random.default_rng(1)
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


Pairs = list[tuple[FloatArray, FloatArray]]


def causes(count: int) -> str:
    """Return the table of one run's completion times, at load 0.5 with the network on."""
    short, long = (
        [run_pair(Workload("", 0.5, jobs).trace(seed), seed, "on") for seed in range(count)]
        for jobs in (1000, 4000)
    )
    rows: dict[str, Pairs] = {
        "srtf over fifo, 1,000 jobs": [one.jct for one in short],
        "srtf over fifo, 4,000 jobs": [one.jct for one in long],
        "the same jobs in random order over all traces, 1,000 each": shuffled([one.jct for one in short]),
        "fifo alone, mean JCT": [(one.jct[1], np.ones_like(one.run_s)) for one in short],
        "fifo alone, mean run time": [(one.run_s, np.ones_like(one.run_s)) for one in short],
    }
    lines = []
    for name, pairs in rows.items():
        truth = math.log(np.mean([one for one, _ in pairs]) / np.mean([other for _, other in pairs]))
        methods: list[Callable[[FloatArray, FloatArray], tuple[float, float]]] = [
            lambda one, other: students(one, other, 20),
            lambda one, other: students(one, other, 5),
            bca,
        ]
        shares = [share([method(*pair) for pair in pairs], truth) for method in methods]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    head = ["completion times of one run", "t, 20 blocks", "t, 5 blocks", "BCa, 20 blocks"]
    pairs = [one.jct for one in short]
    return "\n".join([table(head, lines), "", correlations(pairs), "", misses(pairs)])


def shuffled(pairs: Pairs) -> Pairs:
    """Return as many traces, their jobs in random order over all."""
    mine, base = np.array(pairs).transpose(1, 0, 2)
    order = np.random.default_rng(2).permutation(mine.size).reshape(mine.shape)
    return list(zip(mine.ravel()[order], base.ravel()[order], strict=True))


def correlations(pairs: Pairs) -> str:
    """Describe the autocorrelation of the difference between the policies: as one trace shows it, and as it is."""
    difference = np.array([base - mine for mine, base in pairs])
    lags = (1, 50, 100, 200)
    within, overall = difference - difference.mean(axis=1, keepdims=True), difference - difference.mean()
    inside, truly = (
        ", ".join(f"{np.mean(values[:, :-lag] * values[:, lag:]) / np.mean(values**2):.2f}" for lag in lags)
        for values in (within, overall)
    )
    return (
        f"Correlation of fifo's JCT less srtf's with that of the job {lags[0]}, {lags[1]}, {lags[2]} and {lags[3]} "
        f"places later: {truly} about the mean of all traces; {inside} about the mean of the job's own trace."
    )


def misses(pairs: Pairs) -> str:
    """Describe how uneven the difference is within traces, and on which side intervals miss."""
    parts = [np.abs(block_sums(base - mine, 20)) for mine, base in pairs]
    busiest = np.percentile([part.max() / part.sum() for part in parts], [5, 50, 95])
    truth = math.log(np.mean([mine for mine, _ in pairs]) / np.mean([base for _, base in pairs]))
    intervals = [students(*pair, 20) for pair in pairs]
    small = np.mean([low > truth for low, _ in intervals])
    large = np.mean([high < truth for _, high in intervals])
    return (
        f"The busiest twentieth of a trace's jobs has {busiest[1]:.0%} of that difference (median over traces; "
        f"{busiest[0]:.0%} to {busiest[2]:.0%} in nine of ten). {small:.0%} of the intervals (t, 20 blocks) say that "
        f"srtf saves less than it does over all traces, {large:.0%} that it saves more."
    )


def coverage(intervals: Sequence[tuple[float, float] | None], truth: float) -> float:
    """Return the share of the intervals that contain the true value."""
    return float(np.mean([one is not None and one[0] <= truth <= one[1] for one in intervals]))


def share(intervals: Sequence[tuple[float, float] | None], truth: float) -> str:
    """Return the same as text."""
    return f"{coverage(intervals, truth):.2f}"


# Intervals over traces


def over_seeds(name: str, logs: FloatArray) -> str:
    """Return a row: comparisons over 6, 10 and 20 of a workload's traces."""
    generator = np.random.default_rng(3)
    cells = []
    for count in (6, 10, 20):
        drawn = logs[generator.integers(0, len(logs), (DRAWS, count))]
        for at in (0, 1):
            median = share(
                [median_interval(np.sort(row)) for row in drawn[:, :, at]], float(np.median(logs[:, at]))
            )
            cells.append(median)
    drawn = logs[generator.integers(0, len(logs), (DRAWS, 6))][:, :, 0]
    reach = stats.t.ppf(0.975, 5) * drawn.std(axis=1, ddof=1) / math.sqrt(6)
    cells.append(f"{np.mean(np.abs(drawn.mean(axis=1) - logs[:, 0].mean()) <= reach):.2f}")
    return f"| {name} | {' | '.join(cells)} |"


def from_one(workload: Workload, runs: Sequence[PairedRun], like: Sequence[FloatArray]) -> str:
    """Return a row: intervals from a trace and those resampled from it, and from the one run's completion times."""
    logs = np.array([one.logs for one in runs])
    warned = np.mean([outlasts_blocks(workload.trace(seed)) for seed in range(len(like))])
    blocks = [students(*one.jct, 20) for one in runs]
    cells = [share(blocks, float(np.median(logs[:, 0])))]
    for at in range(len(METRICS)):
        intervals = [resampled_interval(ratios[:, at]) for ratios in like]
        truths = float(np.median(logs[:, at])), float(logs[:, at].mean())
        single = np.mean([coverage(intervals, float(other)) for other in logs[:, at]])
        cells.append(" / ".join([*(share(intervals, truth) for truth in truths), f"{single:.2f}"]))
    return f"| {workload.name} | {' | '.join(cells)} | {warned:.2f} |"


def main() -> None:
    """Run all workloads and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--traces", type=int, default=400, help="of each workload")
    parser.add_argument("--resample", type=int, default=200, help="of these traces, each nineteen times")
    given = parser.parse_args()
    seeds, single = [], []
    for workload in WORKLOADS:
        runs = [run_pair(workload.trace(seed), seed) for seed in range(given.traces)]
        seeds.append(over_seeds(workload.name, np.array([one.logs for one in runs])))
        like = [
            np.array(
                [runs[seed].logs, *(run_pair(resampled(trace, at), at).logs for at in range(1, RESAMPLED))]
            )
            for seed in range(given.resample)
            for trace in [workload.trace(seed)]
        ]
        single.append(from_one(workload, runs, like))
        print(seeds[-1], single[-1], sep="\n", file=sys.stderr, flush=True)
    made = {
        "causes": causes(given.traces // 2),
        "seeds": table(SEEDS_HEAD.split("|"), seeds),
        "resampled": table(["workload", "one run: mean JCT", *METRICS, "warned"], single),
    }
    print(*made.values(), sep="\n\n")
    PAGE.write_text(fill(PAGE.read_text(), made))


def table(head: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table in Markdown."""
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


if __name__ == "__main__":
    main()
