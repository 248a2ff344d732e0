"""The one way in which berth compiles: cached on disk under the fingerprint of the sources.

A compiled function contains the functions it calls, but numba's cache looks only at the file a function
is in: after a change elsewhere it would go on running yesterday's code. So the cache is in a folder
named after the contents of every source that is compiled; any change begins a new one. Packages that call no
other package's kernels (`APART`) have folders of their own, so that a change there recompiles nothing else.

The folder belongs to berth's own functions alone: numba's settings are left as the host process has them. A
process holds a shared lock on the folders that it uses, and old ones are removed only where no process does.
Where NUMBA_CACHE_DIR is set, numba caches there in its own way.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core import caching
from numba.core.dispatcher import Dispatcher

_njit: Any = numba.njit  # its types do not list all of its options
_FunctionCache: Any = caching.FunctionCache  # untyped
_CacheImpl: Any = caching.CompileResultCacheImpl
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

_GUARDS = ("checks", "copies", "elements", "failures", "hooks", "limits", "lint", "sealed", "source")
_HOOKS = tuple(f"schedule/{name}.py" for name in _GUARDS)

_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: F) -> F:
    """A compiled function that only compiled functions call."""
    return _jit(function, **_INNER)


def inlined(function: F) -> F:
    """A short one that is called often."""
    return _jit(function, forceinline=True, **_INNER)


def entry(function: F) -> F:
    """A compiled function that Python calls."""
    return _jit(function)


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
            dispatcher: Any = _jit(self._function, no_cpython_wrapper=True)
            dispatcher.compile(signature)
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
    dispatcher = _njit(**options)(function)
    if isinstance(dispatcher, Dispatcher):  # else numba is told not to compile
        if os.environ.get("NUMBA_CACHE_DIR"):
            dispatcher.enable_caching()
        else:
            cached: Any = dispatcher
            cached._cache = _Cache(function)
    return cast(F, dispatcher)


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
        if path.parent.name == "policies" or path.relative_to(_ROOT).as_posix() in _HOOKS:
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


def folder_of(room: str = "") -> Path:
    """Where a room's compiled code is kept, for its sources as they are."""
    return cache_folder() / (f"{room}-{fingerprint(room)}" if room else fingerprint())


class _Locator:
    """Where numba looks for one function; the folder's name says what sources it was made from."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._path = folder_of(room_of(function.__module__)) / function.__module__
        self._line, self._file = function.__code__.co_firstlineno, function.__code__.co_filename

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator:
        return cls(function)

    def ensure_cache_path(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return _digest(self._file)  # the fingerprint leaves out the packages above the kernels

    def get_disambiguator(self) -> str:
        return str(self._line)


@cache
def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


class _Impl(_CacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class _Cache(_FunctionCache):  # type: ignore[misc]
    """Numba's cache of one function; where the disk fails it, the function is compiled again."""

    _impl_class = _Impl

    def load_overload(self, signature: Any, context: Any) -> Any:
        if not claim(room_of(self._py_func.__module__)):
            return None
        try:
            return super().load_overload(signature, context)
        except OSError:
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        room = room_of(self._py_func.__module__)
        if not claim(room):
            return
        try:
            with _locked(
                folder_of(room) / "writing", fcntl.LOCK_EX
            ):  # else two could choose the same file name
                super().save_overload(signature, data)
        except OSError:
            return


@cache
def claim(room: str) -> bool:
    """Keeps a room's folder from being removed while this process lives; False where it can't be written."""
    mine = folder_of(room)
    try:
        while True:
            mine.mkdir(parents=True, exist_ok=True)
            lock = os.open(mine / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(lock, fcntl.LOCK_SH)  # held until the process ends
            if _same(lock, mine / _LOCK):
                break
            os.close(lock)  # removed in between
        mine.touch()
        _prune(room, mine)
    except OSError:
        return False
    return True


_LOCK = "in-use"


def _prune(room: str, mine: Path) -> None:
    """Removes the oldest folders of earlier sources, but none that a process uses."""
    folders = (path for path in mine.parent.glob(f"{room}-*" if room else "*") if room or _is_main(path.name))
    dated = sorted((age, path) for path in folders if path != mine and (age := _changed(path)) is not None)
    for _, old in dated[:-_KEPT]:
        try:
            with _locked(old / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(old, ignore_errors=True)
        except OSError:
            continue  # in use, or removed by another process


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, how)
        yield
    finally:
        os.close(lock)


def _same(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None  # removed by another process


def _is_main(name: str) -> bool:
    return name != "policies" and "-" not in name
