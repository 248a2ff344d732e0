"""The one way in which berth compiles: cached on disk under the fingerprint of all sources.

A compiled function contains the functions it calls, but numba's cache looks only at the file a function
stands in: after a change elsewhere it would go on running yesterday's code. So the cache lives in a folder
named after the contents of every source that is compiled; any change begins a new one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_KEPT = 8  # caches of earlier sources that are kept
_MARKS = (
    b"berth.compile",
    b"numba",
    b"NamedTuple",
)  # what sources that are compiled, or their arrays, contain


_jit: Any = numba.njit
_INNER = {"cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: F) -> F:
    """A compiled function that only compiled functions call."""
    return cast(F, _jit(**_INNER)(function))


def inlined(function: F) -> F:
    """A short one that is called often: inlined, since a call copies all of `World`."""
    return cast(F, _jit(forceinline=True, **_INNER)(function))


def entry(function: F) -> F:
    """A compiled function that Python calls."""
    return cast(F, _jit(cache=True)(function))


def fingerprint() -> str:
    """A name for the contents of all sources that end up in compiled code."""
    digest = hashlib.sha256(numba.__version__.encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.parent.name == "policies" or path.name == "hooks.py":
            continue  # kept apart, see schedule/hooks.py
        text = path.read_bytes()
        if path.parent.name == "schedule" or any(mark in text for mark in _MARKS):
            digest.update(str(path.relative_to(root)).encode() + text)
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Where compiled code is kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "berth" / "compiled"


def _use_cache() -> None:
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    folder = cache_folder()
    mine = folder / fingerprint()
    try:
        mine.mkdir(parents=True, exist_ok=True)
        mine.touch()
        others = [path for path in folder.iterdir() if path.name != "policies"]
        others.sort(key=lambda path: path.stat().st_mtime)
        for old in others[: -_KEPT - 1]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return  # nowhere to write: numba falls back to the folder of the sources, or to no cache
    setattr(numba.config, "CACHE_DIR", str(mine))  # noqa: B010 - numba's stubs do not list it


_use_cache()
