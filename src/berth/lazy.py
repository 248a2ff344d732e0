"""Lazy public names of a package: each is imported from its module on first use.

`import berth.workload` imports no module, and `from berth.workload import read_trace` only what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__`: `homes` says in which of its modules each public name lives."""

    def fetch(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return fetch
