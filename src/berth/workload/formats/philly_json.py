"""Microsoft's Philly trace (2017) as published: `cluster_job_log`, one JSON list of jobs and their attempts.

As in the analysis published with it, a job's GPUs are those of its first attempt, and its run time goes
from the first attempt's start to the last attempt's end, pauses between attempts included. Jobs that never
started, or were running when the log was taken, have no run time and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import polars as pl

from berth.errors import TraceError
from berth.workload.formats.base import Head, ParsedJobs
from berth.workload.parsing.json_list import Item, items
from berth.workload.parsing.stream import TraceStream
from berth.workload.trace import BadRow, BadRowCollector


class _NotAJobError(Exception):
    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field, self.value, self.reason = field, "" if value is None else str(value), reason


@dataclass
class _Jobs:
    job_id: list[str] = field(default_factory=list)
    submit_s: list[float] = field(default_factory=list)
    num_gpu: list[int] = field(default_factory=list)
    duration_s: list[float] = field(default_factory=list)
    user: list[str | None] = field(default_factory=list)
    vc: list[str | None] = field(default_factory=list)
    line: list[int] = field(default_factory=list)

    def add(self, item: Item) -> None:
        job = item.value
        if not isinstance(job, dict):
            raise _NotAJobError("", job, "is not a job")
        name = _text(job, "jobid")
        if name is None:
            raise _NotAJobError("jobid", None, "is missing")
        submit_s, gpus, duration_s = _seconds(job, "submitted_time"), *_run(job)
        self.job_id.append(name)
        self.submit_s.append(submit_s)
        self.num_gpu.append(gpus)
        self.duration_s.append(duration_s)
        self.user.append(_text(job, "user"))
        self.vc.append(_text(job, "vc"))
        self.line.append(item.line)


def _run(job: dict[str, Any]) -> tuple[int, float]:
    """GPUs and run time in seconds."""
    attempts = job.get("attempts")
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        raise _NotAJobError("attempts", attempts, "is not a list of attempts")
    if not attempts:
        raise _NotAJobError("attempts", None, "the job never started")
    gpus = _gpus(attempts[0])
    if attempts[0].get("start_time") in (None, "", "None"):
        raise _NotAJobError("start_time", None, "the start was not recorded")
    if attempts[-1].get("end_time") in (None, "", "None"):
        raise _NotAJobError("end_time", None, "the job had not ended")
    duration_s = _seconds(attempts[-1], "end_time") - _seconds(attempts[0], "start_time")
    if duration_s <= 0:
        raise _NotAJobError("end_time", attempts[-1]["end_time"], "the run time is not above zero")
    return gpus, duration_s


def _gpus(attempt: dict[str, Any]) -> int:
    detail = attempt.get("detail")
    try:
        gpus = sum(len(machine["gpus"]) for machine in detail or ())
    except (TypeError, KeyError):
        raise _NotAJobError("detail", detail, "is not a list of machines and their GPUs") from None
    if not gpus:
        raise _NotAJobError("detail", None, "asks for no GPU")
    return gpus


def _seconds(record: dict[str, Any], name: str) -> float:
    value = record.get(name)
    if value in (None, "", "None"):
        raise _NotAJobError(name, None, "is missing")
    try:
        stamp = datetime.fromisoformat(value)
        stamp = stamp.replace(tzinfo=UTC) if stamp.tzinfo is None else stamp
    except (ValueError, TypeError):
        raise _NotAJobError(name, value, "is not a date") from None
    if not 1970 <= stamp.year < 2100:
        raise _NotAJobError(name, value, "is not between 1970 and 2099")
    return stamp.timestamp()


def _text(job: dict[str, Any], name: str) -> str | None:
    value = job.get(name)
    return None if value in (None, "") else str(value)


class _PhillyJson:
    name = "philly-json"
    title = "the Philly cluster_job_log"

    def recognises(self, head: Head) -> bool:
        """A JSON list whose first object has attempts and a submission."""
        return head.text.startswith("[") and '"attempts"' in head.text and '"submitted_time"' in head.text

    def read(self, source: TraceStream, head: Head, bad_rows: BadRowCollector) -> ParsedJobs:
        """All jobs of the list, one object at a time."""
        jobs, rows = _Jobs(), 0
        for item in items(source):
            rows += 1
            try:
                jobs.add(item)
            except _NotAJobError as fault:
                bad = BadRow(item.line, item.column, fault.field, fault.value, fault.reason)
                bad_rows.add(1, [bad])
        if not rows:
            raise TraceError("is an empty list", where=source.name, hint="a trace has one object per job")
        notes = ["run time: from the first attempt's start to the last attempt's end"]
        return ParsedJobs(pl.DataFrame(vars(jobs)), rows, wall_clock=True, notes=notes)


PHILLY_JSON = _PhillyJson()
