"""A log with columns of its own becomes a trace that berth reads: docs/guides/traces.md explains it."""

import polars as pl

log = pl.read_csv("sacct.txt", separator="|", null_values="Unknown", try_parse_dates=True)
trace = log.select(
    job_id="JobID",
    submit_s=pl.col("Submit").dt.epoch("s"),
    num_gpu=pl.col("AllocTRES").str.extract(r"gres/gpu=(\d+)"),
    duration_s=(pl.col("End") - pl.col("Start")).dt.total_seconds(),
    user="User",
    vc="Account",
)
trace.write_csv("mine.csv")
