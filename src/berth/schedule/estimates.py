"""How long jobs take, where that is unknown: learned from jobs that have ended.

The work of a job is taken to be lognormal. Its median and spread come from up to four classes of jobs like it, from
all jobs to those of the same user, model and size: each class moves the estimate of the wider one by as much as its
count says. A user's own estimate is combined with that by precision, after the errors of earlier estimates of the
same user. Given the work done so far, tables give the median of what is left, and an index: the least expected
seconds of work per completion over all spans to look ahead (Gittins). An index is a remaining time for jobs
whose remaining time is not known: of two jobs of one size, the one with the smaller index should run first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth import reproducible
from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.records import CLASSES, EstimateKind, World

_log, _exp = kernel(reproducible.log), kernel(reproducible.exp)

# of a job about which nothing is known: median, deviation of the logarithm
PRIOR_S, PRIOR_SPREAD = 3600.0, 2.5
_TRUST_SPREAD = 0.5  # of a user's estimates before any of their jobs has ended
_PRIOR_WEIGHT = 2.0  # jobs that a wider class counts as against a narrower one
_MAX_COUNT = 100.0  # older jobs fade out
_SPREADS = (0.15, 0.3, 0.5, 0.75, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0)
_OUTLIERS = 0.02  # share of jobs with the widest spread, so that a job may outlive any estimate
_FIRST_EDGE, _EDGES = -16, 44  # work done is counted in steps of a factor of sqrt(2), from 2^-8 of the median
_SQRT_HALF, _LN2 = 0.7071067811865476, 0.6931471805599453


def _tables() -> tuple[Any, Any]:
    """[spread, step of work done] index and median of what is left, over the median of the whole."""
    steps = 8  # per factor of two
    logs = [_LN2 * k / steps for k in range(-24 * steps, 27 * steps)]
    times = np.array([reproducible.exp(value) for value in logs])
    wide = _weights(logs, _SPREADS[-1])
    index, left = np.zeros((len(_SPREADS), _EDGES)), np.zeros((len(_SPREADS), _EDGES))
    for row, spread in enumerate(_SPREADS):
        weights = (1.0 - _OUTLIERS) * _weights(logs, spread) + _OUTLIERS * wide
        for step in range(_EDGES):
            done = 0.0 if step == 0 else reproducible.exp(_LN2 * (_FIRST_EDGE + step - 1) / 2)
            first = int(np.searchsorted(times, done, side="right"))
            ends, rest = np.cumsum(weights[first:]), times[first:] - done
            alive = ends[-1] - ends
            served = np.cumsum(rest * weights[first:]) + rest * alive  # E(min(left, span)) for each span
            index[row, step] = float((served / ends).min())
            left[row, step] = float(rest[np.searchsorted(ends, ends[-1] / 2)])
    return index, left


def _weights(logs: list[float], spread: float) -> Any:
    """Probabilities of a lognormal distribution of median 1 on a grid of logarithms."""
    density = np.array([reproducible.exp(-0.5 * (value / spread) ** 2) for value in logs])
    return density / np.cumsum(density)[-1]


_INDEX, _LEFT = _tables()


@inlined
def refresh_remaining(job: Any, now: float) -> None:
    """Sets what is known of a job's remaining time from the work it has done."""
    if job.estimate_kind == EstimateKind.TRACKED:
        job.estimated_remaining_s = job.index_s = job.true_remaining_s * job.estimate_error
    else:
        estimate_remaining(job, now)


@kernel
def estimate_remaining(job: Any, now: float) -> None:
    """The same for a job whose duration is not known."""
    step = step_of(job.done_s / job.median_work_s)
    job.index_s = _INDEX[job.spread_row, step] * job.median_work_s
    job.estimated_remaining_s = _LEFT[job.spread_row, step] * job.median_work_s
    job.work_s = job.done_s + job.estimated_remaining_s
    job.index_until_s = math.inf
    if job.tier >= 0 and step + 1 < _EDGES:
        edge = _FIRST_EDGE + step
        done_s = job.median_work_s * math.ldexp(1.0 if edge % 2 == 0 else 2.0 * _SQRT_HALF, edge // 2)
        job.index_until_s = max(now, job.restored_at_s) + (done_s * (1.0 + 1e-9) - job.done_s) / job.speed


@kernel
def step_of(done: float) -> int:
    """The step of work done, over the median of the whole: 0 below the first edge."""
    if done <= 0.0:
        return 0
    part, power = math.frexp(done)
    edge = 2 * power - (1 if part >= _SQRT_HALF else 2)
    return max(0, min(_EDGES - 1, edge - _FIRST_EDGE + 1))


@deferred
def learn_duration(world: World, row: int, now: float) -> None:
    """Sets the distribution of a waiting job's work from the jobs that have ended."""
    job = world.jobs[row]
    mean, variance = _log(PRIOR_S), PRIOR_SPREAD * PRIOR_SPREAD
    if job.estimate_kind == EstimateKind.LEARNED:
        for k in range(CLASSES - 1, -1, -1):
            if job.classes[k] >= 0:
                mean, variance = narrowed(world.history[job.classes[k]], mean, variance)
        if job.given_s > 0.0:
            bias, doubt = 0.0, _TRUST_SPREAD * _TRUST_SPREAD
            if job.trust_class >= 0:
                bias, doubt = narrowed(world.history[job.trust_class], bias, doubt)
            share = variance / (variance + doubt)
            mean += share * (_log(job.given_s) + bias - mean)
            variance *= 1.0 - share
    job.median_work_s = _exp(mean)
    job.spread_row = len(_SPREADS) - 1
    for spread in range(len(_SPREADS) - 1, 0, -1):
        middle = 0.5 * (_SPREADS[spread - 1] + _SPREADS[spread])
        if variance < middle * middle:
            job.spread_row = spread - 1
    estimate_remaining(job, now)


@inlined
def narrowed(seen: Any, mean: float, variance: float) -> tuple[float, float]:
    """Mean and variance of a wider class after what was seen of a narrower one: of a mixture of both."""
    share = seen.count / (seen.count + _PRIOR_WEIGHT)
    apart = seen.mean - mean
    narrower = (1.0 - share) * variance + share * seen.variance + share * (1.0 - share) * apart * apart
    return mean + share * apart, narrower


@inlined
def record_duration(world: World, row: int) -> None:
    """Adds a job that ends to the history of its classes; now its work is known."""
    if world.jobs[row].estimate_kind != EstimateKind.TRACKED:
        record_untracked(world, row)


@deferred
def record_untracked(world: World, row: int) -> None:
    """The same for a job whose duration was not known."""
    job = world.jobs[row]
    job.work_s = job.done_s
    if job.estimate_kind != EstimateKind.LEARNED or job.done_s <= 0.0:
        return
    work = _log(job.done_s)
    for k in range(CLASSES):
        if job.classes[k] >= 0:
            record(world.history[job.classes[k]], work)
    if job.trust_class >= 0 and job.given_s > 0.0:
        record(world.history[job.trust_class], work - _log(job.given_s))


@inlined
def record(seen: Any, value: float) -> None:
    """Updates mean and variance of recent values."""
    seen.count = min(seen.count + 1.0, _MAX_COUNT)
    apart = value - seen.mean
    seen.mean += apart / seen.count
    seen.variance = (1.0 - 1.0 / seen.count) * (seen.variance + apart * apart / seen.count)
