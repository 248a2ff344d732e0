"""A bare problem and its answer as JSON: everything a plan's cost depends on, so that others can check berth.

    {"batch": 4096, "throughput": 100000, "epochs": 1, "samples": 1e9, "fixed_usd_per_hour": 0.08,
     "types": [{"name": "cpu-core", "usd_per_hour": 0.04, "limit": 768}, ...],
     "layers": [{"name": "embedding", "kind": "embedding", "oct": [s per type], "odt": [s per type],
                 "alpha": [...], "beta": [...], "cross": s}, ...]}

`cross` absent is 0, `limit` absent or null is unlimited. Memory counts where it is given: `memory_bytes` of a
type, `replicated_bytes` and `sharded_bytes` of a layer. A mistake is reported at its line and column; the
positions are looked up only then, so that a large problem is read at the speed of JSON. `allowed` of a layer
lists the types it may run on (absent: all).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from berth.errors import InputError, SpecError, nearest
from berth.plan.problem import LARGEST, SMALLEST, UNLIMITED, Problem, UnitType, make_problem
from berth.spec import locate, read_text

if TYPE_CHECKING:
    from berth.plan.infeasible import Infeasible
    from berth.plan.plan import Plan
    from berth.plan.search.method import Outcome

Steps = tuple[int | str, ...]

_NEEDED = ("batch", "throughput", "samples", "types", "layers")
_KEYS = (*_NEEDED, "epochs", "fixed_usd_per_hour")
_TYPE_NEEDED = ("name", "usd_per_hour")
_TYPE_KEYS = (*_TYPE_NEEDED, "limit", "memory_bytes")
_COLUMNS = ("oct", "odt", "alpha", "beta")
_LAYER_NEEDED = ("name", *_COLUMNS)
_LAYER_NUMBERS = ("cross", "replicated_bytes", "sharded_bytes")
_LAYER_KEYS = (*_LAYER_NEEDED, "kind", *_LAYER_NUMBERS, "allowed")


class _Mistake(Exception):  # noqa: N818 (never leaves this module)
    """What is wrong, and at which step of the document."""

    def __init__(self, path: Steps, what: str, hint: str | None = None, *, at_key: bool = False) -> None:
        super().__init__(what)
        self.path, self.what, self.hint, self.at_key = path, what, hint, at_key


def read_problem(path: str | Path) -> Problem:
    """A problem from a JSON file."""
    return parse_problem(read_text(path), str(path))


def parse_problem(text: str, where: str) -> Problem:
    """A problem from JSON text; `where` names its source in messages."""
    document = parse_json(text, where)
    try:
        return _problem(document)
    except _Mistake as mistake:
        raise SpecError(mistake.what, where=_spot(text, where, mistake), hint=mistake.hint) from None
    except InputError as error:
        raise SpecError(error.what, where=where, hint=error.hint) from None


def problem_document(problem: Problem) -> dict[str, Any]:
    """The document that reads back as the same problem."""
    return {
        "batch": problem.batch,
        "throughput": problem.throughput,
        "epochs": problem.epochs,
        "samples": problem.samples,
        "fixed_usd_per_hour": problem.fixed_usd_per_hour,
        "types": [_type_document(one) for one in problem.types],
        "layers": [_layer_document(problem, row) for row in range(len(problem.layers))],
    }


def answer(outcome: Outcome, infeasible: Infeasible | None = None) -> dict[str, Any]:
    """What a method found, as JSON: what is not known is null, never NaN or infinite.

    Without a plan the document also says why, the highest throughput that can be held, and the limits (each
    alone) that would be enough.
    """
    plan = outcome.plan
    found: dict[str, Any] = {
        "feasible": plan is not None,
        "assignment": list(plan.types_of_layers) if plan else [],
        "stages": stage_documents(plan) if plan else [],
        "throughput": plan.throughput if plan else None,
        "cost_usd": plan.cost_usd if plan else None,
        "lower_bound_usd": known_bound(outcome),
        "method": outcome.method,
        "evaluations": outcome.evaluations,
        "cpu_s": outcome.cpu_s,
    }
    if plan is None:
        found["reason"] = infeasible.reason if infeasible else f"{outcome.method} found no plan"
        found["nearest"] = _nearest(infeasible)
    return found


def _nearest(infeasible: Infeasible | None) -> dict[str, Any] | None:
    if infeasible is None:
        return None
    return {"throughput": infeasible.throughput or None, "limits": infeasible.limits}


def stage_documents(plan: Plan) -> list[dict[str, Any]]:
    """The stages of a plan: type, names of layers, units."""
    return [
        {
            "type": stage.type_name,
            "layers": list(plan.problem.layers[stage.first : stage.last + 1]),
            "units": stage.units,
        }
        for stage in plan.stages
    ]


def known_bound(outcome: Outcome) -> float | None:
    """The lower bound on the cost, if there is one."""
    bound = outcome.lower_bound_usd
    return bound if math.isfinite(bound) and bound > 0 else None


def parse_json(text: str, where: str) -> Any:
    """JSON in which no key stands twice; a mistake is told with its line and column."""
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except json.JSONDecodeError as error:
        spot = f"{where}:{error.lineno}:{error.colno}"
        raise SpecError(f"is not JSON: {error.msg}", where=spot, hint="mend the JSON there") from None
    except _Mistake as mistake:
        raise SpecError(mistake.what, where=where, hint=mistake.hint) from None
    except (RecursionError, ValueError) as error:
        what = "nested too deep" if isinstance(error, RecursionError) else str(error).split(";")[0]
        raise SpecError(f"is not JSON that berth can read: {what}", where=where) from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise _Mistake((), f"{double!r} is given twice in one object", "keep one")
    return made


def _spot(text: str, where: str, mistake: _Mistake) -> str:
    try:
        line, column = locate(text, mistake.path, at_key=mistake.at_key)
    except yaml.YAMLError:  # JSON that is not YAML, indented by tabs for example
        return where
    return f"{where}:{line}:{column}"


def _problem(document: Any) -> Problem:
    _check_object((), document, _KEYS, _NEEDED, "the problem")
    numbers = {key: _number((key,), document[key], above=0.0) for key in ("batch", "throughput", "samples")}
    epochs = _number(("epochs",), document.get("epochs", 1), above=0.0)
    fixed = _number(("fixed_usd_per_hour",), document.get("fixed_usd_per_hour", 0), least=0.0)
    types = _types(_list(document, "types", "device type"))
    layers = _list(document, "layers", "layer")
    for row, layer in enumerate(layers):
        _check_layer(("layers", row), layer, len(types))
    names = _names("layers", layers)
    return make_problem(
        **numbers,
        epochs=epochs,
        fixed_usd_per_hour=fixed,
        types=types,
        layers=names,
        kinds=tuple(str(layer.get("kind", "layer")) for layer in layers),
        oct_s=[layer["oct"] for layer in layers],
        odt_s=[layer["odt"] for layer in layers],
        alpha=[layer["alpha"] for layer in layers],
        beta=[layer["beta"] for layer in layers],
        cross_s=[layer.get("cross", 0) for layer in layers],
        replicated_bytes=[layer.get("replicated_bytes", 0) for layer in layers],
        sharded_bytes=[layer.get("sharded_bytes", 0) for layer in layers],
        allowed=[_allowed(("layers", row, "allowed"), layer, types) for row, layer in enumerate(layers)],
    )


def _allowed(path: Steps, layer: dict[str, Any], types: tuple[UnitType, ...]) -> list[bool]:
    names = [one.name for one in types]
    given = layer.get("allowed")
    if given is None:
        return [True] * len(types)
    if not isinstance(given, list):
        raise _Mistake(path, f"allowed is {_shown(given)}, not a list", "list names of types")
    for at, name in enumerate(given):
        if name not in names:
            near = nearest(str(name), names)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
            raise _Mistake((*path, at), f"no type is called {_shown(name)}", hint)
    return [name in given for name in names]


def _list(document: dict[str, Any], key: str, what: str) -> list[Any]:
    found = document[key]
    if not isinstance(found, list):
        raise _Mistake((key,), f"{key} is {_shown(found)}, not a list", f"write one object per {what}")
    if not found:
        raise _Mistake((key,), f"{key} is empty", f"a plan needs at least one {what}")
    return found


def _types(rows: list[Any]) -> tuple[UnitType, ...]:
    types = []
    for row, one in enumerate(rows):
        path: Steps = ("types", row)
        _check_object(path, one, _TYPE_KEYS, _TYPE_NEEDED, f"type {row + 1}")
        price = _number((*path, "usd_per_hour"), one["usd_per_hour"], above=0.0)
        memory = one.get("memory_bytes")
        if memory is not None:
            memory = _number((*path, "memory_bytes"), memory, above=0.0)
        types.append(UnitType(str(one["name"]), price, _limit((*path, "limit"), one.get("limit")), memory))
    _names("types", rows)
    return tuple(types)


def _limit(path: Steps, given: Any) -> int:
    if given is None:
        return UNLIMITED
    limit = _number(path, given, least=0.0)
    if limit != int(limit):
        raise _Mistake(path, f"limit is {given}, not whole", "units are whole; leave it out for no limit")
    return min(int(limit), UNLIMITED)


def _check_layer(path: Steps, layer: Any, types: int) -> None:
    _check_object(path, layer, _LAYER_KEYS, _LAYER_NEEDED, f"layer {int(path[-1]) + 1}")
    for key in _COLUMNS:
        _check_column((*path, key), layer[key], types)
    for key in _LAYER_NUMBERS:
        if key in layer:
            _number((*path, key), layer[key], least=0.0)
    if not isinstance(layer.get("kind", ""), str):
        raise _Mistake((*path, "kind"), f"kind is {_shown(layer['kind'])}, not text")


def _check_column(path: Steps, values: Any, types: int) -> None:
    key = str(path[-1])
    if not isinstance(values, list):
        raise _Mistake(path, f"{key} is {_shown(values)}, not a list", f"one number per type: {types}")
    if len(values) != types:
        what = f"{key} has {len(values)} numbers for {types} types"
        raise _Mistake(path, what, "one number per type, in the order of `types`")
    for column, value in enumerate(values):
        step = (*path, column)
        if key in ("alpha", "beta"):
            _number(step, value, least=0.0, most=1.0)
        elif key == "oct":
            _number(step, value, above=0.0)
        else:
            _number(step, value, least=0.0)


def _check_object(path: Steps, given: Any, keys: Sequence[str], needed: Sequence[str], what: str) -> None:
    if not isinstance(given, dict):
        raise _Mistake(path, f"{what} is {_shown(given)}, not an object", f"it needs: {', '.join(needed)}")
    for key in given:
        if key not in keys:
            near = nearest(key, keys)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(keys)}"
            raise _Mistake((*path, key), f"{what}: unknown key {key!r}", hint, at_key=True)
    for key in needed:
        if key not in given:
            raise _Mistake(path, f"{what}: {key!r} is missing", f"it needs: {', '.join(needed)}")


def _names(key: str, rows: list[Any]) -> tuple[str, ...]:
    seen: set[str] = set()
    for row, one in enumerate(rows):
        name = one["name"]
        if not isinstance(name, str) or not name.strip():
            raise _Mistake((key, row, "name"), f"name is {_shown(name)}, not text")
        if name in seen:
            raise _Mistake((key, row, "name"), f"two {key} are called {name!r}", "names must differ")
        seen.add(name)
    return tuple(one["name"] for one in rows)


def _number(
    path: Steps,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> float:
    """The value as a number within its bounds."""
    wanted = "a number above 0" if above is not None else "a number not below 0"
    if most is not None:
        wanted = "a number from 0 to 1"
    fits = type(value) in (int, float) and (type(value) is int or math.isfinite(value))
    fits = fits and (above is None or value > above) and (least is None or value >= least)
    if not fits or (most is not None and value > most):
        raise _Mistake(path, f"{_dotted(path)} is {_shown(value)}", f"{wanted} is expected")
    if value > LARGEST or (above is not None and value < SMALLEST):
        hint = f"berth plans with {SMALLEST:g} to {LARGEST:g}"
        raise _Mistake(path, f"{_dotted(path)} is {_shown(value)}", hint)
    return float(value)


def _dotted(path: Steps) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _shown(value: Any) -> str:
    """The value as JSON, cut short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def _type_document(one: UnitType) -> dict[str, Any]:
    document: dict[str, Any] = {"name": one.name, "usd_per_hour": one.usd_per_hour}
    document["limit"] = one.limit if one.limit < UNLIMITED else None
    if one.memory_bytes is not None:
        document["memory_bytes"] = one.memory_bytes
    return document


def _layer_document(problem: Problem, row: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": problem.layers[row],
        "kind": problem.kinds[row],
        "oct": problem.oct_s[row].tolist(),
        "odt": problem.odt_s[row].tolist(),
        "alpha": problem.alpha[row].tolist(),
        "beta": problem.beta[row].tolist(),
        "cross": float(problem.cross_s[row]),
    }
    for key, values in (
        ("replicated_bytes", problem.replicated_bytes),
        ("sharded_bytes", problem.sharded_bytes),
    ):
        if values[row]:
            document[key] = float(values[row])
    if not problem.allowed[row].all():
        names = zip(problem.type_names, problem.allowed[row], strict=True)
        document["allowed"] = [name for name, allowed in names if allowed]
    return document
