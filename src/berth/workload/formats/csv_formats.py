"""Public traces and berth's own, as CSV: each format is described at the function that parses it."""

from __future__ import annotations

import numpy as np
import polars as pl

from berth.units import format_count
from berth.workload.formats.base import CsvFormat, Head
from berth.workload.parsing.columns import MAX_GPUS, Columns
from berth.workload.shapes import LONGEST_S
from berth.workload.trace import NEEDED, SCHEMA

_PAI_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
_PAI_DEVICES = {"T4": "T4", "P100": "P100", "V100": "V100", "V100M32": "V100-32"}
_PAI_STATES = {"Terminated", "Running", "Failed", "Waiting"}
_LONGEST_STEP_S = 30.0


def _parse_plain(rows: Columns) -> pl.DataFrame:
    """Berth's own CSV: `job_id,submit_s,num_gpu,duration_s`, and the optional columns of a trace that it has."""
    return rows.good(
        job_id=rows.name("job_id"),
        submit_s=rows.moment("submit_s"),
        num_gpu=rows.gpus("num_gpu"),
        duration_s=rows.duration("duration_s"),
        model=rows.text("model"),
        user=rows.text("user"),
        vc=rows.text("vc"),
        priority=rows.whole("priority", optional=True),
        device=rows.text("device"),
        name=rows.text("name"),
        estimate_s=rows.estimate("estimate_s"),
        preemptible=rows.flag("preemptible"),
    )


PLAIN = CsvFormat("berth", "berth's plain CSV", NEEDED, _parse_plain, all_columns=tuple(SCHEMA))


def _parse_philly(rows: Columns) -> pl.DataFrame:
    """Microsoft's Philly trace (2017) as the Pollux simulator reduced it.

    The columns are `timestamp,duration,num_gpus,gpu_time,cluster`; the last is the virtual cluster. There are
    no job names: the id of a job is its line number.
    """
    return rows.good(
        job_id=pl.Series(rows.lines).cast(pl.String),
        submit_s=rows.date("timestamp"),
        duration_s=rows.duration("duration"),
        num_gpu=rows.gpus("num_gpus"),
        vc=rows.text("cluster"),
    )


def _finish_philly(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    notes.append("the rows have no names: a job is named by its line")
    return frame


PHILLY_CSV = CsvFormat(
    "philly-csv",
    "the reduced Philly CSV",
    ("timestamp", "duration", "num_gpus"),
    _parse_philly,
    _finish_philly,
    wall_clock=True,
)


def _parse_helios(rows: Columns) -> pl.DataFrame:
    """SenseTime's Helios traces (2020), `cluster_log.csv`: Slurm jobs with user and virtual cluster.

    `duration` is `end_time - start_time` in seconds. More than half of the jobs ask for no GPU: those are left
    out and counted. The state (completed, cancelled, failed ...) does not matter here: a failed job held its
    GPUs all the same.
    """
    return rows.good(
        job_id=rows.name("job_id"),
        submit_s=rows.date("submit_time"),
        num_gpu=rows.gpus("gpu_num"),
        duration_s=rows.duration("duration"),
        user=rows.text("user"),
        vc=rows.text("vc"),
    )


HELIOS = CsvFormat(
    "helios",
    "the Helios cluster log",
    ("job_id", "gpu_num", "state", "submit_time", "duration"),
    _parse_helios,
    wall_clock=True,
)


def _bare_pai(head: Head) -> tuple[str, ...] | None:
    fields = head.fields
    return _PAI_COLUMNS if len(fields) == len(_PAI_COLUMNS) and fields[3] in _PAI_STATES else None


def _parse_pai(rows: Columns) -> pl.DataFrame:
    """Alibaba PAI (cluster-trace-gpu-v2020), `pai_task_table.csv`, as published without a header or with one.

    A job is one or more tasks (workers, evaluators ...), each with instances that request a percentage of a GPU.
    The tasks that request GPUs make up the job: it runs from the first start to the last end on the sum of their
    GPUs, rounded up. The table has no submission times (the job table has them, but no GPUs): the first start is used
    instead. `gpu_type` is the device of the duration if all tasks of a job have the same; MISC is unknown.
    """
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
        device=rows.text("gpu_type").replace_strict(_PAI_DEVICES, default=None, return_dtype=pl.String),
    )


def _finish_pai(tasks: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
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
    _parse_pai,
    _finish_pai,
    bare=_bare_pai,
)


def _parse_pods(rows: Columns) -> pl.DataFrame:
    """Alibaba's GPU-sharing cluster (cluster-trace-gpu-v2023), `openb_pod_list_*.csv`: one pod, one job.

    A pod runs from `scheduled_time` to `deletion_time`; one that was never scheduled has no run time and is
    left out. A pod that asks for a part of a GPU (`gpu_milli` below 1000) takes a whole one here.
    """
    num_gpu = rows.gpus("num_gpu")
    submit_s = rows.time("creation_time")
    start_s = rows.number("scheduled_time", optional=True)
    rows.reject(np.isnan(start_s), "scheduled_time", "the pod never started")
    duration_s = rows.time("deletion_time") - start_s
    rows.reject_durations(duration_s, "deletion_time")
    return rows.good(
        job_id=rows.name("name"),
        submit_s=submit_s,
        num_gpu=num_gpu,
        duration_s=duration_s,
        milli=rows.number("gpu_milli"),
    )


def _finish_pods(pods: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    shared = int((pods["milli"] < 1000).sum())
    if shared:
        notes.append(f"parts of GPUs rounded up to whole ones: {format_count(shared, 'job')}")
    return pods.drop("milli")


ALIBABA_2023 = CsvFormat(
    "alibaba-2023",
    "the Alibaba 2023 pod list",
    ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"),
    _parse_pods,
    _finish_pods,
)


def _parse_tiresias(rows: Columns) -> pl.DataFrame:
    """The CSV of the Tiresias simulator, which Muri's takes over: `job_id,num_gpu,submit_time,iterations,...`.

    Tiresias counts in seconds, Muri in milliseconds, and neither file says so. The duration of one iteration
    does: no training takes half a minute for a usual step, so where the median is above 30 the unit is the
    millisecond.
    """
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


def _finish_tiresias(jobs: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
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
    _parse_tiresias,
    _finish_tiresias,
)
