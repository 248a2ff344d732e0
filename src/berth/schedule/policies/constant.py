"""Constants of a policy as its user writes them: durations with units, numbers, yes or no, one of some words."""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, dataclass, field
from enum import IntEnum
from typing import Any

from berth.errors import InputError, UnknownNameError
from berth.schedule.policy import Policy, constant_fields, constant_type
from berth.units import format_seconds, seconds


def number(default: float, text: str) -> Any:
    """A field that holds a plain number; `text` says what it does."""
    return field(default=float(default), metadata={"kind": "number", "help": text})


def duration(default: str, text: str) -> Any:
    """A field that holds seconds and is written with a unit: `12h`, or `never`."""
    return field(default=_seconds(default), metadata={"kind": "duration", "help": text})


def choice(default: IntEnum | bool, text: str, *, name: str = "") -> Any:
    """A field that holds a member of an IntEnum, written as its name in lower case; or a bool: `no`, `yes`.

    `name` is what the user writes, where the field can't be called so because a hook is.
    """
    return field(default=default, metadata={"help": text} | ({"name": name} if name else {}))


def array() -> Any:
    """A field that no user sets: numbers that `prepare` computed, empty before."""
    return field(default=(), repr=False, metadata={"array": True})


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of a policy, as its list of constants shows it."""

    name: str
    default: str  # as one would write it
    words: tuple[str, ...]
    help: str


def constants_of(policy: type[Policy]) -> tuple[Constant, ...]:
    """What can be set in a policy."""
    return tuple(_described(entry) for entry in constant_fields(policy))


def parse_constants(policy: type[Policy], name: str, text: str) -> dict[str, float]:
    """The fields that `machine=12h,rack=24h` sets."""
    known = {_name(entry): entry for entry in constant_fields(policy)}
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InputError(f"policy {name}: {part!r} sets nothing", hint="write a constant as name=value")
        if key not in known:
            if not known:
                raise InputError(f"policy {name} has no constants, so {key!r} can't be set")
            raise UnknownNameError(f"constant of policy {name}", key, known)
        if known[key].name in given:
            raise InputError(f"policy {name}: {key!r} is set twice")
        given[known[key].name] = _parse(known[key], name, value)
    return given


def _name(entry: Field[Any]) -> str:
    return str(entry.metadata.get("name", entry.name))


def _words(entry: Field[Any]) -> dict[str, float]:
    """What a user may write, with the value that it means; empty: a number."""
    kind = constant_type(entry)
    if kind is bool:
        return {"no": False, "yes": True}
    members = kind if issubclass(kind, IntEnum) else ()
    return {member.name.lower().replace("_", "-"): member for member in members}


def _described(entry: Field[Any]) -> Constant:
    words, value = _words(entry), entry.default
    default = next((word for word, meant in words.items() if meant == value), "")
    if not words and value is not MISSING:
        default = format_seconds(value) if entry.metadata.get("kind") == "duration" else f"{value:g}"
    return Constant(_name(entry), default, tuple(words), entry.metadata.get("help", ""))


def _parse(entry: Field[Any], policy: str, text: str) -> float:
    where = f"policy {policy}, {_name(entry)}"
    words = _words(entry)
    if words:
        if text not in words:
            raise UnknownNameError(f"choice of {_name(entry)}", text, words, where=f"policy {policy}")
        return words[text]
    try:
        value = _parsers[entry.metadata.get("kind", "")](text)
    except InputError as error:
        error.where = where
        raise
    if math.isnan(value) or value < 0:
        raise InputError(f"{text!r} is negative or not a number", where=where)
    return value


def _seconds(text: str) -> float:
    return math.inf if text in ("never", "inf") else seconds(text)


def _number(text: str) -> float:
    """A plain number: its unit is the constant's own, so none can be written."""
    try:
        return float(text)
    except ValueError:
        pass
    raise InputError(f"{text!r} is not a number", hint="write it without a unit, such as 1.5")


def _number_or_seconds(text: str) -> float:
    """A plain float of one's own policy, which may mean either."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return seconds(text)
    except InputError:
        raise InputError(f"{text!r} is not a number", hint="write 1.5, or a duration such as 12h") from None


_parsers = {"duration": _seconds, "number": _number, "": _number_or_seconds}
