"""SenseTime's Helios traces (2020), `cluster_log.csv`: Slurm jobs with user and virtual cluster.

`duration` is `end_time - start_time` in seconds. More than half of the jobs ask for no GPU: those are left
out and counted. The state (completed, cancelled, failed ...) does not matter here: a failed job held its
GPUs all the same.
"""

from __future__ import annotations

import polars as pl

from berth.workload.formats.base import CsvFormat
from berth.workload.parsing.columns import Columns


def _parse(rows: Columns) -> pl.DataFrame:
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
    _parse,
    wall_clock=True,
)
