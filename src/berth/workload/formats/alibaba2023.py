"""Alibaba's GPU-sharing cluster (cluster-trace-gpu-v2023), `openb_pod_list_*.csv`: one pod, one job.

A pod runs from `scheduled_time` to `deletion_time`; one that was never scheduled has no run time and is
left out. A pod that asks for a part of a GPU (`gpu_milli` below 1000) takes a whole one here.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from berth.units import format_count
from berth.workload.formats.base import CsvFormat
from berth.workload.parsing.columns import Columns


def _parse(rows: Columns) -> pl.DataFrame:
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


def _finish(pods: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    shared = int((pods["milli"] < 1000).sum())
    if shared:
        notes.append(f"parts of GPUs rounded up to whole ones: {format_count(shared, 'job')}")
    return pods.drop("milli")


ALIBABA_2023 = CsvFormat(
    "alibaba-2023",
    "the Alibaba 2023 pod list",
    ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"),
    _parse,
    _finish,
)
