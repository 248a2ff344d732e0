"""Alibaba PAI (cluster-trace-gpu-v2020), `pai_task_table.csv`, as published without a header or with one.

A job is one or more tasks (workers, evaluators ...), each with instances that request a percentage of a GPU.
The tasks that request GPUs make up the job: it runs from the first start to the last end on the sum of their
GPUs, rounded up. The table has no submission times (the job table has them, but no GPUs): the first start is used
instead. `gpu_type` is the device of the duration if all tasks of a job have the same; MISC is unknown.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from berth.units import format_count
from berth.workload.formats.base import CsvFormat, Head
from berth.workload.parsing.columns import MAX_GPUS, Columns

_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
_DEVICES = {"T4": "T4", "P100": "P100", "V100": "V100", "V100M32": "V100-32"}
_STATES = {"Terminated", "Running", "Failed", "Waiting"}


def _bare(head: Head) -> tuple[str, ...] | None:
    fields = head.fields
    return _COLUMNS if len(fields) == len(_COLUMNS) and fields[3] in _STATES else None


def _parse(rows: Columns) -> pl.DataFrame:
    percent = rows.number("plan_gpu", optional=True)
    rows.reject(percent < 0, "plan_gpu", "is negative")
    rows.reject(np.isnan(percent) | (percent == 0), "plan_gpu", "asks for no GPU")
    instances = rows.whole("inst_num")
    rows.reject(instances <= 0, "inst_num", "is not above zero")
    rows.reject(instances * percent > MAX_GPUS, "plan_gpu", "is implausibly large")
    start_s = rows.number("start_time", optional=True)
    rows.reject(np.isnan(start_s), "start_time", "the task never started")
    end_s = rows.number("end_time", optional=True)
    rows.reject(np.isnan(end_s), "end_time", "the task had not ended")
    rows.reject_durations(end_s - start_s, "end_time")
    return rows.good(
        job_id=rows.name("job_name"),
        start_s=start_s,
        end_s=end_s,
        percent=instances * percent,
        device=rows.text("gpu_type").replace_strict(_DEVICES, default=None, return_dtype=pl.String),
    )


def _finish(tasks: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    jobs = tasks.group_by("job_id", maintain_order=True).agg(
        pl.col("start_s").min().alias("submit_s"),
        (pl.col("end_s").max() - pl.col("start_s").min()).alias("duration_s"),
        (pl.col("percent").sum() / 100).alias("gpus"),
        pl.when(pl.col("device").n_unique() == 1).then(pl.col("device").first()).alias("device"),
        pl.col("line").first(),
    )
    # A sum of percentages may miss a whole number by a rounding error only.
    jobs = jobs.with_columns((pl.col("gpus") - 1e-9).ceil().alias("num_gpu"))
    parts = int((jobs["num_gpu"] - jobs["gpus"] > 1e-6).sum())
    notes.append("the table has no submissions: a job's first start is used instead")
    if len(jobs) < len(tasks):
        notes.append(f"{len(tasks):,} tasks joined into {format_count(len(jobs), 'job')}")
    if parts:
        notes.append(f"parts of GPUs rounded up to whole ones: {format_count(parts, 'job')}")
    return jobs.drop("gpus")


ALIBABA_2020 = CsvFormat(
    "alibaba-2020",
    "the Alibaba PAI 2020 task table",
    ("job_name", "inst_num", "start_time", "end_time", "plan_gpu"),
    _parse,
    _finish,
    bare=_bare,
)
