"""docs/reference/python.md: the public names of every package, from their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator

PACKAGES = (
    "cluster",
    "network",
    "workload",
    "schedule",
    "simulate",
    "plan",
    "zoo",
    "train",
    "live",
    "testing",
)
HEAD = """# Python

What may be relied on: names that are imported from these packages. What is below them may move.

"""


def page() -> str:
    """Every package with its names."""
    return HEAD + "\n".join(_package(f"berth.{package}") for package in PACKAGES)


def _package(package: str) -> str:
    module = importlib.import_module(package)
    about = (module.__doc__ or "").partition("\n")[0]
    named = (_name(name, getattr(module, name)) for name in module.__all__)
    return f"## `{package}`\n\n{about}\n\n" + "\n".join(named)


def _name(name: str, thing: object) -> str:
    text = inspect.getdoc(thing) or ""
    return f"### `{name}`\n\n```python\n{_head(name, thing)}\n```\n\n{_escaped(text)}\n" + _members(thing)


def _head(name: str, thing: object) -> str:
    """How it is called, in one line or one line per argument."""
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        return f"class {name}: {', '.join(thing.__members__)}"
    if not callable(thing):
        return f"{name}: {type(thing).__name__}"
    try:
        signature = _unquoted(str(inspect.signature(thing)))
    except ValueError:
        signature = "(...)"
    word = "class" if isinstance(thing, type) else "def"
    if isinstance(thing, type):
        signature = signature.replace(" -> None", "")
    line = f"{word} {name}{signature}"
    return line if len(line) <= 100 else _wrapped(line)


def _unquoted(signature: str) -> str:
    """Annotations as they are written, and defaults that are made when they are needed as dots."""
    return re.sub(r"(: |-> )'([^']+)'", r"\1\2", signature).replace("<factory>", "...")


def _wrapped(line: str) -> str:
    """One argument a line."""
    head, _, rest = line.partition("(")
    arguments, _, answer = rest.rpartition(")")
    listed = re.sub(r", (?=\*|/|\w+(: |=|,|$))", ",\n    ", arguments)
    return f"{head}(\n    {listed},\n){answer}"


def _members(thing: object) -> str:
    """What can be read of an object and asked of it, beside what it is made of."""
    if not isinstance(thing, type) or issubclass(thing, enum.Enum):
        return ""
    made_of = (
        {field.name for field in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
    )
    rows = [
        f"| `{name}` | {_escaped((inspect.getdoc(member) or '').partition(chr(10))[0])} |\n"
        for name, member in _public(thing)
        if name not in made_of and inspect.getdoc(member)
    ]
    return "\n| member | what it is |\n|---|---|\n" + "".join(rows) if rows else ""


def _public(thing: type) -> Iterator[tuple[str, object]]:
    """Of the class itself, in the order it is written."""
    for name, member in vars(thing).items():
        if not name.startswith("_") and (
            callable(member) or isinstance(member, property | staticmethod | classmethod)
        ):
            yield name, member


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
