"""Quotas: how many devices the jobs of one virtual cluster may hold together.

Written as `--quota vc=64` or in a file:

    quotas:
      vision: 64
      speech: 32

A virtual cluster without a quota may use all there is. A job larger than its quota can never start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from berth.errors import InputError, QuantityError, UnknownNameError
from berth.schedule.job_columns import JobRecords
from berth.schedule.records import Array, JobStatus
from berth.spec import Spec, load
from berth.workload.trace import Trace

_HINT = "write it like --quota vision=64"


class QuotaSpec(Spec):
    """A file of quotas."""

    quotas: dict[str, Annotated[int, Field(gt=0, strict=True)]] = Field(
        description="devices that each virtual cluster may hold"
    )


def load_quotas(texts: Sequence[str], file: str | Path | None = None) -> dict[str, int]:
    """The quotas of a file and those written out, which come first where both name a virtual cluster."""
    quotas = dict(load(file, QuotaSpec).quotas) if file is not None else {}
    return quotas | parse_quotas(texts)


def parse_quotas(texts: Sequence[str]) -> dict[str, int]:
    """`vc=GPUs`, each virtual cluster once."""
    found: dict[str, int] = {}
    for text in texts:
        name, equals, count = (part.strip() for part in text.rpartition("="))
        if not (name and equals):
            raise InputError(f"--quota {text!r} is not a quota", hint=_HINT)
        if not count.isdecimal() or int(count) < 1:
            raise QuantityError(
                f"--quota {text!r}: {count!r} is not a number of devices above zero", hint=_HINT
            )
        if name in found:
            raise InputError(f"--quota gives {name!r} twice")
        found[name] = int(count)
    return found


def charge_jobs(
    records: JobRecords, trace: Trace, quotas: Mapping[str, int], fewest: Array
) -> tuple[str, ...]:
    """Writes the quota of each job into its record; returns the ids of jobs that need more than theirs.

    `fewest` are the devices that each job needs at least.
    """
    if not quotas:
        return ()
    names = trace.frame["vc"].to_list()
    known = {name for name in names if name is not None}
    for name in quotas:
        if not known:
            raise InputError(f"{trace.source} names no virtual clusters", hint="quotas need a column `vc`")
        if name not in known:
            raise UnknownNameError("virtual cluster", name, known, where=trace.source)
    numbers = {name: number for number, name in enumerate(quotas)}
    records["quota"] = [numbers.get(name, -1) for name in names]
    allowed = np.array([quotas.get(name, 1 << 40) if name else 1 << 40 for name in names])
    larger = (fewest > allowed) & (records["state"] != JobStatus.REFUSED)
    records["state"][larger] = JobStatus.REFUSED
    return tuple(str(trace.job_ids[row]) for row in np.flatnonzero(larger))
