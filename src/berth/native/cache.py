"""The cache of compiled functions on disk, keyed by the contents of the sources.

A compiled function contains the functions it calls, but numba's own cache checks only the file that a function is
in: after a change elsewhere it would run outdated code. This cache is in a folder named after the contents of all
sources that are compiled, so any change starts a new folder. Packages whose kernels call no kernel of another package
(`SEPARATE`) have folders of their own: a change there recompiles nothing else.

Only berth's functions use the folder; numba's settings stay as the host process has them. A process holds a shared
lock on each folder that it uses, and old folders are removed only where no process holds one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import caching
from numba.core.runtime import rtsys

_FunctionCache: Any = caching.FunctionCache  # numba is untyped
_CacheImpl: Any = caching.CompileResultCacheImpl

SEPARATE = ("plan", "train", "zoo")
_CALLERS = ("cli", "live", "report", "testing")  # they call kernels, and no kernel calls them
_ROOT = Path(__file__).parents[1]
# in every source of compiled functions or of their arrays' types
_MARKS = b"berth.native", b"numba", b"NamedTuple"
_NATIVE = tuple(
    f"native/{name}.py"
    for name in ("arrays", "cache", "deferred", "kernels", "linking", "pipeline", "structs")
)  # they shape all compiled code
_GUARDS = ("checks", "copies", "elements", "failures", "hooks", "limits", "lint", "sealed", "source")
# see native/functions.py
_POLICY_CODE = "native/functions.py", *(f"schedule/{name}.py" for name in _GUARDS)
_KEPT = 8  # folders of earlier sources that are kept
_LOCK_FILE = "in-use"


def enable_cache(dispatcher: Any) -> None:
    """Makes a numba dispatcher keep what it compiles on disk."""
    dispatcher._cache = _Cache(dispatcher.py_func)


def package_of(module: str) -> str:
    """The separate package that a module's kernels are cached with; "" for all other modules."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in SEPARATE else ""


@cache
def fingerprint(package: str = "") -> str:
    """A name for the contents of all sources that end up in a package's compiled code."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in compiled_sources(package):
        digest.update(str(path.relative_to(_ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def policies_fingerprint() -> str:
    """A name for the sources of the policies that come with berth and of what is compiled around every policy."""
    sources = [*(_ROOT / "schedule" / "policies").rglob("*.py"), *(_ROOT / name for name in _POLICY_CODE)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()[:16]


def compiled_sources(package: str = "") -> list[Path]:
    """The files whose functions, or whose arrays' types, a package's compiled code contains."""
    return [path for path in sorted(_ROOT.rglob("*.py")) if _is_compiled(path, package)]


def _is_compiled(path: Path, package: str) -> bool:
    name, first = path.relative_to(_ROOT).as_posix(), path.relative_to(_ROOT).parts[0]
    if name in _NATIVE:
        return True
    if path.parent.name == "policies" or name in _POLICY_CODE or first in _CALLERS:
        return False
    if (first if first in SEPARATE else "") != package:
        return False
    # the network's kernels also run interpreted and do not import numba, see network/compiled.py
    unmarked = path.parent.name == "schedule" or name.endswith("_kernels.py")
    return unmarked or any(mark in path.read_bytes() for mark in _MARKS)


def cache_folder() -> Path:
    """Where compiled code is kept between runs: in NUMBA_CACHE_DIR, if it is set, or in the user's cache."""
    home = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "berth" / "compiled"


def package_folder(package: str = "") -> Path:
    """Where a package's compiled code is kept, for its sources as they are."""
    return cache_folder() / (f"{package}-{fingerprint(package)}" if package else fingerprint())


class _Locator:
    """Where numba looks for one function; the folder's name identifies the sources."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._path = package_folder(package_of(function.__module__)) / function.__module__
        self._line, self._file = function.__code__.co_firstlineno, function.__code__.co_filename

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator:
        return cls(function)

    def ensure_cache_path(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return _digest(self._file)  # the fingerprint leaves out the packages that call kernels

    def get_disambiguator(self) -> str:
        return str(self._line)


@cache
def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


class _Impl(_CacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class _Cache(_FunctionCache):  # type: ignore[misc]
    """Numba's cache of one function; where the disk fails, the function is compiled again."""

    _impl_class = _Impl

    def load_overload(self, signature: Any, context: Any) -> Any:
        if not lock_folder(package_of(self._py_func.__module__)):
            return None
        try:
            # numba itself would import all that it needs to compile, with scipy: half a second of CPU time
            rtsys.initialize(context)
            return self._load_overload(signature, context)
        except OSError:
            return None
        except Exception:  # noqa: BLE001 - damaged files fail in many ways: it is compiled, and written, again
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        package = package_of(self._py_func.__module__)
        if not lock_folder(package):
            return
        try:
            # else two processes could choose the same file name
            with _locked(package_folder(package) / "writing", fcntl.LOCK_EX):
                super().save_overload(signature, data)
        except OSError as error:
            write_failures.append(error)


write_failures: list[OSError] = []  # of writing compiled code
_locks: dict[str, bool] = {}  # by package: whether its folder is locked and can be used
_locking = threading.Lock()


def lock_folder(package: str) -> bool:
    """Keeps a package's folder from being removed while this process runs; False where it can't be written."""
    with _locking:
        if package not in _locks:
            _locks[package] = _lock(package)
        return _locks[package]


def _lock(package: str) -> bool:
    own = package_folder(package)
    try:
        while True:
            own.mkdir(parents=True, exist_ok=True)
            lock = os.open(own / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(lock, fcntl.LOCK_SH)  # held until the process ends
            if _is_same_file(lock, own / _LOCK_FILE):
                break
            os.close(lock)  # removed in between
        own.touch()
        _prune(package, own)
    except OSError as error:
        write_failures.append(error)
        return False
    return True


def write_failure() -> str | None:
    """Why this process can't keep what it compiles; None if it can."""
    return (write_failures[0].strerror or str(write_failures[0])) if write_failures else None


def _prune(package: str, own: Path) -> None:
    """Removes the oldest folders of earlier sources, except those that a process uses."""
    folders = own.parent.glob(f"{package}-*" if package else "*")
    others = [path for path in folders if path != own and (package or _is_main(path.name))]
    dated = sorted((time_s, path) for path in others if (time_s := _modified_s(path)) is not None)
    for _, old in dated[:-_KEPT]:
        try:
            with _locked(old / _LOCK_FILE, fcntl.LOCK_EX | fcntl.LOCK_NB):
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


def _is_same_file(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _modified_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None  # removed by another process


def _is_main(name: str) -> bool:
    return name != "policies" and "-" not in name
