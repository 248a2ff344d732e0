"""Predicted against measured: the planner's formula for the processes that were started, and what the run took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berth.errors import InputError
from berth.plan.plan import Plan, Stage, schedule_for, with_counts
from berth.plan.request import PlanRequest, build_problem
from berth.train.planned import PlannedRun, cores_here

if TYPE_CHECKING:
    from berth.train.result import Result


@dataclass(frozen=True, slots=True)
class StageComparison:
    """One stage: its processes, and the seconds of one replica in one step without waiting for others."""

    layers: str
    device: str
    planned: int
    started: int
    predicted_s: float | None
    measured_s: float | None  # of the slowest replica
    source: str  # of the predicted times: measured, modelled or stated
    tables: str = ""  # where the plan has its tables
    # all-to-all of resident rows in one step, over the planned network
    exchange_predicted_s: float | None = None
    exchange_measured_s: float | None = None  # wall-clock time, with waiting for other replicas


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """A planned run: counts, the time of a step, and throughput."""

    scale: str
    batch: int
    micro_batches: int
    stages: tuple[StageComparison, ...]
    servers_planned: int
    servers_started: int
    readers_planned: int
    planned_examples_per_s: float  # of the whole plan, at its own batch
    predicted_step_s: float | None  # of the processes that were started
    measured_step_s: float | None  # wall-clock time, median
    predicted_examples_per_s: float | None
    measured_examples_per_s: float  # of the whole run
    not_started: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def compare_with_plan(
    planned: PlannedRun,
    result: Result,
    *,
    names: Sequence[str],
    batch: int,
    micro_batches: int,
    has_budget: bool,
    cores: int | None = None,
) -> PlanComparison:
    """Return the comparison of a run with its plan."""
    statistics = result.statistics
    servers = len(statistics.get("servers", ()))
    workers = statistics.get("workers", ())
    notes: list[str] = []
    try:
        predicted = _predicted(planned, batch, micro_batches, servers)
    except InputError as error:
        predicted = None
        notes.append(f"no prediction: {error.what}")
    sources = _sources(planned.plan)
    stages = []
    for number, (cut, stage) in enumerate(zip(planned.cuts, planned.plan.stages, strict=True)):
        measured = [one["work_s"] for one in workers if one["stage"] == number and one["work_s"] is not None]
        stages.append(
            StageComparison(
                layers=" .. ".join(dict.fromkeys((names[cut.first], names[cut.last]))),
                device=stage.type_name,
                planned=stage.replicas,
                started=sum(one["stage"] == number for one in workers),
                predicted_s=_work_s(predicted, predicted.stages[number], batch) if predicted else None,
                measured_s=max(measured, default=None),
                source=sources.get(stage.type_name, "stated"),
                tables=stage.tables,
                **_exchange(predicted, number, workers),
            )
        )
    notes += _limit(predicted) if predicted else []
    notes += _notes(planned, len(workers) + servers, cores or cores_here())
    rate = predicted.throughput if predicted else None
    return PlanComparison(
        scale=str(planned.scale),
        batch=batch,
        micro_batches=micro_batches,
        stages=tuple(stages),
        servers_planned=planned.plan.servers,
        servers_started=servers,
        readers_planned=planned.plan.readers,
        planned_examples_per_s=planned.plan.throughput,
        predicted_step_s=batch / rate if rate else None,
        measured_step_s=statistics.get("step_s"),
        predicted_examples_per_s=rate,
        measured_examples_per_s=result.examples_per_s,
        not_started=tuple(planned.not_started(servers, has_budget=has_budget)),
        notes=tuple(notes),
    )


def _predicted(planned: PlannedRun, batch: int, micro_batches: int, servers: int) -> Plan:
    """Return the plan with the counts that were started, at the batch of the run."""
    plan, replicas = planned.plan, planned.layout.replicas
    problem = plan.problem
    if problem.source is not None:
        problem = build_problem(_at_batch(planned, batch), Path(planned.path).parent)
    schedule = schedule_for(problem, len(replicas), micro_batches)
    readers = replicas[0] if plan.readers else 0  # a thread of every worker of the first stage
    served = _divided(planned.servers, servers)
    return with_counts(problem, schedule, plan.cuts, replicas, served, readers)


def _at_batch(planned: PlannedRun, batch: int) -> PlanRequest:
    """Return the plan's request at another batch."""
    world = planned.request.world
    if planned.is_sync:
        changed = replace(world, batch=batch, batch_per_replica=None)
    else:
        changed = replace(world, batch_per_replica=max(1, round(batch / planned.layout.replicas[0])))
    return replace(planned.request, world=changed)


def _divided(planned: Sequence[int], started: int) -> list[int]:
    """Return the servers of each stage if another number was asked for: in proportion, at least one each."""
    total = sum(planned)
    if not total or total == started:
        return list(planned)
    return [max(1, round(count * started / total)) if count else 0 for count in planned]


def _work_s(plan: Plan, stage: Stage, batch: int) -> float:
    """Return the seconds of one replica in a step: computation, optimiser and all-reduce."""
    return stage.compute_s * batch + (stage.optimiser_s + stage.sync_s) * plan.problem.batch


def _exchange(predicted: Plan | None, stage: int, workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return predicted and measured seconds of the all-to-all of rows, for a stage whose tables are resident."""
    shards = [one["shards"] for one in workers if one["stage"] == stage and "shards" in one]
    measured = [one["exchange_s"] for one in shards if one["tables"] and one["exchange_s"] is not None]
    if not measured:
        return {}
    from berth.plan.objective.simulate import exchange_seconds

    seconds = None
    if predicted is not None:
        each = exchange_seconds(predicted.problem, predicted.stages[stage], predicted.micro)
        seconds = each * predicted.micro
    return {"exchange_predicted_s": seconds, "exchange_measured_s": max(measured)}


def _sources(plan: Plan) -> Mapping[str, str]:
    """Return whether the times of each device type were measured or modelled; empty for a stated problem."""
    source = plan.problem.source
    if source is None:
        return {}
    return {device.name: source.profile.on(device).compute.kind for device in source.devices}


def _limit(plan: Plan) -> list[str]:
    """Return what limits the predicted step."""
    from berth.plan.stage_reasons import limited_by, slowest

    reads = plan.reader_s >= plan.stage_s
    what = "the readers" if reads else f"stage {slowest(plan) + 1}: {limited_by(plan)}"
    network = "; it has the network of the planned machines" if plan.problem.source is not None else ""
    return [f"the predicted step is limited by {what}{network}"]


def _notes(planned: PlannedRun, processes: int, cores: int) -> list[str]:
    from berth.plan.explain import provenance

    used = {stage.type_name for stage in planned.plan.stages}
    notes = [f"{name} is {text}" for name, text in provenance(planned.plan.problem).items() if name in used]
    here = [
        cut.device_type
        for cut in planned.cuts
        if not cut.device_type.startswith("cpu") and cut.device == "cpu"
    ]
    notes += [
        f"stage {number}: measured is the CPU time of its process, which waits for {cut.device} only at copies"
        for number, cut in enumerate(planned.cuts, 1)
        if cut.device != "cpu"
    ]
    if here:
        notes.append(f"{', '.join(dict.fromkeys(here))}: measured on cores of this machine, which emulate it")
    if processes > cores:
        notes.append(
            f"{processes} processes share {cores} core{'' if cores == 1 else 's'} here;"
            " the prediction has a device for each"
        )
    return notes
