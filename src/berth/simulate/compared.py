"""The metrics in which policies are compared: names, units, and whether less is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "share", "ratio"]


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """A figure of `Summary`: how reports name it, how an option does, and what is better."""

    field: str
    option: str
    name: str
    unit: Unit = "s"
    less_is_better: bool = True


_ALL = (
    ComparedMetric("mean_jct_s", "mean-jct", "mean JCT"),
    ComparedMetric("p50_jct_s", "p50-jct", "median JCT"),
    ComparedMetric("p95_jct_s", "p95-jct", "p95 JCT"),
    ComparedMetric("p99_jct_s", "p99-jct", "p99 JCT"),
    ComparedMetric("makespan_s", "makespan", "makespan"),
    ComparedMetric("mean_wait_s", "mean-wait", "mean wait"),
    ComparedMetric("p95_wait_s", "p95-wait", "p95 wait"),
    ComparedMetric("p99_wait_s", "p99-wait", "p99 wait"),
    ComparedMetric("mean_comm_s", "comm", "communication"),
    ComparedMetric("mean_slowdown", "slowdown", "mean slowdown", "ratio"),
    ComparedMetric("p95_slowdown", "p95-slowdown", "p95 slowdown", "ratio"),
    ComparedMetric("goodput", "goodput", "goodput", "share", less_is_better=False),
    ComparedMetric("fairness", "fairness", "fairness (Jain)", "ratio", less_is_better=False),
)
COMPARED = {metric.field: metric for metric in _ALL}
BY_OPTION = {metric.option: metric for metric in _ALL}
