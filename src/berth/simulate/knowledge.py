"""What schedulers know about the jobs of a simulation: how long they take, and which can be preempted."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal

import numpy as np

from berth.schedule.job_columns import JobRecords
from berth.schedule.records import EstimateKind
from berth.workload.streams import uniforms
from berth.workload.trace import Trace

Estimates = Literal["known", "learned", "none"]
ESTIMATES: dict[Estimates, EstimateKind] = {
    "known": EstimateKind.TRACKED,
    "learned": EstimateKind.LEARNED,
    "none": EstimateKind.NONE,
}


def set_knowledge(
    records: JobRecords, trace: Trace, estimates: Estimates, preemptible: float, seed: int
) -> None:
    """Writes into the records what schedulers may know, and which jobs can be preempted.

    What the trace says of a job comes first. A user's estimate counts unless no estimates are wanted at all.
    """
    if preemptible < 1.0:
        records["preemptible"] = uniforms(seed, "preemptible", len(records)) < preemptible
    if trace.frame["preemptible"].null_count() < len(records):
        stated = trace.frame["preemptible"].fill_null(-1).to_numpy()
        records["preemptible"] = np.where(stated >= 0, stated, records["preemptible"])
    records["movable"] = records["preemptible"]
    kind = ESTIMATES[estimates]
    if kind == EstimateKind.TRACKED:
        return
    records["estimate_kind"], records["estimate_error"] = kind, 1.0
    records["work_s"] = records["estimated_remaining_s"] = 0.0  # learned when a job is submitted
    if kind == EstimateKind.LEARNED:
        records["given_s"] = trace.frame["estimate_s"].fill_null(0.0).to_numpy()
        _set_classes(records, trace)


def _set_classes(records: JobRecords, trace: Trace) -> None:
    """Classes of similar jobs: by user, name, model and size; by user; by size; all jobs."""
    users, clusters, models, names = (trace.frame[name].to_list() for name in ("user", "vc", "model", "name"))
    gpus = records["gpus"].tolist()
    numbers: dict[Hashable, int] = {}

    def number(kind: str, keys: Iterable[Hashable]) -> list[int]:
        return [numbers.setdefault((kind, key), len(numbers)) for key in keys]

    records["classes"] = np.transpose(
        [
            number("user, model, size", zip(users, clusters, names, models, gpus, strict=True)),
            number("user", zip(users, clusters, strict=True)),
            number("size", gpus),
            number("all", [0] * len(gpus)),
        ]
    )
    records["trust_class"] = number("trust", users)
