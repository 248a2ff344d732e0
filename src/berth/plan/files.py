"""A plan as a YAML file that people edit: which layers run where, how many replicas, and the predicted figures.

    model: ctrdnn
    cluster: cloud-mix
    throughput: 100k/s
    mode: sync
    batch: 65536
    stages:
      - {layers: embedding .. pooling, type: cpu-core, replicas: 12, tables: servers, servers: 4}
      - {layers: concat .. loss, type: T4, replicas: 2}
    micro_batches: 8
    readers: 2
    predicted: {throughput: 102431.7, usd_per_hour: 1.612, cost_usd: 4.37, ...}

A check computes the predictions again; the file's own are only compared. `units` is the former name of `replicas`.
Left out, `servers` and `readers` are what the stages need, and `micro_batches` is the number that is fastest.
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
from berth.plan.explain import layer_range, provenance, replica_cap, round_down
from berth.plan.objective.protocol import Evaluation
from berth.plan.pins import match_layers, match_type
from berth.plan.plan import Cut, Plan, schedule_for, with_counts
from berth.plan.problem import Problem, Schedule
from berth.plan.problem_json import known_bound
from berth.plan.rental import server_needs
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.method import Outcome
from berth.plan.world import MODES, SYNC, TABLES, WorldOptions
from berth.plan.yaml_text import yaml_number, yaml_word
from berth.spec import Bandwidth, Spec, UsdPerHour, locate, parse, read_text

Rate = Annotated[float, BeforeValidator(quantities.per_second), Field(gt=0)]
Amount = Annotated[float, BeforeValidator(quantities.amount), Field(gt=0)]
_CLOSE = 1e-6  # relative difference up to which a stored figure counts as unchanged
_NAMES = ("model", "cluster", "devices", "problem", "pins", "forbid")
_REQUEST = (*_NAMES, "throughput", "samples", "epochs", "fixed")
_WORLD = ("mode", "batch", "batch_per_replica", "staleness", "rows", "whole_machines")
_FORMER_TABLES = {"units": "replicas"}
_REPLICAS = ("replicas", "units")  # `locate` skips the key that the file does not have


class StageSpec(Spec):
    """One stage: a run of layers (`a`, or `a .. b`) on replicas of one device type."""

    layers: str
    type: str
    replicas: Annotated[int, Field(gt=0, strict=True, validation_alias=AliasChoices(*_REPLICAS))]
    tables: str = ""
    servers: Annotated[int, Field(ge=0, strict=True)] | None = None


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
    mode: str = MODES[0]
    batch: Annotated[int, Field(gt=0, strict=True)] | None = None
    batch_per_replica: Annotated[int, Field(gt=0, strict=True)] | None = None
    staleness: Annotated[int, Field(ge=0, strict=True)] | None = None
    rows: Amount | None = None
    tables: str | list[str] | None = None
    whole_machines: bool = False
    micro: list[Annotated[int, Field(gt=0, strict=True)]] | None = None
    link: Bandwidth | None = None  # of each device, instead of its share of its machine's NIC
    micro_batches: Annotated[int, Field(gt=0, strict=True)] | None = None
    readers: Annotated[int, Field(ge=0, strict=True)] | None = None
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
        if value:
            out.write(f"{key}: {yaml_word(value) if isinstance(value, str) else json.dumps(value)}\n")
    rate = request.throughput if request.max_usd is None else round_down(plan.throughput)
    out.write(f"throughput: {_number(rate)}  # examples per second, at least\n")
    out.write(f"samples: {_number(request.samples)}\nepochs: {_number(request.epochs)}\n")
    if request.fixed is not None:
        out.write(f"fixed: ${_number(request.fixed)}/h\n")
    if plan.problem.source is not None:
        _write_world(out, request.world, plan)
    out.write("stages:\n")
    for stage in plan.stages:
        layers = yaml_word(layer_range(plan.problem, stage.first, stage.last))
        more = f", tables: {stage.tables}" if stage.tables else ""
        more += f", servers: {stage.servers}" if stage.servers else ""
        out.write(
            f"  - {{layers: {layers}, type: {yaml_word(stage.type_name)}, replicas: {stage.replicas}{more}}}\n"
        )
    if plan.problem.micro:
        out.write(f"micro_batches: {plan.micro}\n")
    if plan.readers:
        out.write(f"readers: {plan.readers}  # cores\n")
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


def _write_world(out: io.StringIO, world: WorldOptions, plan: Plan) -> None:
    """Write how the model is trained; the batch and the rows always, as they are what the plan depends on most."""
    source = plan.problem.source
    assert source is not None
    out.write(f"mode: {world.mode}\n")
    out.write(f"{'batch' if plan.problem.micro else 'batch_per_replica'}: {_number(plan.problem.batch)}\n")
    if world.staleness is not None:
        out.write(f"staleness: {world.staleness}\n")
    if source.rows:
        out.write(f"rows: {_number(source.rows)}\n")
    if set(world.tables) != set(TABLES):
        out.write(f"tables: [{', '.join(world.tables)}]\n")
    if world.whole_machines:
        out.write("whole_machines: true\n")
    if world.micro != WorldOptions().micro:
        out.write(f"micro: [{', '.join(map(str, world.micro))}]\n")
    if world.nic_share is not None:
        out.write(f"link: {_number(world.nic_share)}B/s\n")


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
    positions = _Positions(text, where)
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
        if error.where is None:
            error.where = _position_of_name(error.what, request, positions)
        raise
    cuts = _cuts(problem, written.stages, positions)
    plan = _plan(problem, cuts, written, positions)
    violations = tuple(_violations(plan, positions))
    notes = (*_changes(plan, written.predicted), *(() if violations else _simulated(plan)))
    return CheckedPlan(request, plan, violations, notes)


def _simulated(plan: Plan) -> Iterator[str]:
    """Say so if the plan holds its throughput by the formula only."""
    from berth.plan.objective.simulate import holds, simulated_throughput

    reached = simulated_throughput(plan)
    if not holds(plan.problem, reached):
        yield (
            f"its event simulation reaches {quantities.format_rate(reached)}, below the "
            f"{quantities.format_rate(plan.problem.throughput)} wanted"
        )


def _plan(problem: Problem, cuts: list[Cut], written: PlanSpec, positions: _Positions) -> Plan:
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


def _check_keys(written: PlanSpec, positions: _Positions) -> None:
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


def _cuts(problem: Problem, stages: list[StageSpec], positions: _Positions) -> list[Cut]:
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


def _violations(plan: Plan, positions: _Positions) -> Iterator[tuple[str, str]]:
    problem = plan.problem
    if plan.is_too_slow:
        yield _too_slow(plan, positions)
    if problem.host.readers_s > 0 and not plan.readers:
        least = math.ceil(problem.host.readers_s / _step_s(plan) * (1 - _CLOSE))
        yield positions.at("readers"), f"the plan has no readers; it takes {least}"
    for one in plan.over_limit:
        users = [row for row, stage in enumerate(plan.stages) if stage.type_name == one.name]
        what = f"{plan.device_counts[one.name]} {one.name} are used, the limit is {one.limit}"
        yield positions.at("stages", users[-1], *_REPLICAS) if users else positions.at("stages"), what
    for row, stage in enumerate(plan.stages):
        yield from ((positions.at("stages", row, *keys), what) for keys, what in _of_stage(plan, row))
        for layer in range(stage.first, stage.last + 1):
            if not problem.allowed[layer, plan.assignment[layer]]:
                what = f"layer {problem.layers[layer]!r} may not run on {stage.type_name}"
                yield positions.at("stages", row, "type"), what


def _of_stage(plan: Plan, row: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what the counts of a stage violate, with the key that is wrong."""
    stage, problem = plan.stages[row], plan.problem
    cap = replica_cap(problem, stage)
    if stage.replicas < stage.min_replicas:
        least = f"{stage.min_replicas} replicas" if stage.min_replicas < 10**9 else "another type"
        yield _REPLICAS, f"stage {row + 1} needs {least} for its memory"
    if stage.replicas > cap:
        why = (
            "the staleness allows no more"
            if cap == problem.max_replicas
            else "one machine has no more devices"
        )
        yield _REPLICAS, f"stage {row + 1} may have {cap} replicas at most: {why}"
    held = server_needs(plan, stage)
    least_cores = math.ceil(held.memory * (1 - _CLOSE))
    if stage.servers < least_cores:
        yield (
            ("servers",),
            f"stage {row + 1} needs {quantities.format_count(least_cores, 'server core')} for the memory of its tables",
        )
    if stage.servers and not held.bytes:
        yield ("servers",), f"stage {row + 1} has nothing on servers"


def _too_slow(plan: Plan, positions: _Positions) -> tuple[str, str]:
    """Return what is slowest, its position, and how many would be enough."""
    wanted = f"below the {quantities.format_rate(plan.problem.throughput)} wanted"
    fast = quantities.format_rate(plan.throughput)
    if plan.reader_s >= plan.stage_s:
        needed = math.ceil(plan.problem.host.readers_s / _step_s(plan) * (1 - _CLOSE))
        what = (
            f"{quantities.format_count(plan.readers, 'reader core')} hold {fast}, {wanted}; it takes {needed}"
        )
        return positions.at("readers"), what
    row = plan.bottleneck
    stage = plan.stages[row]
    what = f"stage {row + 1} holds {fast}, {wanted}"
    if stage.server_s >= stage.time_s:
        if stage.servers:
            enough = math.ceil(stage.server_s * stage.servers * plan.problem.throughput * (1 - _CLOSE))
            what += f"; it needs {enough} server cores, not {stage.servers}"
        else:
            what += "; it has no servers"
        return positions.at("stages", row, "servers"), what
    return positions.at("stages", row, *_REPLICAS), what + _replicas_needed(plan)


def _step_s(plan: Plan) -> float:
    return plan.problem.batch / plan.problem.throughput


def _replicas_needed(plan: Plan) -> str:
    """Return how many replicas the bottleneck needs, if a thousand times as many are enough."""
    row = plan.bottleneck
    stage, tau = plan.stages[row], 1 / plan.problem.throughput

    def holds(replicas: int) -> bool:
        counts = [replicas if at == row else one.replicas for at, one in enumerate(plan.stages)]
        changed = with_counts(plan.problem, plan.schedule, plan.cuts, counts).stages[row]
        return changed.time_s <= tau * (1 + 1e-9)

    low, high = stage.replicas, 2 * stage.replicas
    while not holds(high):
        if high > 1000 * stage.replicas:
            return "; no number of replicas is enough"
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
