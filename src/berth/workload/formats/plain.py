"""Berth's own CSV: `job_id,submit_s,num_gpu,duration_s`, and `model,user,vc,priority,device` if there are any."""

from __future__ import annotations

import polars as pl

from berth.workload.formats.base import CsvFormat
from berth.workload.parsing.columns import Columns
from berth.workload.trace import NEEDED, SCHEMA


def _parse(rows: Columns) -> pl.DataFrame:
    return rows.good(
        job_id=rows.name("job_id"),
        submit_s=rows.time("submit_s"),
        num_gpu=rows.gpus("num_gpu"),
        duration_s=rows.duration("duration_s"),
        model=rows.text("model"),
        user=rows.text("user"),
        vc=rows.text("vc"),
        priority=rows.whole("priority", optional=True),
        device=rows.text("device"),
    )


PLAIN = CsvFormat("berth", "berth's plain CSV", NEEDED, _parse, all_columns=tuple(SCHEMA))
