"""Files that berth knows and can't use as a trace: each says what it lacks and what would help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from berth.errors import TraceError
from berth.workload.formats.base import Head

_STATES = {"Terminated", "Running", "Failed", "Waiting"}


@dataclass(frozen=True, slots=True)
class Refused:
    """A known file type that is not a trace with durations."""

    title: str
    recognises: Callable[[Head], bool]
    lacks: str
    hint: str


def _columns(*needed: str) -> Callable[[Head], bool]:
    return lambda head: set(needed) <= set(head.fields)


def _pai_jobs(head: Head) -> bool:
    bare = len(head.fields) == 6 and head.fields[3] in _STATES
    return bare or _columns("job_name", "inst_id", "user", "status", "start_time")(head)


REFUSED = (
    Refused(
        "a Pollux workload",
        _columns("time", "application", "num_replicas", "batch_size"),
        "it has no durations: how long a job runs follows from the application's measured throughput",
        "add a column duration_s and name the others job_id,submit_s,num_gpu,duration_s,model",
    ),
    Refused(
        "a DeepShare job list",
        lambda head: head.text.startswith("{") and '"total_samples_to_train"' in head.text,
        "it has samples to train instead of durations, and no submission times",
        "divide the samples by the model's measured throughput and write job_id,submit_s,num_gpu,duration_s",
    ),
    Refused(
        "the Alibaba PAI 2020 job table",
        _pai_jobs,
        "it has no GPU counts",
        "give pai_task_table.csv, which has them",
    ),
    Refused(
        "the Alibaba 2023 node list",
        _columns("sn", "cpu_milli", "memory_mib", "gpu", "model"),
        "it lists machines, not jobs",
        "give openb_pod_list_default.csv",
    ),
)


def refuse_known(head: Head, source: str) -> None:
    """Raise a TraceError for a known file type that can't be used as a trace."""
    for kind in REFUSED:
        if kind.recognises(head):
            raise TraceError(f"is {kind.title}: {kind.lacks}", where=source, hint=kind.hint)
