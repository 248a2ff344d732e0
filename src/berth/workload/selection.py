"""A slice of a trace: a window of time, some sizes, one virtual cluster, the first N jobs.

The selected jobs start at time 0, and the notes of the trace describe the selection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import polars as pl

from berth import units
from berth.arrays import BoolArray, IntArray
from berth.errors import InputError, QuantityError, UnknownNameError
from berth.workload.trace import Trace

POWERS_OF_TWO = "powers-of-two"
_SIZES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs to keep; None keeps all. Conditions hold together; `limit` counts at the end."""

    since: str | None = None  # a date (2017-10-01, 2017-10-01T08:00:00) or a time from the start (3d)
    until: str | None = None  # likewise; jobs submitted at this time are excluded
    sizes: str | None = None  # powers-of-two, or sizes and ranges: 1,2,4-8
    max_gpus: int | None = None
    vc: Sequence[str] = ()
    limit: int | None = None

    def apply(self, trace: Trace) -> Trace:
        """Return the selected jobs, with times from the first of them."""
        mask, described = np.ones(len(trace), dtype=bool), []
        for kept, words in self._conditions(trace):
            mask &= kept
            described.append(words)
        if self.limit is not None:
            mask &= np.cumsum(mask) <= self.limit
            described.append(f"the first {self.limit:,}")
        if not described:
            return trace
        note = (
            f"selected {int(mask.sum()):,} of {units.format_count(len(trace), 'job')}: {'; '.join(described)}"
        )
        return trace.keep(mask, note)

    def _conditions(self, trace: Trace) -> Iterator[tuple[BoolArray, str]]:
        """Each condition that is set: the jobs that meet it, and its words."""
        if self.since:
            yield trace.submit_s >= _moment(trace, self.since), f"submitted since {self.since}"
        if self.until:
            yield trace.submit_s < _moment(trace, self.until), f"submitted before {self.until}"
        if self.sizes:
            yield _of_sizes(trace.num_gpu, self.sizes), f"of sizes {self.sizes}"
        if self.max_gpus:
            yield trace.num_gpu <= self.max_gpus, f"of at most {self.max_gpus} GPUs"
        if self.vc:
            yield _of_vc(trace, self.vc), f"of virtual cluster {', '.join(self.vc)}"


def renumbered(trace: Trace) -> Trace:
    """The same jobs, named 0, 1, 2 ... in order of submission."""
    names = pl.int_range(len(trace), eager=True).cast(pl.String).alias("job_id")
    offers = {
        name: trace.offers[job] for name, job in zip(names, trace.job_ids, strict=True) if job in trace.offers
    }
    return replace(trace, frame=trace.frame.with_columns(names), offers=offers)


def submitted_at_once(trace: Trace) -> Trace:
    """The same jobs in the same order, all submitted at time 0: a batch."""
    frame = trace.frame.with_columns(pl.lit(0.0).alias("submit_s"))
    return replace(trace, frame=frame, notes=(*trace.notes, "all jobs are submitted at time 0"))


def _moment(trace: Trace, text: str) -> float:
    """Seconds from the first submission; a date needs a trace that knows the wall clock."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return _offset(text)
    if trace.origin is None:
        hint = "give a time from its start, such as 3d or 12h"
        raise InputError(f"{text}: the trace has no dates", where=trace.source, hint=hint)
    if when.tzinfo is not None:
        raise InputError(f"{text}: the trace's dates have no time zone", hint="leave the zone out")
    return (when - trace.origin).total_seconds()


def _offset(text: str) -> float:
    try:
        return units.seconds(text)
    except QuantityError:
        hint = "write a date (2017-10-01) or a time from the start (3d)"
        raise QuantityError(f"{text!r} is neither a date nor a duration", hint=hint) from None


def _of_sizes(num_gpu: IntArray, text: str) -> BoolArray:
    if text == POWERS_OF_TWO:
        powers: BoolArray = (num_gpu & (num_gpu - 1)) == 0
        return powers
    if not _SIZES.fullmatch(text.replace(" ", "")):
        raise InputError(
            f"{text!r} is not a list of sizes", hint=f"write {POWERS_OF_TWO}, or sizes and ranges: 1,2,4-8"
        )
    mask = np.zeros(len(num_gpu), dtype=bool)
    for part in text.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        mask |= (num_gpu >= int(low)) & (num_gpu <= int(high or low))
    return mask


def _of_vc(trace: Trace, names: Sequence[str]) -> BoolArray:
    known = trace.frame["vc"].drop_nulls().unique().to_list()
    for name in names:
        if name not in known:
            raise UnknownNameError("virtual cluster", name, known, where=trace.source)
    mask: BoolArray = trace.frame["vc"].is_in(list(names)).fill_null(False).to_numpy()
    return mask
