"""Compiled functions that are chosen at run time, such as the hooks of a policy, by their address.

Such a function is compiled with its helpers (plain functions that it refers to by name) and kept on disk under a
fingerprint of everything that the compiled code depends on: byte code, constants, the values of globals.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import types as python
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import serialize
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from berth.native.cache import cache_folder, write_failures
from berth.native.kernels import COMPILER_LOCK, FunctionPointer, Signature, pointer_to
from berth.native.pipeline import remembering

_CompileResult: Any = CompileResult  # numba's own way to keep compiled code between runs, untyped
_dumps: Any = serialize.dumps

_HASH_SECRET = b"_numba_hashsecret"  # the one symbol that numba defines only when it is ready to compile
_KEPT = 1000  # compiled functions on disk, some 20 kB each
_DEEPEST = 4  # modules in modules whose values are looked at


def load_or_compile(key: str, signature: Signature, compile_function: Callable[[], Any]) -> FunctionPointer:
    """The function that is stored under a key; `compile_function` returns numba's result where there is none."""
    path = cache_folder() / "policies" / f"{key}.bin"
    with COMPILER_LOCK:
        result = _load(path)
        if result is None:
            with remembering():
                result = compile_function()
            _store(path, result)
        return pointer_to(result, signature)


def fingerprint_of(function: Callable[..., Any], *facts: object) -> str:
    """A name for all that the compiled code of a function depends on: its source, its helpers, `facts`."""
    target = cpu_target.target_context.codegen().magic_tuple()
    digest = hashlib.sha256(repr((numba.__version__, np.__version__, target, *facts)).encode())
    for one in _closure(function, lambda one: _frozen(one).values()):
        digest.update(_digest(one))
    return digest.hexdigest()[:32]


def plain_function(value: Any) -> Any:
    """The Python function that a value is, or was compiled from; None: it is neither."""
    value = value.py_func if isinstance(value, Dispatcher) else value
    return value if isinstance(value, python.FunctionType) else None


def referenced(function: Callable[..., Any]) -> dict[str, Any]:
    """The globals that a function uses, by name."""
    scope = function.__globals__
    return {name: scope[name] for name in sorted(_names(function.__code__)) if name in scope}


def reachable(function: Callable[..., Any]) -> list[Any]:
    """A function and all functions that it calls by name, directly or not, in a fixed order."""
    return _closure(function, lambda one: referenced(one).values())


def _closure(function: Callable[..., Any], values_of: Callable[[Any], Iterable[Any]]) -> list[Any]:
    found: list[Any] = [function]
    for one in found:  # which grows
        helpers = filter(None, map(plain_function, values_of(one)))
        found += [helper for helper in dict.fromkeys(helpers) if helper not in found]
    return found


def _frozen(function: Callable[..., Any]) -> dict[str, Any]:
    """Everything that compiled code takes over when it is compiled: globals, and what it reads of a user's modules."""
    names = _names(function.__code__)
    found = referenced(function)
    modules = [(name, value) for name, value in found.items() if _is_own_module(value)]
    for prefix, module in modules:  # which grows
        for name in sorted(names & vars(module).keys()):
            value, key = vars(module)[name], f"{prefix}.{name}"
            if _is_own_module(value) and key.count(".") < _DEEPEST:
                modules.append((key, value))
            found[key] = value
    return found


def _is_own_module(value: Any) -> bool:
    """Whether a value is a module that may change while the versions of Python and of the libraries stay."""
    if not isinstance(value, python.ModuleType):
        return False
    top = value.__name__.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in ("berth", "numba", "numpy")


def _names(code: Any) -> set[str]:
    inner = (_names(part) for part in code.co_consts if isinstance(part, python.CodeType))
    return set(code.co_names).union(*inner)


def _digest(function: Callable[..., Any]) -> bytes:
    """All that is compiled of a function itself; its lines too, since messages contain them."""
    code = function.__code__
    closed = [_described(cell.cell_contents) for cell in function.__closure__ or ()]
    defaults = [_described(value) for value in function.__defaults__ or ()]
    values = {
        name: _described(value) for name, value in _frozen(function).items() if plain_function(value) is None
    }
    facts = (code.co_consts, code.co_names, code.co_linetable, defaults, closed, values)
    return code.co_code + repr(facts).encode()


def _described(value: Any) -> str:
    """A value with everything that compiled code takes from it; its `repr` may round or shorten it."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, type) and issubclass(value, Enum):
        return repr({member.name: member.value for member in value})
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    return repr(value)


def _load(path: Path) -> Any:
    context = cpu_target.target_context
    try:
        stored = path.read_bytes()
        if _HASH_SECRET in stored:
            context.refresh()
        rtsys.initialize(context)
        return _CompileResult._rebuild(context, *pickle.loads(stored))
    except Exception:  # noqa: BLE001 - damaged files fail in many ways
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
    except OSError as error:
        write_failures.append(error)  # it is compiled again next time
