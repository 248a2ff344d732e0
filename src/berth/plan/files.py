"""A plan as a YAML file that people edit: which layers run where, on how many units, and what that was to give.

    model: ctrdnn
    cluster: cloud-mix
    throughput: 100k/s
    stages:
      - {layers: embedding .. pooling, type: cpu-core, units: 12}
      - {layers: concat .. loss, type: T4, units: 2}
    predicted: {throughput: 102431.7, usd_per_hour: 1.612, cost_usd: 4.37, ...}

What was predicted is computed anew when a plan is checked; what the file says of it is only compared.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from berth import units as quantities
from berth.errors import InputError, SpecError, UnknownNameError
from berth.plan.build import layers_called, type_called
from berth.plan.document import known_bound
from berth.plan.explain import layers_of, provenance, round_down
from berth.plan.plan import Plan, with_units
from berth.plan.problem import Problem
from berth.plan.search.method import Outcome
from berth.plan.wanted import Posed, Wanted, pose
from berth.plan.yaml_text import yaml_number, yaml_word
from berth.spec import Bandwidth, Spec, UsdPerHour, locate, parse, read_text

Rate = Annotated[float, BeforeValidator(quantities.per_second), Field(gt=0)]
Amount = Annotated[float, BeforeValidator(quantities.amount), Field(gt=0)]
_CLOSE = 1e-6  # figures of a file that agree with those of today
_NAMES = ("model", "cluster", "devices", "problem", "tables", "pins", "forbid")
_ASKED = (*_NAMES, "throughput", "samples", "epochs", "fixed", "link")


class StageSpec(Spec):
    """One stage: a run of layers (`a`, or `a .. b`) on units of one type."""

    layers: str
    type: str
    units: Annotated[int, Field(gt=0, strict=True)]


class PredictedSpec(Spec):
    """What the plan was to give when it was made."""

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
class Checked:
    """A plan read from a file, what it breaks (with places) and what has changed since it was made."""

    wanted: Wanted
    plan: Plan
    broken: tuple[tuple[str, str], ...]  # (file:line:column, what)
    notes: tuple[str, ...]


def write_plan(path: str | Path, wanted: Wanted, posed: Posed, outcome: Outcome) -> None:
    """Writes the plan of an outcome as YAML."""
    try:
        Path(path).write_text(plan_yaml(wanted, posed, outcome), encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=str(path)) from None


def plan_yaml(wanted: Wanted, posed: Posed, outcome: Outcome) -> str:
    """The text of the file."""
    plan = outcome.plan
    if plan is None:
        raise InputError("there is no plan to write", hint=outcome.note or None)
    out = io.StringIO()
    out.write("# A plan of berth's. Edit it by hand, then: berth plan check FILE\n")
    for key in _NAMES:
        value = getattr(wanted, key)
        if value and (key, value) != ("tables", "servers"):
            out.write(f"{key}: {yaml_word(value) if isinstance(value, str) else json.dumps(value)}\n")
    rate = wanted.throughput if wanted.max_usd is None else round_down(plan.throughput)
    out.write(f"throughput: {_number(rate)}  # examples per second, at least\n")
    out.write(f"samples: {_number(wanted.samples)}\nepochs: {_number(wanted.epochs)}\n")
    if wanted.fixed is not None:
        out.write(f"fixed: ${_number(wanted.fixed)}/h\n")
    if wanted.link is not None:
        out.write(f"link: {_number(wanted.link)}B/s\n")
    out.write("stages:\n")
    for stage in plan.stages:
        layers = yaml_word(layers_of(plan.problem, stage.first, stage.last))
        out.write(f"  - {{layers: {layers}, type: {yaml_word(stage.type_name)}, units: {stage.units}}}\n")
    _write_predicted(out, plan, outcome)
    if posed.setup is not None:
        out.write("provenance:\n")
        for name, text in provenance(posed.setup).items():
            if name in plan.units:
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
    """Without a point where it is whole."""
    return str(int(value)) if value == int(value) and abs(value) < 1e16 else yaml_number(value)


def check_plan(path: str | Path) -> Checked:
    """Reads a plan, perhaps edited, and computes everything in it anew."""
    text = read_text(path)
    where = str(path)
    written = parse(text, PlanSpec, where)
    wanted = Wanted(**{name: _plain(getattr(written, name)) for name in _ASKED})
    places = _Places(text, where)
    try:
        posed = pose(wanted, Path(path).parent)
    except InputError as error:
        if error.where is None:
            error.where = _place_of(error.what, wanted, places)
        raise
    assignment = _assignment(posed.problem, written.stages, places)
    plan = with_units(posed.problem, assignment, [stage.units for stage in written.stages])
    broken = tuple(_broken(plan, places))
    return Checked(wanted, plan, broken, tuple(_changed(plan, written.predicted)))


@dataclass(frozen=True)
class _Places:
    """Where in the file things stand."""

    text: str
    where: str

    def at(self, *path: int | str) -> str:
        line, column = locate(self.text, path)
        return f"{self.where}:{line}:{column}"


def _place_of(what: str, wanted: Wanted, places: _Places) -> str:
    """Where in the file the name is that an error is about: the value that its message quotes."""
    for key in _NAMES:
        value = getattr(wanted, key)
        for at, name in enumerate(value if isinstance(value, tuple) else (value,)):
            if name and repr(name) in what:
                return places.at(key, at) if isinstance(value, tuple) else places.at(key)
    return places.where


def _assignment(problem: Problem, stages: list[StageSpec], places: _Places) -> list[int]:
    """A type for every layer: the stages must cover all layers, each once and in their order."""
    assignment: list[int] = []
    for row, stage in enumerate(stages):
        layers = _layers(problem, stage, places.at("stages", row, "layers"))
        begin = problem.layer_index(layers[0])
        if begin != len(assignment):
            raise _gap(problem, len(assignment), begin, places.at("stages", row, "layers"))
        try:
            kind = problem.type_index(type_called(problem, stage.type))
        except UnknownNameError as error:
            error.where = places.at("stages", row, "type")
            raise
        if assignment and assignment[-1] == kind:
            raise SpecError(
                f"stages {row} and {row + 1} are both on {problem.type_names[kind]}, so they are one",
                where=places.at("stages", row, "type"),
                hint="write neighbouring layers on one type as one stage",
            )
        assignment += [kind] * len(layers)
    if len(assignment) < len(problem.layers):
        raise _gap(
            problem, len(assignment), len(problem.layers), places.at("stages", len(stages) - 1, "layers")
        )
    return assignment


def _layers(problem: Problem, stage: StageSpec, where: str) -> list[str]:
    try:
        return layers_called(
            problem, "..".join(part.strip() for part in stage.layers.split("..")), whole=True
        )
    except InputError as error:
        error.where = where
        raise


def _gap(problem: Problem, reached: int, begin: int, where: str) -> SpecError:
    if begin > reached:
        left_out = layers_of(problem, reached, begin - 1)
        return SpecError(
            f"no stage runs {left_out}", where=where, hint="stages cover all layers in their order"
        )
    layer = problem.layers[begin]
    return SpecError(
        f"layer {layer!r} has a stage already", where=where, hint="each layer belongs to one stage"
    )


def _broken(plan: Plan, places: _Places) -> Iterator[tuple[str, str]]:
    problem = plan.problem
    if plan.throughput < problem.throughput * (1 - 2e-9):
        yield (
            places.at("stages", plan.bottleneck, "units"),
            f"stage {plan.bottleneck + 1} holds {quantities.format_rate(plan.throughput)}, below the "
            f"{quantities.format_rate(problem.throughput)} wanted{_units_needed(plan)}",
        )
    for one in problem.types:
        if plan.units.get(one.name, 0) > one.limit:
            last = max(row for row, stage in enumerate(plan.stages) if stage.type_name == one.name)
            what = f"{plan.units[one.name]} units of {one.name}, and there are {one.limit}"
            yield places.at("stages", last, "units"), what
    for row, stage in enumerate(plan.stages):
        if stage.units < stage.least_units:
            least = f"{stage.least_units} units" if stage.least_units < 10**9 else "another type"
            yield places.at("stages", row, "units"), f"stage {row + 1} needs {least} for its memory"
        for layer in range(stage.first, stage.last + 1):
            if not problem.allowed[layer, problem.type_index(stage.type_name)]:
                what = f"layer {problem.layers[layer]!r} may not run on {stage.type_name}"
                yield places.at("stages", row, "type"), what


def _units_needed(plan: Plan) -> str:
    """How many units the bottleneck would need, if any number would do."""
    stage, tau = plan.stages[plan.bottleneck], 1 / plan.problem.throughput
    if stage.serial_s >= tau:
        return f"; {quantities.format_seconds(stage.serial_s)} per example stay, however many units it gets"

    def holds(units: int) -> bool:
        counts = [units if at == plan.bottleneck else one.units for at, one in enumerate(plan.stages)]
        changed = with_units(plan.problem, plan.assignment, counts).stages[plan.bottleneck]
        return changed.time_s <= tau * (1 + 1e-9)

    low, high = stage.units, 2 * stage.units
    while not holds(high):
        low, high = high, 2 * high
    while high > low + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return f"; it needs {high} units"


def _changed(plan: Plan, predicted: PredictedSpec | None) -> Iterator[str]:
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
