"""How a policy's functions become code that the pass calls: compiled if they can be, else interpreted.

Either way a function ends up as an address behind a fixed signature, so the engine is compiled once for all
policies. Helpers (plain functions of the policy's own module) are compiled with it. Around the function is
what guards the run: records are sealed (sealed.py), a call has limits (limits.py), answers are checked, and
what fails is left for failures.py to report. What was compiled is kept on disk under a name made of its byte
code and of everything it refers to.
"""

from __future__ import annotations

import hashlib
import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit, types

from berth.errors import InputError
from berth.native import functions
from berth.native.functions import fingerprint_of, load_or_compile
from berth.native.kernels import COMPILER_LOCK, FunctionPointer
from berth.schedule import copies, elements, failures, limits, sealed, source
from berth.schedule import policy as policy_api
from berth.schedule.checks import check_policy
from berth.schedule.failures import HOOK_BITS, HOOKS, IDLE, function_of, interpreted, record_slots
from berth.schedule.policy import SIGNATURES, WITH_CLUSTER, Hooks, Names, Policy, names_of, takes_cluster
from berth.schedule.records import MAX_TIERS, STATE_SLOTS
from berth.schedule.rules import PreemptByGain

_njit: Any = njit  # numba is untyped
_types: Any = types

_ready: dict[tuple[type, str], FunctionPointer] = {}
_notes: dict[tuple[type, str], str] = {}


def hooks(policy: Policy) -> Hooks:
    """The policy's functions, ready to be called by compiled code; those its rules never ask are left out."""
    check_policy(policy)
    rules = policy.rules()
    idle = {
        "observe": not rules.learn_timers,
        "cost": not isinstance(rules.preempt, PreemptByGain),
        "spread": not (rules.relax_locality or rules.defragment),
    }
    return Hooks(**{name: _hook(Policy if idle.get(name) else type(policy), name) for name in SIGNATURES})


def compiled_notes(policy: Policy) -> list[str]:
    """Which functions of a policy are interpreted, and why; empty if all are compiled."""
    hooks(policy)
    return [note for (kind, _), note in list(_notes.items()) if kind is type(policy)]


def _hook(kind: type[Policy], name: str) -> FunctionPointer:
    function = function_of(kind, name)
    if function is function_of(Policy, name):
        kind = Policy  # shared by all that do not override it
    with COMPILER_LOCK:
        if (kind, name) not in _ready:
            _ready[kind, name] = _compiled_or_interpreted(kind, name, function)
        return _ready[kind, name]


def _compiled_or_interpreted(kind: type[Policy], name: str, function: Callable[..., Any]) -> FunctionPointer:
    names = names_of(kind)
    try:
        return _compiled(function, names, name)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - numba raises many kinds of exceptions
        why = _reason(error)
        _notes[kind, name] = f"{kind.__name__}.{name} can't be compiled and is interpreted, slowly: {why}"
        return interpreted(function, names, name)


def _reason(error: Exception) -> str:
    """The line of numba's long messages that says what it could not do."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    known = [
        line for line in lines if not line.startswith(("Failed in", "During", "File", "def ", "<source"))
    ]
    return (known or lines or [type(error).__name__])[0][:160]


def _compiled(function: Callable[..., Any], names: Names, hook: str) -> FunctionPointer:
    """`function(..., params)` behind a fixed signature whose last argument is the record of constants."""
    key = _fingerprint(function, names, hook)
    return load_or_compile(key, SIGNATURES[hook], lambda: _compile(function, names, hook))


# numba checks for an exception after every operation inside `try`, so there is only the call
_TRUSTED = """
def hook({arguments}, c):
    {given}
    {call}
    return answer
"""
_GUARDED = """
def hook({arguments}, c):
    if c.failed != 0:
        return idle
    {before}
    {begin}
    {given}
    try:
        {call}
    except Exception:
        {again}
        wrong = True
    else:
        wrong = {wrong}
    if wrong:
        {kept}
        c.failed = {number} + {stopped}
        return idle
    return answer
"""
_WRONG = {  # about an answer, where any number does not do
    "update": "False",
    **dict.fromkeys(("order", "tie_break"), "not answer - answer == 0.0"),
    **dict.fromkeys(("wake", "gain", "cost"), "answer != answer"),
    "observe": "not answer >= 0.0",
    "spread": "answer != 0 and answer != 1",
    "allowed_tier": f"not 0 <= answer < {MAX_TIERS}",
}


def _compile(function: Callable[..., Any], names: Names, hook: str) -> Any:
    signature = SIGNATURES[hook]
    constants = namedtuple("My", [name for name, _ in names.params] or ["nothing"])  # type: ignore[misc]
    own = source.is_own(function)
    options = {"boundscheck": own, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    tick = limits.tick if own else None
    inner = copies.copied(function, lambda copy: _njit(copy, **options), limits.bounded_range, tick)
    scope: dict[str, Any] = {
        "__name__": __name__,
        "f": inner,
        "My": constants,
        "idle": IDLE[signature.return_type],
        "seal": sealed.sealing(names.state, hook == "update", own),
        "seal_array": sealed.array_sealing(own),
        "keep": sealed.keep,
        "begin_call": limits.begin_call,
        "stopped": limits.stopped,
    }
    text = _TRUSTED if function is function_of(Policy, hook) else _GUARDED
    exec(text.format_map(_parts(names, hook, own, takes_cluster(function))), scope)
    try:
        return _njit(signature, no_cpython_wrapper=True)(scope["hook"]).overloads[signature.args]
    finally:
        for compiled in inner.overloads.values():
            _check_return(function, hook, compiled.signature.return_type)


def _parts(names: Names, hook: str, own: bool, cluster: bool) -> dict[str, Any]:
    """What a guard around a hook consists of."""
    signature = SIGNATURES[hook]
    arguments = [f"a{i}" for i in range(len(signature.args) - 1)]
    records = [isinstance(kind, _types.Record) for kind in signature.args[:-1]]
    slots = iter(record_slots(hook))
    kept, number = [], 0
    for argument, record in zip(arguments, records, strict=True):
        if record:
            kept.append(f"keep(c.{next(slots)}, {argument})")
        else:
            kept.append(f"c.failed_with[{number}] = {argument}")
            number += 1
    values = [_value(kind, f"c.value[{i}]") for i, (_, kind) in enumerate(names.params)]
    state = [f"a0.policy_state[{i}]" for i in range(STATE_SLOTS)] if hook == "update" else []
    old = [f"s{i}" for i in range(len(state))]
    given = [f"r{i}" if record else f"a{i}" for i, record in enumerate(records)]
    totals = [given.pop()] if hook in WITH_CLUSTER else []
    passed = [*given, "params", *(totals if cluster else [])]
    made = [f"r{i} = seal(a{i})" for i, record in enumerate(records) if record and f"r{i}" in passed]
    call = f"f({', '.join(passed)})"
    return {
        "arguments": ", ".join(arguments),
        "given": "; ".join([*made, f"params = My({', '.join(values) or '0.0'})"]),
        "call": f"{call}; answer = 0.0" if hook == "update" else f"answer = {call}",
        "before": f"{', '.join(old)} = {', '.join(state)}" if state else "pass",
        "again": f"{', '.join(state)} = {', '.join(old)}" if state else "pass",
        "wrong": _WRONG[hook],
        "kept": "\n        ".join(kept),
        "number": 1 + HOOKS.index(hook),
        "begin": "begin_call()" if own else "pass",
        "stopped": f"(stopped() << {HOOK_BITS})" if own else "0",
    }


def _value(kind: type, stored: str) -> str:
    """How a constant is read from the record, which holds numbers and one array."""
    if kind is Sequence:
        return "seal_array(c.table)"
    return f"{stored} != 0.0" if kind is bool else stored if kind is float else f"int({stored})"


def _check_return(function: Callable[..., Any], hook: str, kind: Any) -> None:
    """Refuses a function that compiled code would have to convert in silence, or could not use at all."""
    kind = _types.unliteral(kind)
    if hook == "update" and not isinstance(kind, _types.NoneType):
        raise InputError(f"{function.__qualname__} must not return a value", where=source.place_of(function))
    whole = SIGNATURES[hook].return_type == types.int64
    number = _types.Integer | _types.Boolean if whole else _types.Integer | _types.Boolean | _types.Float
    if isinstance(kind, number | _types.NoneType):
        return  # where no path returns a value, calling it shows why: it raises, loops, or forgets to
    if isinstance(kind, _types.Optional) and not source.may_return_none(function):
        return  # such as `{...}.get(key, 1.0)`: numba can't exclude None, and gives up
    what = f"{function.__qualname__} {_KINDS.get(type(kind).__name__, f'returns {kind}')}"
    wanted = "a whole number" if whole else "a number"
    raise InputError(f"{what}: it must return {wanted}", where=source.place_of(function))


_KINDS = {
    "Float": "returns a fraction",
    "Optional": "returns nothing on some paths",
    "UnicodeType": "returns text",
    "Tuple": "returns a tuple",
    "UniTuple": "returns a tuple",
}


def _fingerprint(function: Callable[..., Any], names: Names, hook: str) -> str:
    return fingerprint_of(function, names, hook, takes_cluster(function), SIGNATURES[hook], _guards())


_GUARDING = (copies, elements, failures, functions, limits, policy_api, sealed, source)


@cache
def _guards() -> str:
    """A digest of the sources that are compiled around every function."""
    files = [Path(str(module.__file__)) for module in _GUARDING]
    return hashlib.sha256(b"".join(file.read_bytes() for file in [Path(__file__), *files])).hexdigest()
