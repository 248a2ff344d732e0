"""Figures of a trace: sizes, durations, arrivals, and its offered load.

Load is offered load: the GPUs that would be busy if every job started when it was submitted and ran at its
nearest placement. No scheduler can serve more; a cluster smaller than the load has a queue that grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.cluster.catalogue import resolve
from berth.workload.profiles import is_profile
from berth.workload.trace import Trace

PERCENTILES = (10, 50, 90, 99)
DURATION_EDGES_S = (0.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0, 360_000.0, np.inf)
_MAX_SIZES = 10
_MAX_MODELS = 12


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of one quantity."""

    mean: float
    least: float
    percentiles: tuple[float, ...]  # of PERCENTILES
    largest: float

    @staticmethod
    def of(values: NDArray[np.generic]) -> Distribution:
        """Return mean, extremes and percentiles (each a value that occurs)."""
        sample = np.asarray(values, dtype=np.float64)
        cuts = np.percentile(sample, PERCENTILES, method="inverted_cdf")
        return Distribution(
            float(sample.mean()), float(sample.min()), tuple(cuts.tolist()), float(sample.max())
        )


@dataclass(frozen=True, slots=True)
class Share:
    """A class of jobs: their number and their share of GPU time."""

    label: str
    jobs: int
    gpu_s: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The figures of a trace."""

    jobs: int
    span_s: float
    gpu_s: float
    users: int
    vcs: int
    size: Distribution
    duration_s: Distribution
    interarrival_s: Distribution | None
    sizes: tuple[Share, ...]
    durations: tuple[Share, ...]
    models: tuple[Share, ...]
    load_edges_s: FloatArray
    load_gpus: FloatArray  # mean GPUs asked for at once in each bucket
    peak_gpus: int

    @property
    def mean_load_gpus(self) -> float:
        """GPU time per second of the span; infinite when all jobs come at once."""
        return self.gpu_s / self.span_s if self.span_s else float("inf")


def summarise_trace(trace: Trace, buckets: int = 60) -> TraceSummary:
    """Return the figures of a trace; the load is averaged over `buckets` equal parts of its span."""
    gpu_s = trace.num_gpu * trace.duration_s
    edges, load = _load(trace, buckets)
    return TraceSummary(
        jobs=len(trace),
        span_s=trace.span_s,
        gpu_s=trace.gpu_seconds,
        users=trace.frame["user"].drop_nulls().n_unique(),
        vcs=trace.frame["vc"].drop_nulls().n_unique(),
        size=Distribution.of(trace.num_gpu),
        duration_s=Distribution.of(trace.duration_s),
        interarrival_s=Distribution.of(np.diff(trace.submit_s)) if len(trace) > 1 else None,
        sizes=_by_size(trace.num_gpu, gpu_s),
        durations=_by_duration(trace.duration_s, gpu_s),
        models=_by_model(trace, gpu_s),
        load_edges_s=edges,
        load_gpus=load,
        peak_gpus=_peak(trace),
    )


def unknown_names(trace: Trace) -> list[str]:
    """Notes about models and devices that berth does not know; a cluster may have device types of its own."""
    known: dict[str, tuple[Callable[[str], bool], str]] = {
        "model": (is_profile, "berth simulate refuses it"),
        "device": (lambda name: resolve(name) is not None, "only a cluster that has it can run the trace"),
    }
    return [
        f"{trace.place_of(column, name)}: no {column} is called {name!r}; {so}"
        for column, (knows, so) in known.items()
        for name in trace.frame[column].drop_nulls().unique(maintain_order=True)
        if not knows(name)
    ][:_MAX_MODELS]


def _by_size(num_gpu: IntArray, gpu_s: FloatArray) -> tuple[Share, ...]:
    """One class per size, or per power of two where there are many sizes."""
    sizes = np.unique(num_gpu)
    if len(sizes) <= _MAX_SIZES:
        return tuple(_share(str(size), num_gpu == size, gpu_s) for size in sizes.tolist())
    level = np.ceil(np.log2(num_gpu)).astype(np.int64)
    return tuple(_share(_range(power), level == power, gpu_s) for power in np.unique(level).tolist())


def _range(power: int) -> str:
    low, high = 2 ** (power - 1) + 1, 2**power
    return str(high) if power == 0 or low == high else f"{low}-{high}"


def _by_duration(duration_s: FloatArray, gpu_s: FloatArray) -> tuple[Share, ...]:
    labels = ("under 10s", "10s - 1m", "1m - 10m", "10m - 1h", "1h - 10h", "10h - 100h", "over 100h")
    place = np.digitize(duration_s, DURATION_EDGES_S[1:-1])
    return tuple(_share(label, place == index, gpu_s) for index, label in enumerate(labels))


def _by_model(trace: Trace, gpu_s: FloatArray) -> tuple[Share, ...]:
    """The models with the most jobs, the rest together."""
    if trace.frame["model"].null_count() == len(trace):
        return ()
    jobs = trace.frame.select(pl.col("model").fill_null("(none)"), pl.Series("gpu_s", gpu_s))
    grouped = jobs.group_by("model").agg(pl.len(), pl.col("gpu_s").sum())
    shares = [Share(*row) for row in grouped.sort(["len", "model"], descending=[True, False]).iter_rows()]
    return (*shares[:_MAX_MODELS], *_rest(shares[_MAX_MODELS:]))


def _rest(shares: Sequence[Share]) -> tuple[Share, ...]:
    if not shares:
        return ()
    jobs, gpu_s = sum(share.jobs for share in shares), sum(share.gpu_s for share in shares)
    return (Share(f"({len(shares)} others)", jobs, gpu_s),)


def _share(label: str, mask: BoolArray, gpu_s: FloatArray) -> Share:
    return Share(label, int(mask.sum()), float(gpu_s[mask].sum()))


def _load(trace: Trace, buckets: int) -> tuple[FloatArray, FloatArray]:
    """Mean GPUs asked for at once, bucket by bucket, from the first submission to the last."""
    if trace.span_s == 0:
        return np.zeros(1), np.zeros(0)
    edges = np.linspace(0.0, trace.span_s, buckets + 1)
    started = _gpu_time_before(edges, trace.submit_s, trace.num_gpu)
    ended = _gpu_time_before(edges, trace.submit_s + trace.duration_s, trace.num_gpu)
    return edges, np.maximum(np.diff(started - ended) / np.diff(edges), 0.0)


def _gpu_time_before(edges: FloatArray, events_s: FloatArray, gpus: IntArray) -> FloatArray:
    """For each edge the sum of gpus * (edge - event) over the events before it."""
    order = np.argsort(events_s, kind="stable")
    count = np.searchsorted(events_s[order], edges)
    weight = np.concatenate(([0.0], np.cumsum(gpus[order], dtype=np.float64)))
    moment = np.concatenate(([0.0], np.cumsum(gpus[order] * events_s[order])))
    return weight[count] * edges - moment[count]


def _peak(trace: Trace) -> int:
    """The most GPUs asked for at one moment; a job that ends when another arrives frees its GPUs first."""
    times = np.concatenate((trace.submit_s + trace.duration_s, trace.submit_s))
    change = np.concatenate((-trace.num_gpu.astype(np.int64), trace.num_gpu.astype(np.int64)))
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(change[order]).max())
