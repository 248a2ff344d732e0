"""A plan as a YAML file that people edit: which layers run where, how many replicas, and the predicted figures.

    model: ctrdnn
    cluster: cloud-mix            # or what it consists of, as in a cluster's file
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
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field

from berth import units as quantities
from berth.cluster.describe import described
from berth.errors import InputError
from berth.plan.explain import provenance, round_down
from berth.plan.objective.protocol import Evaluation
from berth.plan.plan import Plan
from berth.plan.problem_json import known_bound
from berth.plan.request import PlanRequest, relative_to
from berth.plan.search.method import Outcome
from berth.plan.stage_reasons import layer_range
from berth.plan.world import MODES, TABLES, WorldOptions
from berth.plan.yaml_text import yaml_number, yaml_word
from berth.spec import Bandwidth, Spec, UsdPerHour, write_text

Rate = Annotated[float, BeforeValidator(quantities.per_second), Field(gt=0)]
Amount = Annotated[float, BeforeValidator(quantities.amount), Field(gt=0)]
NAMES = ("model", "cluster", "devices", "problem", "pins", "forbid")
FILES = ("cluster", "model", "problem")  # keys that may name a file
REPLICAS = ("replicas", "units")  # `locate` skips the key that the file does not have


class StageSpec(Spec):
    """One stage: a run of layers (`a`, or `a .. b`) on replicas of one device type."""

    layers: str
    type: str
    replicas: Annotated[int, Field(gt=0, strict=True, validation_alias=AliasChoices(*REPLICAS))]
    tables: str = ""
    servers: Annotated[int, Field(ge=0, strict=True)] | None = None


class PredictedSpec(Spec):
    """The figures of the plan when it was made."""

    throughput: Rate
    usd_per_hour: Annotated[float, Field(ge=0)]
    cost_usd: Annotated[float, Field(ge=0)]
    lower_bound_usd: Annotated[float, Field(ge=0)] | None = None
    method: str = ""


def _checked(cluster: dict[str, Any]) -> dict[str, Any]:
    """A cluster that is written in the plan itself, checked and unchanged."""
    described(cluster)
    return cluster


class PlanSpec(Spec):
    """The whole file."""

    model: str | None = None
    cluster: str | Annotated[dict[str, Any], AfterValidator(_checked)] | None = None
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


def write_plan(
    path: str | Path, request: PlanRequest, outcome: Outcome, evaluation: Evaluation | None = None
) -> None:
    """Write the plan of an outcome as YAML, with what another objective found of it.

    Files that the request names by a relative path are named as seen from the plan, so that it is read from any folder.
    """
    request = relative_to(Path(path).parent, request)
    write_text(path, plan_yaml(request, outcome, evaluation))


def plan_yaml(request: PlanRequest, outcome: Outcome, evaluation: Evaluation | None = None) -> str:
    """Return the text of the file."""
    plan = outcome.plan
    if plan is None:
        raise InputError("there is no plan to write", hint=outcome.note or None)
    out = io.StringIO()
    out.write("# A plan made by berth. After an edit: berth plan check FILE\n")
    for key in NAMES:
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
