"""A problem and its answer as JSON: everything that a plan's cost depends on, so that others can check berth.

    {"batch": 4096, "throughput": 100000, "epochs": 1, "samples": 1e9, "fixed_usd_per_hour": 0.08,
     "types": [{"name": "cpu-core", "usd_per_hour": 0.04, "limit": 768}, ...],
     "layers": [{"name": "embedding", "kind": "embedding", "oct": [s per type], "odt": [s per type],
                 "alpha": [...], "beta": [...], "cross": s}, ...]}

A missing `cross` is 0; a missing or null `limit` means unlimited. Memory counts where it is given: `memory_bytes` of a
type, `replicated_bytes` and `sharded_bytes` of a layer. `allowed` of a layer lists the types it may run on
(default: all). Errors are reported with line and column. Problems that berth built from a model and a cluster have
`built` instead of `layers` (berth.plan.built_json), for proofs that can be checked without the model.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import AfterValidator, Field

from berth.errors import InputError, SpecError, UnknownNameError
from berth.plan.built_json import built_document, built_problem
from berth.plan.problem import LARGEST, SMALLEST, UNLIMITED, DevicePool, Problem, make_problem
from berth.spec import Spec, locate, locate_repeated_key, read_text, validate

if TYPE_CHECKING:
    from berth.plan.infeasible import Infeasible
    from berth.plan.plan import Plan, Stage
    from berth.plan.search.method import Outcome


def _in_range(value: float) -> float:
    """Refuse numbers whose products and quotients underflow or overflow."""
    if not SMALLEST <= value <= LARGEST:
        raise InputError(f"{value:g} is out of range", hint=f"berth plans with {SMALLEST:g} to {LARGEST:g}")
    return value


def _whole(value: float) -> float:
    if value != int(value):
        raise InputError(f"{value:g} is not a whole number", hint="leave it out for no limit")
    return value


Positive = Annotated[float, Field(strict=True, gt=0), AfterValidator(_in_range)]
NonNegative = Annotated[float, Field(strict=True, ge=0, le=LARGEST)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]
_COLUMNS = ("oct", "odt", "alpha", "beta")


class TypeSpec(Spec):
    """A device type: its price, how many there are, and the memory of one."""

    name: Name
    usd_per_hour: Positive
    limit: Annotated[NonNegative, AfterValidator(_whole)] | None = None
    memory_bytes: Positive | None = None

    def pool(self) -> DevicePool:
        """Return the pool of such devices."""
        limit = UNLIMITED if self.limit is None else min(int(self.limit), UNLIMITED)
        return DevicePool(self.name, self.usd_per_hour, limit, self.memory_bytes)


class LayerSpec(Spec):
    """A layer: seconds per batch and parallel fractions, one number per type in the order of `types`."""

    name: Name
    kind: str = "layer"
    oct: list[Positive]
    odt: list[NonNegative]
    alpha: list[Fraction]
    beta: list[Fraction]
    cross: NonNegative = 0.0
    replicated_bytes: NonNegative = 0.0
    sharded_bytes: NonNegative = 0.0
    allowed: list[str] | None = None


class ProblemSpec(Spec):
    """The whole file."""

    batch: Positive
    throughput: Positive
    samples: Positive
    types: Annotated[list[TypeSpec], Field(min_length=1)]
    layers: Annotated[list[LayerSpec], Field(min_length=1)]
    epochs: Positive = 1.0
    fixed_usd_per_hour: NonNegative = 0.0

    def problem(self) -> Problem:
        """Return the problem that the file states."""
        types = tuple(one.pool() for one in self.types)
        names = [one.name for one in types]
        return make_problem(
            batch=self.batch,
            throughput=self.throughput,
            samples=self.samples,
            epochs=self.epochs,
            fixed_usd_per_hour=self.fixed_usd_per_hour,
            types=types,
            layers=tuple(layer.name for layer in self.layers),
            kinds=tuple(layer.kind for layer in self.layers),
            oct_s=[layer.oct for layer in self.layers],
            odt_s=[layer.odt for layer in self.layers],
            alpha=[layer.alpha for layer in self.layers],
            beta=[layer.beta for layer in self.layers],
            cross_s=[layer.cross for layer in self.layers],
            replicated_bytes=[layer.replicated_bytes for layer in self.layers],
            sharded_bytes=[layer.sharded_bytes for layer in self.layers],
            allowed=[
                [layer.allowed is None or name in layer.allowed for name in names] for layer in self.layers
            ],
        )


def read_problem(path: str | Path) -> Problem:
    """Read a problem from a JSON file."""
    return parse_problem(read_text(path), str(path))


def parse_problem(text: str, where: str) -> Problem:
    """Read a problem from JSON text; `where` names its source in messages."""
    data = parse_json(text, where)
    if isinstance(data, dict) and "built" in data:
        return built_problem(data, where)
    text = text.replace("\t", " ")  # positions are looked up by the YAML parser, which refuses tabs
    spec = validate(data, ProblemSpec, text, where)
    _check_names("types", [one.name for one in spec.types], text, where)
    _check_names("layers", [layer.name for layer in spec.layers], text, where)
    for row, layer in enumerate(spec.layers):
        _check_layer(layer, row, spec, text, where)
    try:
        return spec.problem()
    except InputError as error:
        raise SpecError(error.what, where=where, hint=error.hint) from None


def parse_json(text: str, where: str) -> Any:
    """Parse JSON in which no object has a key twice; errors name line and column."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        position = f"{where}:{error.lineno}:{error.colno}"
        raise SpecError(
            f"is not valid JSON: {error.msg}", where=position, hint="fix the JSON there"
        ) from None
    except InputError as error:
        spot = locate_repeated_key(text.replace("\t", " "))
        position = f"{where}:{spot[0]}:{spot[1]}" if spot else where
        raise SpecError(error.what, where=position, hint=error.hint) from None
    except (RecursionError, ValueError) as error:
        what = "nested too deep" if isinstance(error, RecursionError) else str(error).split(";")[0]
        raise SpecError(f"is not JSON that berth can read: {what}", where=where) from None


def problem_document(problem: Problem) -> dict[str, Any]:
    """Return the document that reads back as the same problem."""
    document = {
        "batch": problem.batch,
        "throughput": problem.throughput,
        "epochs": problem.epochs,
        "samples": problem.samples,
        "fixed_usd_per_hour": problem.fixed_usd_per_hour,
        "types": [_type_document(one) for one in problem.types],
    }
    if problem.stated is None:
        return document | {"built": built_document(problem)}
    return document | {"layers": [_layer_document(problem, row) for row in range(len(problem.layers))]}


def answer(outcome: Outcome, infeasible: Infeasible | None = None) -> dict[str, Any]:
    """Return what a method found as JSON data; unknown figures are null, never NaN or infinite.

    Without a plan it also says why, the highest throughput that has a plan, and the limits (each alone) that would
    be enough.
    """
    plan = outcome.plan
    found: dict[str, Any] = {
        "feasible": plan is not None,
        "assignment": list(plan.types_of_layers) if plan else [],
        "stages": stage_documents(plan) if plan else [],
        "micro_batches": plan.micro if plan else None,
        "readers": plan.readers if plan else None,
        "throughput": plan.throughput if plan else None,
        "cost_usd": plan.cost_usd if plan else None,
        "lower_bound_usd": known_bound(outcome),
        "method": outcome.method,
        "evaluations": outcome.evaluations,
        "cpu_s": outcome.cpu_s,
    }
    if plan is None:
        found["reason"] = infeasible.reason if infeasible else f"{outcome.method} found no plan"
        found["nearest"] = infeasible and {
            "throughput": infeasible.throughput or None,
            "limits": infeasible.limits,
        }
    return found


def stage_documents(plan: Plan) -> list[dict[str, Any]]:
    """Return the stages of a plan; `units` is the former name of `replicas`, kept for existing readers."""
    return [_stage_document(plan, stage) for stage in plan.stages]


def _stage_document(plan: Plan, stage: Stage) -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": stage.type_name,
        "layers": list(plan.problem.layers[stage.first : stage.last + 1]),
        "replicas": stage.replicas,
        "units": stage.replicas,
    }
    if stage.tables:
        document["tables"] = stage.tables
    if stage.servers:
        document["servers"] = stage.servers
    return document


def known_bound(outcome: Outcome) -> float | None:
    """Return the lower bound on the cost, if there is one."""
    bound = outcome.lower_bound_usd
    return bound if math.isfinite(bound) and bound > 0 else None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys if len(set(keys)) < len(keys) else ():
        if keys.count(key) > 1:
            raise InputError(f"{key!r} is given twice in one object", hint="keep one")
    return dict(pairs)


def _check_names(key: str, names: list[str], text: str, where: str) -> None:
    seen: set[str] = set()
    for row, name in enumerate(names):
        if name in seen:
            position = _position(text, where, key, row, "name")
            raise SpecError(f"two {key} are called {name!r}", where=position, hint="names must differ")
        seen.add(name)


def _check_layer(layer: LayerSpec, row: int, spec: ProblemSpec, text: str, where: str) -> None:
    """Check what depends on the types of the problem."""
    for key in _COLUMNS:
        if len(getattr(layer, key)) != len(spec.types):
            raise SpecError(
                f"layers.{row}.{key}: has {len(getattr(layer, key))} numbers for {len(spec.types)} types",
                where=_position(text, where, "layers", row, key),
                hint="one number per type, in the order of `types`",
            )
    names = [one.name for one in spec.types]
    for at, name in enumerate(layer.allowed or ()):
        if name not in names:
            raise UnknownNameError(
                "type", name, names, where=_position(text, where, "layers", row, "allowed", at)
            )


def _position(text: str, where: str, *path: int | str) -> str:
    try:
        line, column = locate(text, path)
    except yaml.YAMLError:  # JSON that is not YAML
        return where
    return f"{where}:{line}:{column}"


def _type_document(one: DevicePool) -> dict[str, Any]:
    document: dict[str, Any] = {"name": one.name, "usd_per_hour": one.usd_per_hour}
    document["limit"] = one.limit if one.limit < UNLIMITED else None
    if one.memory_bytes is not None:
        document["memory_bytes"] = one.memory_bytes
    return document


def _layer_document(problem: Problem, row: int) -> dict[str, Any]:
    stated = problem.stated
    assert stated is not None
    document: dict[str, Any] = {
        "name": problem.layers[row],
        "kind": problem.kinds[row],
        "oct": stated.oct_s[row].tolist(),
        "odt": stated.odt_s[row].tolist(),
        "alpha": stated.alpha[row].tolist(),
        "beta": stated.beta[row].tolist(),
        "cross": float(stated.cross_s[row]),
    }
    for key in ("replicated_bytes", "sharded_bytes"):
        if value := float(getattr(stated, key)[row]):
            document[key] = value
    if not problem.allowed[row].all():
        allowed = zip(problem.type_names, problem.allowed[row], strict=True)
        document["allowed"] = [name for name, is_allowed in allowed if is_allowed]
    return document
