"""Lazy public names of a package: each is imported from its module on first use.

`import berth.workload` imports no module, and `from berth.workload import read_trace` only what it needs. The names are
listed once, in the package's stub (`__init__.pyi`), where type checkers and editors read them too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__`: `homes` says in which of its modules each public name lives."""

    def fetch(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return fetch


def public_names(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """The package's `__getattr__` and `__all__`, from the imports in the stub beside its file."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    homes = {name.name: str(one.module).removeprefix(f"{package}.") for one in imports for name in one.names}
    return exports(package, homes), sorted(homes)
