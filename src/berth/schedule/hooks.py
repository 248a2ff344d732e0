"""How a policy's functions become code that the pass calls: compiled if they can be, else interpreted.

Either way a function ends up as an address behind a fixed signature, so the engine is compiled once for all
policies. Helpers (plain functions of the policy's own module) are compiled with it. What was compiled
is kept on disk under a name made of its byte code and of everything it refers to.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import re
import types as python
from collections import namedtuple
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit, types
from numba.core import serialize
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target

from berth.compile import Address, cache_folder
from berth.schedule.policy import SIGNATURES, Hooks, Policy, Preempt, constant_fields

_result: Any = CompileResult  # numba's own way to keep compiled code between runs, untyped
_dumps: Any = serialize.dumps


_KEPT = 1000  # compiled functions on disk, some 20 kB each
_ready: dict[tuple[type, str], Address] = {}
_notes: dict[tuple[type, str], str] = {}
_raised: list[BaseException] = []


def hooks(policy: Policy) -> Hooks:
    """The policy's functions, ready to be called by compiled code; those its rules never ask are left out."""
    rules = policy.rules()
    idle = {
        "observe": not rules.learns,
        "cost": rules.preempt != Preempt.BY_GAIN,
        "spread": not (rules.look_ahead or rules.defragment),
    }
    return Hooks(**{name: _hook(Policy if idle.get(name) else type(policy), name) for name in SIGNATURES})


def compiled_notes(policy: Policy) -> list[str]:
    """Which functions of a policy are interpreted, and why; empty if all are compiled."""
    hooks(policy)
    return [note for (kind, _), note in _notes.items() if kind is type(policy)]


def raise_pending() -> None:
    """Raises what an interpreted function raised while compiled code called it."""
    if _raised:
        error = _raised[0]
        _raised.clear()
        raise error


def _hook(kind: type[Policy], name: str) -> Address:
    owner = next(base for base in kind.__mro__ if name in vars(base))
    if owner is Policy:
        kind = Policy  # shared by all who do not override it
    if (kind, name) not in _ready:
        function = vars(owner)[name].__func__
        names = [field.name for field in constant_fields(kind)]
        if kind.table is not Policy.table:
            names.append("table")
        try:
            _ready[kind, name] = _compiled(function, names, SIGNATURES[name])
        except Exception as error:  # noqa: BLE001 - numba gives up in many ways
            why = _reason(error)
            _notes[kind, name] = f"{kind.__name__}.{name} can't be compiled and is interpreted, slowly: {why}"
            _ready[kind, name] = _interpreted(function, names, SIGNATURES[name])
    return _ready[kind, name]


def _reason(error: Exception) -> str:
    """The line of numba's long messages that says what it could not do."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Failed in", "During", "File", "def ", "<source"))]
    return (told or lines or [type(error).__name__])[0][:160]


def _compiled(function: Callable[..., Any], names: list[str], signature: Any) -> Address:
    """`function(..., my)` behind a fixed signature whose last argument is the record of constants."""
    path = cache_folder() / "policies" / f"{_fingerprint(function, names, signature)}.bin"
    result = _stored(path)
    if result is None:
        result = _compile(function, names, signature)
        _store(path, result)
    address = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
    return Address(address, signature, result)


def _compile(function: Callable[..., Any], names: list[str], signature: Any) -> Any:
    arguments = ", ".join(f"a{i}" for i in range(len(signature.args) - 1))
    values = [f"c.value[{i}]" for i in range(len(names))]
    if "table" in names:
        values[names.index("table")] = "c.table"
    source = f"def hook({arguments}, c):\n    return f({arguments}, My({', '.join(values) or '0.0'}))\n"
    constants = namedtuple("My", names or ["nothing"])  # type: ignore[misc]
    scope: dict[str, Any] = {"__name__": __name__, "f": _with_helpers(function, {}), "My": constants}
    exec(source, scope)
    return njit(signature)(scope["hook"]).overloads[signature.args]


def _with_helpers(function: Callable[..., Any], seen: dict[int, Any]) -> Any:
    """The function, compiled lazily, with the plain functions that it calls by name compiled too."""
    if id(function) not in seen:
        scope = dict(function.__globals__)
        copy = python.FunctionType(
            function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
        )
        seen[id(function)] = njit(copy)
        for name, value in _referred(function).items():
            if isinstance(value, python.FunctionType):
                scope[name] = _with_helpers(value, seen)
    return seen[id(function)]


def _referred(function: Callable[..., Any]) -> dict[str, Any]:
    """The names of its module that a function uses."""
    scope = function.__globals__
    return {name: scope[name] for name in sorted(_names(function.__code__)) if name in scope}


def _names(code: Any) -> set[str]:
    inner = (_names(part) for part in code.co_consts if isinstance(part, python.CodeType))
    return set(code.co_names).union(*inner)


def _fingerprint(function: Callable[..., Any], names: list[str], signature: Any) -> str:
    """A name for all that the compiled code depends on."""
    target = cpu_target.target_context.codegen().magic_tuple()
    digest = hashlib.sha256(repr((numba.__version__, np.__version__, target, names, signature)).encode())
    _digest(function, digest, set())
    return digest.hexdigest()[:32]


def _digest(function: Callable[..., Any], digest: Any, seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    code = function.__code__
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    facts = (code.co_consts, code.co_names, function.__defaults__, closed)
    digest.update(code.co_code + repr(facts).encode())
    for name, value in _referred(function).items():
        if isinstance(value, python.FunctionType):
            _digest(value, digest, seen)
        else:
            digest.update(f"{name}={_told(value)}".encode())


def _told(value: Any) -> str:
    """A value by all that compiled code takes over of it, which its text may round, shorten or leave out."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, type) and issubclass(value, Enum):
        return repr({member.name: member.value for member in value})
    return repr(value)


def _stored(path: Path) -> Any:
    cpu_target.target_context.refresh()
    try:
        return _result._rebuild(cpu_target.target_context, *pickle.loads(path.read_bytes()))
    except (OSError, pickle.PickleError, EOFError, AttributeError, TypeError, ValueError, ImportError):
        return None


def _store(path: Path, result: Any) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(_dumps(result._reduce()))
        part.replace(path)
        kept = sorted(path.parent.iterdir(), key=lambda entry: entry.stat().st_mtime)
        for old in kept[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return  # nowhere to write: it is compiled anew next time


_C_TYPES: dict[Any, Any] = {types.float64: ctypes.c_double, types.int64: ctypes.c_int64}


def _interpreted(function: Callable[..., Any], names: list[str], signature: Any) -> Address:
    """The Python function behind the same kind of address; compiled code hands records over as pointers."""
    constants = namedtuple("My", names or ["nothing"])  # type: ignore[misc]
    readers = [_reader(kind) for kind in signature.args]

    def call(*arguments: Any) -> Any:
        if _raised:
            return _IDLE[signature.return_type]
        try:
            values = [read(argument) for read, argument in zip(readers, arguments, strict=True)]
            my = constants(*_values(names, values[-1]))
            return answer(function(*values[:-1], my))
        except BaseException as error:  # noqa: BLE001 - nothing may pass through compiled code
            _raised.append(error)
            return _IDLE[signature.return_type]

    answer = float if signature.return_type == types.float64 else int
    kinds = [_C_TYPES.get(kind, ctypes.c_void_p) for kind in signature.args]
    callback = ctypes.CFUNCTYPE(_C_TYPES[signature.return_type], *kinds)(call)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return Address(address, signature, callback)


def _values(names: list[str], record: Any) -> list[Any]:
    """The constants by name, out of their record."""
    if not names:
        return [0.0]
    return [record["table"] if name == "table" else record["value"][i] for i, name in enumerate(names)]


_IDLE = {types.float64: float("inf"), types.int64: 0}  # the answers after an error, until the run stops


def _reader(kind: Any) -> Callable[[Any], Any]:
    """How an argument of compiled code becomes a Python value: a pointer, a record with attributes."""
    if kind in _C_TYPES:
        return lambda value: value
    dtype = np.dtype((np.record, kind.dtype))
    memory: Any = ctypes.c_char * dtype.itemsize
    return lambda address: np.frombuffer(memory.from_address(address), dtype)[0]
