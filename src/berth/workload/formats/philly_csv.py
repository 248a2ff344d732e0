"""Microsoft's Philly trace (2017) as the Pollux simulator reduced it.

The columns are `timestamp,duration,num_gpus,gpu_time,cluster`; the last is the virtual cluster. There are
no job names: the id of a job is its line number.
"""

from __future__ import annotations

import polars as pl

from berth.workload.formats.base import CsvFormat
from berth.workload.parsing.columns import Columns


def _parse(rows: Columns) -> pl.DataFrame:
    return rows.good(
        job_id=pl.Series(rows.lines).cast(pl.String),
        submit_s=rows.date("timestamp"),
        duration_s=rows.duration("duration"),
        num_gpu=rows.gpus("num_gpus"),
        vc=rows.text("cluster"),
    )


def _finish(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    notes.append("the rows have no names: a job is named by its line")
    return frame


PHILLY_CSV = CsvFormat(
    "philly-csv",
    "the reduced Philly CSV",
    ("timestamp", "duration", "num_gpus"),
    _parse,
    _finish,
    wall_clock=True,
)
