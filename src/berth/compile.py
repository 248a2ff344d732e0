"""The one way in which berth compiles: cached on disk under the fingerprint of the sources.

A compiled function contains the functions it calls, but numba's cache looks only at the file a function
stands in: after a change elsewhere it would go on running yesterday's code. So the cache lives in a folder
named after the contents of every source that is compiled; any change begins a new one. Rooms that call no
other room's kernels (`APART`) have folders of their own, so that a change there recompiles nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types

_njit: Any = numba.njit  # its types do not list all of its options
F = TypeVar("F", bound=Callable[..., Any])

_ROOT = Path(__file__).parent
_KEPT = 8  # caches of earlier sources that are kept
_MARKS = (
    b"berth.compile",
    b"numba",
    b"NamedTuple",
)  # what sources that are compiled, or their arrays, contain


APART = ("plan", "train", "zoo")
_ABOVE = ("cli", "live", "report", "testing")  # they call kernels, and no kernel calls them

_INNER = {"cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: F) -> F:
    """A compiled function that only compiled functions call."""
    return _jit(function, **_INNER)


def inlined(function: F) -> F:
    """A short one that is called often."""
    return _jit(function, forceinline=True, **_INNER)


def entry(function: F) -> F:
    """A compiled function that Python calls."""
    return _jit(function, cache=True)


class Address(types.WrapperAddressProtocol):
    """A function by its address: compiled code calls it without knowing which it is, or who made it."""

    def __init__(self, address: int, signature: Any, keep: object) -> None:
        self._address, self._signature, self._keep = address, signature, keep

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> Any:
        """What it takes and returns."""
        return self._signature


class Step:
    """A compiled function that compiled functions call by its address.

    A function contains those it calls, and they are optimised again with it: the whole engine in one piece
    takes minutes to compile. Steps are compiled by themselves, and only those that a run needs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._ready: dict[Any, Address] = {}

    def at(self, signature: Any) -> Address:
        """The function for arguments of these types, compiled or read from disk when it is first asked for."""
        if signature not in self._ready:
            _use_cache(room_of(self._function.__module__))
            dispatcher = _njit(signature, cache=True, no_cpython_wrapper=True)(self._function)
            _use_cache("")
            result = dispatcher.overloads[signature.args]
            address = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
            self._ready[signature] = Address(address, signature, dispatcher)
        return self._ready[signature]


def types_of(*values: object) -> tuple[Any, ...]:
    """The types under which compiled code knows these values."""
    typeof: Any = numba.typeof
    return tuple(typeof(value) for value in values)


def bound(function: Any, *arguments: object) -> Callable[..., Any]:
    """An entry for arguments of just these types: calling it spares finding out what they are."""
    signature = types_of(*arguments)
    function.compile(signature)
    return cast(Callable[..., Any], function.overloads[signature].entry_point)


def step(function: Callable[..., Any]) -> Step:
    """A compiled function that others call by its address."""
    return Step(function)


def _jit(function: F, **options: bool) -> F:
    _use_cache(room_of(function.__module__))
    try:
        return cast(F, _njit(**options)(function))
    finally:
        _use_cache("")


def room_of(module: str) -> str:
    """The room whose sources a module's kernels are cached with; "" is all that are not apart."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in APART else ""


@cache
def fingerprint(room: str = "") -> str:
    """A name for the contents of all sources of a room that end up in compiled code."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in compiled_sources(room):
        digest.update(str(path.relative_to(_ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compiled_sources(room: str = "") -> list[Path]:
    """The files of a room whose functions, or whose arrays' types, compiled code contains."""
    found = []
    for path in sorted(_ROOT.rglob("*.py")):
        if path.parent.name == "policies" or path.name == "hooks.py":
            continue  # kept apart, see schedule/hooks.py
        first = path.relative_to(_ROOT).parts[0]
        if first in _ABOVE or (first if first in APART else "") != room:
            continue
        # kernels that also run as they stand name no compiler: those of the network, see network/compiled.py
        named = path.parent.name == "schedule" or path.name.endswith("_kernels.py")
        if named or any(mark in path.read_bytes() for mark in _MARKS):
            found.append(path)
    return found


def cache_folder() -> Path:
    """Where compiled code is kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "berth" / "compiled"


@cache
def _folder(room: str) -> Path | None:
    folder = cache_folder()
    mine = folder / (f"{room}-{fingerprint(room)}" if room else fingerprint())
    try:
        mine.mkdir(parents=True, exist_ok=True)
        mine.touch()
        others = [path for path in folder.glob(f"{room}-*" if room else "*") if room or _is_main(path.name)]
        others.sort(key=lambda path: path.stat().st_mtime)
        for old in others[: -_KEPT - 1]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return None  # nowhere to write: numba falls back to the folder of the sources, or to no cache
    return mine


def _is_main(name: str) -> bool:
    return name != "policies" and "-" not in name


def _use_cache(room: str) -> None:
    """Numba asks for its folder when a function is decorated."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    mine = _folder(room)
    setattr(numba.config, "CACHE_DIR", str(mine) if mine else "")  # noqa: B010 - numba's stubs do not list it


_use_cache("")
