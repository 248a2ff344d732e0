"""Traces like a given one: its jobs resampled in blocks of neighbours."""

from __future__ import annotations

import numpy as np
import polars as pl

from berth.arrays import FloatArray
from berth.workload.streams import stream
from berth.workload.trace import Trace

BLOCKS = 20


def resampled(trace: Trace, seed: int) -> Trace:
    """Return a trace of as many jobs, drawn with replacement in blocks of a twentieth of the trace.

    A block starts at any job and keeps the gaps before its jobs, so whatever lasts shorter than a block (bursts,
    sessions of one user, the hours of a day) is kept. Jobs are renamed 0, 1, 2 ... in order of submission,
    and keep their alternatives.
    """
    jobs = len(trace)
    length = -(-jobs // BLOCKS)
    starts = stream(seed, "resampling").integers(0, jobs, BLOCKS)
    rows = ((starts[:, None] + np.arange(length)) % jobs).ravel()[:jobs]
    gaps_s = _gaps_s(trace)
    frame = trace.frame[rows].with_columns(
        pl.int_range(jobs, eager=True).cast(pl.String).alias("job_id"),
        pl.Series("submit_s", np.cumsum(gaps_s[rows])),
    )
    names = [trace.job_ids[row] for row in rows] if trace.offers else []
    offers = {str(at): trace.offers[name] for at, name in enumerate(names) if name in trace.offers}
    return Trace.from_columns(
        {name: frame[name] for name in frame.columns}, source=trace.source, offers=offers
    )


def outlasts_blocks(trace: Trace) -> bool:
    """Return whether the GPU time or the gaps of neighbouring half-blocks correlate: blocks are then too short.

    Resampled traces lose correlation over more jobs than a block has, and vary less than traces like the given one.
    """
    work = np.log(trace.num_gpu * trace.duration_s)
    return any(_correlated(values) for values in (work, np.log1p(_gaps_s(trace))))


def _gaps_s(trace: Trace) -> FloatArray:
    """Return the time before each job; before the first, which has none, the mean."""
    gaps_s = np.diff(trace.submit_s, prepend=0.0)
    gaps_s[0] = trace.span_s / max(1, len(trace) - 1)
    return gaps_s


def _correlated(values: FloatArray) -> bool:
    """Return whether the means of neighbouring half-blocks correlate by more than two standard errors."""
    halves = 2 * BLOCKS
    length = len(values) // halves
    if length == 0:
        return False
    means = values[: halves * length].reshape(halves, length).mean(axis=1)
    means -= means.mean()
    return bool(means[1:] @ means[:-1] > 2 / np.sqrt(halves) * (means @ means))
