"""The CSV of the Tiresias simulator, which Muri's takes over: `job_id,num_gpu,submit_time,iterations,...`.

Tiresias counts in seconds, Muri in milliseconds, and neither file says so. The duration of one iteration
does: no training takes half a minute for a usual step, so where the median is above 30 the unit is the
millisecond.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from berth.workload.formats.base import CsvFormat
from berth.workload.parsing.columns import LONGEST_S, Columns

_LONGEST_STEP_S = 30.0


def _parse(rows: Columns) -> pl.DataFrame:
    duration = rows.duration("duration", longest=1e3 * LONGEST_S)
    iterations = rows.number("iterations")
    rows.reject(iterations <= 0, "iterations", "is not above zero")
    return rows.good(
        job_id=rows.name("job_id"),
        submit_s=rows.time("submit_time", longest=1e3 * LONGEST_S),
        num_gpu=rows.gpus("num_gpu"),
        duration_s=duration,
        model=rows.text("model_name"),
        priority=rows.whole("priority", optional=True),
        step=duration / iterations,
    )


def _finish(jobs: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    step = float(np.median(jobs["step"].to_numpy()))
    jobs = jobs.drop("step")
    if step <= _LONGEST_STEP_S:
        notes.append(f"times taken as seconds (median of one iteration: {step:.3g})")
        return jobs
    notes.append(f"times were in milliseconds (median of one iteration: {step:.3g}): divided by 1000")
    return jobs.with_columns(pl.col("submit_s") / 1000, pl.col("duration_s") / 1000)


TIRESIAS = CsvFormat(
    "tiresias",
    "the Tiresias or Muri CSV",
    ("job_id", "num_gpu", "submit_time", "iterations", "duration"),
    _parse,
    _finish,
)
