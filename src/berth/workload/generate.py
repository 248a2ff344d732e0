"""Generates traces: arrivals, sizes, durations, models and users, each from a separate random stream.

The streams are children of one seed, so a change of one aspect (another mix, say) leaves all others unchanged,
and the first jobs of a longer trace request the same as those of a shorter one. Times are whole milliseconds
and sums of GPU time are whole numbers, so the same seed gives the same bytes on every platform.

The load is exact, not only expected: arrivals are stretched until the requested GPU time, divided by the GPU
time of the cluster from the first submission to the last, is the requested load, to the millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from berth.arrays import FloatArray, Int64Array
from berth.errors import InputError
from berth.workload.arrivals import Arrivals
from berth.workload.distributions import Durations, Sizes, load_durations, load_sizes
from berth.workload.mix import Mix
from berth.workload.streams import stream
from berth.workload.trace import Trace
from berth.workload.weights import WeightedChoice

MAX_JOBS = 20_000_000
DEFAULT_JOBS = 1000
DEFAULT_LOAD = 0.8
_MAX_MS = 2**50  # some 35,000 years; keeps sums of GPU-time within 64 bits
_MS = 1000


@dataclass(frozen=True, slots=True)
class GenerateSpec:
    """Options of a generated trace. Two of jobs, span and load (with the cluster's GPUs) determine the third."""

    jobs: int | None = None
    span_s: float | None = None  # from the first submission to the last
    load: float | None = None  # requested GPU-seconds over the GPU-seconds of the cluster in the span
    gpus: int | None = None  # of the cluster; no job is larger
    arrivals: Arrivals = field(default_factory=Arrivals)
    sizes: Sizes = field(default_factory=lambda: load_sizes("philly"))
    durations: Durations = field(default_factory=lambda: load_durations("philly"))
    mix: Mix | None = None
    users: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_pace(self)


def with_defaults(
    jobs: int | None, span_s: float | None, load: float | None, arrivals: Arrivals
) -> tuple[int | None, float | None]:
    """Return the number of jobs and the load, with defaults: 1000 jobs, load 0.8; at-once arrivals have no load."""
    if jobs is None and (span_s is None or arrivals.kind == "at-once"):
        jobs = DEFAULT_JOBS
    if load is None and arrivals.kind != "at-once" and (jobs is None or span_s is None):
        load = DEFAULT_LOAD
    return jobs, load


def generate(spec: GenerateSpec) -> Trace:
    """Return the trace that `spec` describes."""
    jobs = _jobs(spec)
    demand = _demand(spec, jobs)
    sizes, duration_ms = demand.sizes, demand.duration_ms
    submit_ms = _submissions(spec, jobs, _span_ms(spec, sizes, duration_ms))
    columns = {
        "job_id": pl.int_range(jobs, eager=True).cast(pl.String),
        "submit_s": pl.Series(submit_ms / _MS),
        "num_gpu": pl.Series(sizes.astype(np.int32)),
        "duration_s": pl.Series(duration_ms / _MS),
    }
    if spec.mix is not None:
        columns["model"] = _named(spec.mix.models, spec.mix.assign(jobs, spec.seed))
    if spec.users:
        columns["user"] = _users(spec, jobs)
    notes = [f"{demand.capped} jobs requested more and were cut to {spec.gpus} GPUs"] if demand.capped else []
    return Trace.from_columns(columns, source="generated", notes=notes)


@dataclass(frozen=True, slots=True)
class _Demand:
    """Sizes and durations of the jobs, without arrivals."""

    sizes: Int64Array
    duration_ms: Int64Array
    capped: int

    @property
    def gpu_ms(self) -> Int64Array:
        """GPU-milliseconds of each job and all before it."""
        if float(np.dot(self.sizes.astype(np.float64), self.duration_ms)) > 2**62:
            raise InputError(
                "the total GPU time of the jobs is too large", hint="generate fewer or shorter jobs"
            )
        return np.cumsum(self.sizes * self.duration_ms)


def _demand(spec: GenerateSpec, jobs: int) -> _Demand:
    drawn = spec.sizes.draw(stream(spec.seed, "sizes").random(jobs))
    seconds = spec.durations.draw(stream(spec.seed, "durations").random(jobs), drawn)
    duration_ms = np.clip(np.rint(seconds * _MS), 1, _MAX_MS).astype(np.int64)
    sizes = drawn if spec.gpus is None else np.minimum(drawn, spec.gpus)
    return _Demand(sizes, duration_ms, int((sizes < drawn).sum()))


def _jobs(spec: GenerateSpec) -> int:
    """The number of jobs: as given, or as many as fill the span to the load."""
    if spec.jobs is not None:
        return spec.jobs
    target_ms = (spec.gpus or 0) * (spec.load or 0.0) * (spec.span_s or 0.0) * _MS
    tried = 1 << 16
    while True:
        filled = _demand(spec, tried).gpu_ms
        if filled[-1] >= target_ms:
            return max(2, int(np.searchsorted(filled, target_ms)) + 1)
        needed = tried * target_ms / float(filled[-1])
        if tried >= MAX_JOBS or needed > 10 * MAX_JOBS:
            break
        tried = min(MAX_JOBS, max(2 * tried, int(1.1 * needed)))
    raise InputError(
        f"it takes more than {MAX_JOBS:,} jobs to fill that span", hint="shorten it, or take longer jobs"
    )


def _span_ms(spec: GenerateSpec, sizes: Int64Array, duration_ms: Int64Array) -> int:
    if spec.arrivals.kind == "at-once":
        return 0
    if spec.load is None or spec.gpus is None:
        return round((spec.span_s or 0.0) * _MS)
    gpu_ms = int(_Demand(sizes, duration_ms, 0).gpu_ms[-1])
    return max(1, round(gpu_ms / (spec.gpus * spec.load)))


def _submissions(spec: GenerateSpec, jobs: int, span_ms: int) -> FloatArray:
    positions = spec.arrivals.positions(stream(spec.seed, "arrivals").random((jobs, 2)))
    submit_ms = np.minimum(np.rint(spec.arrivals.times(positions, span_ms / _MS) * _MS), span_ms)
    if jobs > 1:
        submit_ms[-1] = span_ms
    return submit_ms


def _users(spec: GenerateSpec, jobs: int) -> pl.Series:
    """A few users submit most jobs: the n-th submits 1/n of what the first does."""
    width = len(str(spec.users))
    weights = {f"user{number:0{width}}": 1 / number for number in range(1, spec.users + 1)}
    return _named(tuple(weights), WeightedChoice.of(weights).pick(stream(spec.seed, "users").random(jobs)))


def _named(names: tuple[str, ...], picked: Int64Array) -> pl.Series:
    return pl.Series(names, dtype=pl.String).gather(pl.Series(picked))


def _check_ranges(spec: GenerateSpec) -> None:
    if spec.jobs is not None and not 1 <= spec.jobs <= MAX_JOBS:
        raise InputError(f"jobs: from 1 to {MAX_JOBS:,} (given: {spec.jobs})")
    if spec.gpus is not None and spec.gpus < 1:
        raise InputError("the cluster has no GPU")
    if spec.load is not None and not 0 < spec.load <= 1000:
        raise InputError(
            f"load: above 0, at most 1000 (given: {spec.load:g})", hint="0.8 fills a cluster to 80 %"
        )
    if spec.span_s is not None and not 0.001 <= spec.span_s <= _MAX_MS / _MS:
        raise InputError(f"span: from a millisecond to 35,000 years (given: {spec.span_s:g} s)")
    if not 0 <= spec.users <= 1_000_000:
        raise InputError(f"users: from 0 to 1,000,000 (given: {spec.users})")
    if spec.seed < 0:
        raise InputError(f"seed: a whole number from 0 up (given: {spec.seed})")


def _check_pace(spec: GenerateSpec) -> None:
    """Raise an InputError unless exactly two of jobs, span and load are given."""
    if spec.load is not None and spec.gpus is None:
        raise InputError("a load needs a cluster", hint="name the cluster")
    if spec.arrivals.kind == "at-once":
        if spec.jobs is None or spec.load is not None or spec.span_s is not None:
            raise InputError(
                "at-once arrivals take a number of jobs, but no span and no load",
                hint="leave out span and load, or choose other arrivals",
            )
        return
    given = sum(value is not None for value in (spec.jobs, spec.span_s, spec.load))
    if given != 2:
        raise InputError(
            f"{'two of jobs, span and load are needed' if given < 2 else 'jobs, span and load are all given'}",
            hint="two of them fix the third: leave out one"
            if given > 2
            else "give the number of jobs and a load, for example",
        )
    if spec.jobs == 1:
        raise InputError(
            "a single job has no span and no load", hint="generate two or more, or use at-once arrivals"
        )
