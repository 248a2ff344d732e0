"""A plan as a YAML file that people edit: which layers run where, how many replicas, and the predicted figures.

    model: ctrdnn
    cluster: cloud-mix
    throughput: 100k/s
    stages:
      - {layers: embedding .. pooling, type: cpu-core, replicas: 12}
      - {layers: concat .. loss, type: T4, replicas: 2}
    predicted: {throughput: 102431.7, usd_per_hour: 1.612, cost_usd: 4.37, ...}

A check computes the predictions again; the file's own are only compared. `units` is the former name of `replicas`.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from berth import units as quantities
from berth.errors import InputError, SpecError, UnknownNameError
from berth.plan.build import match_layers, match_type
from berth.plan.explain import layer_range, provenance, round_down
from berth.plan.objective.protocol import Evaluation
from berth.plan.plan import Plan, with_replicas
from berth.plan.problem import Problem
from berth.plan.problem_json import known_bound
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.method import Outcome
from berth.plan.yaml_text import yaml_number, yaml_word
from berth.spec import Bandwidth, Spec, UsdPerHour, locate, parse, read_text

Rate = Annotated[float, BeforeValidator(quantities.per_second), Field(gt=0)]
Amount = Annotated[float, BeforeValidator(quantities.amount), Field(gt=0)]
_CLOSE = 1e-6  # relative difference up to which a stored figure counts as unchanged
_NAMES = ("model", "cluster", "devices", "problem", "tables", "pins", "forbid")
_REQUEST = (*_NAMES, "throughput", "samples", "epochs", "fixed", "link")
_REPLICAS = ("replicas", "units")  # `locate` skips the key that the file does not have


class StageSpec(Spec):
    """One stage: a run of layers (`a`, or `a .. b`) on replicas of one device type."""

    layers: str
    type: str
    replicas: Annotated[int, Field(gt=0, strict=True, validation_alias=AliasChoices(*_REPLICAS))]


class PredictedSpec(Spec):
    """The figures of the plan when it was made."""

    throughput: Rate
    usd_per_hour: Annotated[float, Field(ge=0)]
    cost_usd: Annotated[float, Field(ge=0)]
    lower_bound_usd: Annotated[float, Field(ge=0)] | None = None
    method: str = ""


class PlanSpec(Spec):
    """The whole file."""

    model: str | None = None
    cluster: str | None = None
    devices: list[str] | None = None
    problem: str | None = None
    throughput: Rate
    samples: Amount
    epochs: Amount = 1.0
    fixed: UsdPerHour | None = None
    tables: str = "servers"
    link: Bandwidth | None = None
    pins: list[str] = Field(default_factory=list)
    forbid: list[str] = Field(default_factory=list)
    stages: Annotated[list[StageSpec], Field(min_length=1)]
    predicted: PredictedSpec | None = None
    provenance: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class CheckedPlan:
    """A plan read from a file, its violations with their positions, and what has changed since it was made."""

    request: PlanRequest
    plan: Plan
    violations: tuple[tuple[str, str], ...]  # (file:line:column, what)
    notes: tuple[str, ...]


def write_plan(
    path: str | Path, request: PlanRequest, outcome: Outcome, evaluation: Evaluation | None = None
) -> None:
    """Write the plan of an outcome as YAML, with what another objective found of it."""
    try:
        Path(path).write_text(plan_yaml(request, outcome, evaluation), encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=str(path)) from None


def plan_yaml(request: PlanRequest, outcome: Outcome, evaluation: Evaluation | None = None) -> str:
    """Return the text of the file."""
    plan = outcome.plan
    if plan is None:
        raise InputError("there is no plan to write", hint=outcome.note or None)
    out = io.StringIO()
    out.write("# A plan made by berth. After an edit: berth plan check FILE\n")
    for key in _NAMES:
        value = getattr(request, key)
        if value and (key, value) != ("tables", "servers"):
            out.write(f"{key}: {yaml_word(value) if isinstance(value, str) else json.dumps(value)}\n")
    rate = request.throughput if request.max_usd is None else round_down(plan.throughput)
    out.write(f"throughput: {_number(rate)}  # examples per second, at least\n")
    out.write(f"samples: {_number(request.samples)}\nepochs: {_number(request.epochs)}\n")
    if request.fixed is not None:
        out.write(f"fixed: ${_number(request.fixed)}/h\n")
    if request.link is not None:
        out.write(f"link: {_number(request.link)}B/s\n")
    out.write("stages:\n")
    for stage in plan.stages:
        layers = yaml_word(layer_range(plan.problem, stage.first, stage.last))
        out.write(
            f"  - {{layers: {layers}, type: {yaml_word(stage.type_name)}, replicas: {stage.replicas}}}\n"
        )
    if evaluation is not None:
        found = (
            f"{quantities.format_rate(evaluation.throughput)}, {quantities.format_usd(evaluation.cost_usd)}"
        )
        out.write(f"# by the objective that was asked for: {found} ({evaluation.note}); by the formula:\n")
    _write_predicted(out, plan, outcome)
    if plan.problem.source is not None:
        out.write("provenance:\n")
        for name, text in provenance(plan.problem).items():
            if name in plan.device_counts:
                out.write(f"  {yaml_word(name)}: {json.dumps(text)}\n")
    return out.getvalue()


def _write_predicted(out: io.StringIO, plan: Plan, outcome: Outcome) -> None:
    out.write("predicted:\n")
    figures = {"throughput": plan.throughput, "usd_per_hour": plan.usd_per_hour, "cost_usd": plan.cost_usd}
    if (bound := known_bound(outcome)) is not None:
        figures["lower_bound_usd"] = bound
    for key, value in figures.items():
        out.write(f"  {key}: {_number(float(f'{value:.9g}'))}\n")
    out.write(f"  method: {outcome.method}\n")


def _number(value: float) -> str:
    """Return a number as YAML, without a decimal point if it is whole."""
    return str(int(value)) if value == int(value) and abs(value) < 1e16 else yaml_number(value)


def check_plan(path: str | Path) -> CheckedPlan:
    """Read a plan file, perhaps edited, and compute everything in it again."""
    text = read_text(path)
    where = str(path)
    written = parse(text, PlanSpec, where)
    request = PlanRequest(**{name: _plain(getattr(written, name)) for name in _REQUEST})
    positions = _Positions(text, where)
    try:
        problem = build_problem(request, Path(path).parent)
    except InputError as error:
        if error.where is None:
            error.where = _position_of_name(error.what, request, positions)
        raise
    assignment = _assignment(problem, written.stages, positions)
    plan = with_replicas(problem, assignment, [stage.replicas for stage in written.stages])
    violations = tuple(_violations(plan, positions))
    return CheckedPlan(request, plan, violations, tuple(_changes(plan, written.predicted)))


@dataclass(frozen=True)
class _Positions:
    """Positions of values in the file."""

    text: str
    where: str

    def at(self, *path: int | str) -> str:
        line, column = locate(self.text, path)
        return f"{self.where}:{line}:{column}"


def _position_of_name(what: str, request: PlanRequest, positions: _Positions) -> str:
    """Return the position of the name that an error is about: the value that its message quotes."""
    for key in _NAMES:
        value = getattr(request, key)
        for at, name in enumerate(value if isinstance(value, tuple) else (value,)):
            if name and repr(name) in what:
                return positions.at(key, at) if isinstance(value, tuple) else positions.at(key)
    return positions.where


def _assignment(problem: Problem, stages: list[StageSpec], positions: _Positions) -> list[int]:
    """Return the type of every layer; the stages must cover all layers, each once and in order."""
    assignment: list[int] = []
    for row, stage in enumerate(stages):
        layers = _layers(problem, stage, positions.at("stages", row, "layers"))
        begin = problem.layer_index(layers[0])
        if begin != len(assignment):
            raise _gap(problem, len(assignment), begin, positions.at("stages", row, "layers"))
        try:
            device = problem.type_index(match_type(problem, stage.type))
        except UnknownNameError as error:
            error.where = positions.at("stages", row, "type")
            raise
        if assignment and assignment[-1] == device:
            raise SpecError(
                f"stages {row} and {row + 1} are both on {problem.type_names[device]}, so they are one",
                where=positions.at("stages", row, "type"),
                hint="write neighbouring layers on one type as one stage",
            )
        assignment += [device] * len(layers)
    if len(assignment) < len(problem.layers):
        raise _gap(
            problem, len(assignment), len(problem.layers), positions.at("stages", len(stages) - 1, "layers")
        )
    return assignment


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


def _violations(plan: Plan, positions: _Positions) -> Iterator[tuple[str, str]]:
    problem = plan.problem
    if plan.is_too_slow:
        yield (
            positions.at("stages", plan.bottleneck, *_REPLICAS),
            f"stage {plan.bottleneck + 1} holds {quantities.format_rate(plan.throughput)}, below the "
            f"{quantities.format_rate(problem.throughput)} wanted{_replicas_needed(plan)}",
        )
    for one in plan.over_limit:
        last = max(row for row, stage in enumerate(plan.stages) if stage.type_name == one.name)
        what = f"{plan.device_counts[one.name]} {one.name} are used, the limit is {one.limit}"
        yield positions.at("stages", last, *_REPLICAS), what
    for row, stage in enumerate(plan.stages):
        if stage.replicas < stage.min_replicas:
            least = f"{stage.min_replicas} replicas" if stage.min_replicas < 10**9 else "another type"
            what = f"stage {row + 1} needs {least} for its memory"
            yield positions.at("stages", row, *_REPLICAS), what
        for layer in range(stage.first, stage.last + 1):
            if not problem.allowed[layer, plan.assignment[layer]]:
                what = f"layer {problem.layers[layer]!r} may not run on {stage.type_name}"
                yield positions.at("stages", row, "type"), what


def _replicas_needed(plan: Plan) -> str:
    """Return how many replicas the bottleneck needs, if any number is enough."""
    stage, tau = plan.stages[plan.bottleneck], 1 / plan.problem.throughput
    if stage.serial_s >= tau:
        serial = quantities.format_seconds(stage.serial_s)
        return f"; {serial} per example remain with any number of replicas"

    def holds(replicas: int) -> bool:
        counts = [replicas if row == plan.bottleneck else one.replicas for row, one in enumerate(plan.stages)]
        changed = with_replicas(plan.problem, plan.assignment, counts).stages[plan.bottleneck]
        return changed.time_s <= tau * (1 + 1e-9)

    low, high = stage.replicas, 2 * stage.replicas
    while not holds(high):
        low, high = high, 2 * high
    while high > low + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return f"; it needs {high} replicas"


def _changes(plan: Plan, predicted: PredictedSpec | None) -> Iterator[str]:
    if predicted is None:
        return
    pairs = (
        ("throughput", predicted.throughput, plan.throughput, quantities.format_rate),
        ("price", predicted.usd_per_hour, plan.usd_per_hour, quantities.format_usd_per_hour),
        ("cost", predicted.cost_usd, plan.cost_usd, quantities.format_usd),
    )
    for name, before, now, text in pairs:
        if not math.isclose(before, now, rel_tol=_CLOSE):
            yield f"{name} is {text(now)} now; the file says {text(before)}"


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
