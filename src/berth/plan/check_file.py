"""Reads a plan file, perhaps edited, and computes everything in it again: its violations have positions in the file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berth import units as quantities
from berth.errors import InputError, SpecError, UnknownNameError
from berth.plan.file_violations import CLOSE, Positions, violations
from berth.plan.files import FILES, NAMES, PlanSpec, PredictedSpec, StageSpec
from berth.plan.pins import match_layers, match_type
from berth.plan.plan import Cut, Plan, schedule_for, with_counts
from berth.plan.problem import Problem, Schedule
from berth.plan.request import PlanRequest, build_problem
from berth.plan.stage_reasons import layer_range
from berth.plan.world import SYNC, WorldOptions
from berth.spec import parse, read_text

_REQUEST = (*NAMES, "throughput", "samples", "epochs", "fixed")
_WORLD = ("mode", "batch", "batch_per_replica", "staleness", "rows", "whole_machines")
_FORMER_TABLES = {"units": "replicas"}


@dataclass(frozen=True)
class CheckedPlan:
    """A plan read from a file, its violations with their positions, and what has changed since it was made."""

    request: PlanRequest
    plan: Plan
    violations: tuple[tuple[str, str], ...]  # (file:line:column, what)
    notes: tuple[str, ...]


def check_plan(path: str | Path) -> CheckedPlan:
    """Read a plan file, perhaps edited, and compute everything in it again."""
    text = read_text(path)
    where = str(path)
    written = parse(text, PlanSpec, where)
    positions = Positions(text, where)
    try:
        world = _world(written)
        request = PlanRequest(**{name: _plain(getattr(written, name)) for name in _REQUEST}, world=world)
    except UnknownNameError as error:
        error.where = positions.at("mode" if "mode" in error.what else "tables")
        raise
    _check_keys(written, positions)
    try:
        problem = build_problem(request, Path(path).parent)
    except InputError as error:
        if (key := _missing_file(error, request)) is not None:
            raise SpecError(
                f"{key}: no such file: {getattr(request, key)}",
                where=positions.at(key),
                hint="a path is relative to the folder of the plan, or to the current one",
            ) from None
        if error.where is None:
            error.where = _position_of_name(error.what, request, positions)
        raise
    cuts = _cuts(problem, written.stages, positions)
    plan = _plan(problem, cuts, written, positions)
    found = tuple(violations(plan, positions))
    notes = (*_changes(plan, written.predicted), *(() if found else _simulated(plan)))
    return CheckedPlan(request, plan, found, notes)


def _missing_file(error: InputError, request: PlanRequest) -> str | None:
    """Return the key whose file is missing; None if that is not the error."""
    if error.what != "no such file":
        return None
    return next((key for key in FILES if getattr(request, key) == error.where), None)


def _position_of_name(what: str, request: PlanRequest, positions: Positions) -> str:
    """Return the position of the name that an error is about: the value that its message quotes."""
    for key in NAMES:
        value = getattr(request, key)
        for at, name in enumerate(value if isinstance(value, tuple) else (value,)):
            if name and repr(name) in what:
                return positions.at(key, at) if isinstance(value, tuple) else positions.at(key)
    return positions.where


def _check_keys(written: PlanSpec, positions: Positions) -> None:
    """Refuse keys that have no meaning beside others."""
    given = [key for key in (*_WORLD, "tables", "micro", "link") if key in written.model_fields_set]
    if written.problem is not None and given:
        raise SpecError(
            f"{given[0]}: a stated problem is planned as it is",
            where=positions.at(given[0]),
            hint="this key is for a `model:`",
        )
    wrong = ("staleness",) if written.mode == SYNC else ("batch",)
    for key in wrong:
        if key in given:
            raise SpecError(
                f"{key}: has no meaning with mode {written.mode}",
                where=positions.at(key),
                hint="leave it out",
            )


def _world(written: PlanSpec) -> WorldOptions:
    given = {name: getattr(written, name) for name in _WORLD}
    places = [written.tables] if isinstance(written.tables, str) else written.tables
    if places is not None:
        given["tables"] = tuple(_FORMER_TABLES.get(place, place) for place in places)
    if written.micro is not None:
        given["micro"] = tuple(written.micro)
    return WorldOptions(**given, nic_share=written.link)


def _plan(problem: Problem, cuts: list[Cut], written: PlanSpec, positions: Positions) -> Plan:
    """Return the plan with the file's counts; without `micro_batches`, with the number that is fastest."""
    if written.micro_batches is not None and not problem.micro:
        raise SpecError(
            "micro_batches: only synchronous steps of a model have micro-batches",
            where=positions.at("micro_batches"),
            hint="leave it out",
        )
    replicas = [stage.replicas for stage in written.stages]

    def with_micro(micro: int) -> Plan:
        schedule = schedule_for(problem, len(cuts), micro)
        servers = _servers(problem, schedule, cuts, written.stages)
        return with_counts(problem, schedule, cuts, replicas, servers, written.readers)

    if written.micro_batches is not None:
        return with_micro(written.micro_batches)
    return max(map(with_micro, problem.micro or (1,)), key=lambda plan: plan.throughput)


def _servers(
    problem: Problem, schedule: Schedule, cuts: list[Cut], stages: list[StageSpec]
) -> list[int] | None:
    """Return the server cores of each stage: the file's, or what the stage needs."""
    if all(stage.servers is None for stage in stages):
        return None
    needed = with_counts(problem, schedule, cuts, [stage.replicas for stage in stages])
    return [
        own.servers if stage.servers is None else stage.servers
        for stage, own in zip(stages, needed.stages, strict=True)
    ]


def _cuts(problem: Problem, stages: list[StageSpec], positions: Positions) -> list[Cut]:
    """Return the stages by their layers; they must cover all layers, each once and in order."""
    cuts: list[Cut] = []
    reached = 0
    for row, stage in enumerate(stages):
        layers = _layers(problem, stage, positions.at("stages", row, "layers"))
        begin = problem.layer_index(layers[0])
        if begin != reached:
            raise _gap(problem, reached, begin, positions.at("stages", row, "layers"))
        key = "type"
        try:
            name = match_type(problem, stage.type)
            key = "tables"
            choice = problem.choice_index(name, _FORMER_TABLES.get(stage.tables, stage.tables))
        except UnknownNameError as error:
            error.where = positions.at("stages", row, key)
            raise
        reached = begin + len(layers)
        cuts.append((begin, reached - 1, choice))
    if reached < len(problem.layers):
        raise _gap(problem, reached, len(problem.layers), positions.at("stages", len(stages) - 1, "layers"))
    return cuts


def _layers(problem: Problem, stage: StageSpec, where: str) -> list[str]:
    try:
        return match_layers(problem, "..".join(part.strip() for part in stage.layers.split("..")), exact=True)
    except InputError as error:
        error.where = where
        raise


def _gap(problem: Problem, reached: int, begin: int, where: str) -> SpecError:
    if begin > reached:
        missing = layer_range(problem, reached, begin - 1)
        return SpecError(f"no stage runs {missing}", where=where, hint="stages cover all layers in order")
    layer = problem.layers[begin]
    return SpecError(
        f"layer {layer!r} already has a stage", where=where, hint="each layer belongs to one stage"
    )


def _simulated(plan: Plan) -> Iterator[str]:
    """Say so if the plan holds its throughput by the formula only."""
    from berth.plan.objective.simulate import holds, simulated_throughput

    reached = simulated_throughput(plan)
    if not holds(plan.problem, reached):
        yield (
            f"its event simulation reaches {quantities.format_rate(reached)}, below the "
            f"{quantities.format_rate(plan.problem.throughput)} wanted"
        )


def _changes(plan: Plan, predicted: PredictedSpec | None) -> Iterator[str]:
    if predicted is None:
        return
    pairs = (
        ("throughput", predicted.throughput, plan.throughput, quantities.format_rate),
        ("price", predicted.usd_per_hour, plan.usd_per_hour, quantities.format_usd_per_hour),
        ("cost", predicted.cost_usd, plan.cost_usd, quantities.format_usd),
    )
    for name, before, now, text in pairs:
        if not math.isclose(before, now, rel_tol=CLOSE):
            yield f"{name} is {text(now)} now; the file says {text(before)}"


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
