"""Roles of columns: which are labels, slots, multi-valued slots, dense features and the weight of an example.

    labels: [click, purchase]
    slots: [user, item, "C*"]         # one id each; or groups: {user: [user_id, city], item: [item_id]}
    multi: {tags: mean, history: sum} # lists of ids, pooled
    dense: [price, age]
    ignore: [session]

A role that is given lists its columns completely. A role that is left out is inferred from the types and names of the
remaining columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from berth import spec
from berth.errors import InputError, nearest

if TYPE_CHECKING:
    import polars as pl

Pooling = Literal["sum", "mean"]
Schema = Mapping[str, "pl.DataType"]
_LABELS = ("label", "click", "clicked", "target", "y")
_SLOT_NAME = re.compile(r"^c\d+$|slot|cat|(^|_)id($|_|\d)", re.IGNORECASE)
_SHOWN = 40  # columns of a hint
NUMBER_IDS = "number_ids"
_CONVERSIONS = {  # by what ids must become
    "numbers": "convert the file to Parquet with these columns as integers",
    "text": "convert these columns to text, or the file to CSV",
}
_MEANING = {
    "labels": "a label needs numbers, 0 or 1",
    "slots": "ids are integers or text",
    "multi": "a multi-valued slot needs lists of integers or text, or separated text",
    "dense": "a dense feature needs numbers",
    "weight": "a weight needs numbers",
}


class Roles(spec.Spec):
    """Columns by role; a name may be a pattern such as `C*`."""

    labels: str | list[str] | None = None
    slots: list[str] | dict[str, list[str]] | None = None
    multi: list[str] | dict[str, Pooling] | None = None
    dense: list[str] | dict[str, list[str]] | None = None
    weight: str | None = None
    ignore: list[str] = Field(default_factory=list)
    scale: Literal["log", "none"] = "log"
    separator: str = Field(default="|", min_length=1)
    max_ids: int | None = Field(default=None, ge=1)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are read, by role."""

    labels: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]  # by input of the model
    dense: dict[str, tuple[str, ...]]
    multi: dict[str, str] = field(default_factory=dict)  # pooling by column; each is an input of the model
    weight: str | None = None
    scale: str = "log"  # of dense features: sign(x) log(1 + |x|), or none
    separator: str = "|"  # of ids in text
    max_ids: int | None = None  # of a list; further ids are dropped
    number_ids: tuple[str, ...] | None = field(default=None, compare=False)  # columns; None: not known

    @property
    def slot_columns(self) -> list[str]:
        """Columns with one id, in the order of their numbers; those of multi-valued slots follow."""
        return [name for group in self.slots.values() for name in group]

    @property
    def dense_columns(self) -> list[str]:
        """Columns of dense features."""
        return [name for group in self.dense.values() for name in group]

    @property
    def slot_count(self) -> int:
        """Number of slots, multi-valued ones included."""
        return len(self.slot_columns) + len(self.multi)

    @property
    def columns(self) -> list[str]:
        """All columns that are read."""
        weight = [self.weight] if self.weight is not None else []
        return [*self.labels, *self.slot_columns, *self.multi, *self.dense_columns, *weight]

    def to_json(self) -> dict[str, Any]:
        """Return the layout as plain values."""
        groups = {
            role: {name: list(group) for name, group in getattr(self, role).items()}
            for role in ("slots", "dense")
        }
        document: dict[str, Any] = {"labels": list(self.labels), **groups, "multi": dict(self.multi)}
        document["weight"] = self.weight
        document |= {"scale": self.scale, "separator": self.separator, "max_ids": self.max_ids}
        return document if self.number_ids is None else {**document, NUMBER_IDS: list(self.number_ids)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Layout:
        """Return the layout that `to_json` wrote."""
        groups: dict[str, Any] = {
            role: {name: tuple(group) for name, group in document[role].items()}
            for role in ("slots", "dense")
        }
        if document.get(NUMBER_IDS) is not None:
            groups[NUMBER_IDS] = tuple(document[NUMBER_IDS])
        return cls(**{**document, "labels": tuple(document["labels"]), **groups})

    def check_ids(self, number_ids: tuple[str, ...] | None, file: str, earlier: str) -> None:
        """Raise if ids of a file are text but those of the earlier data are numbers, or the reverse."""
        if self.number_ids is None or number_ids is None:
            return
        for here, there, names in (
            ("text", "numbers", [name for name in self.number_ids if name not in number_ids]),
            ("numbers", "text", [name for name in number_ids if name not in self.number_ids]),
        ):
            if names:
                shown = ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
                raise InputError(
                    f"ids of column {shown} are {here} in this file, but {there} in {earlier}",
                    where=file,
                    hint=f"the same id has another row as text than as a number: {_CONVERSIONS[there]}",
                )


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """Roles as the user wrote them, with the text they are from."""

    roles: Roles = Roles()  # noqa: RUF009 - frozen
    text: str = ""
    where: str = "--columns"

    @classmethod
    def read(cls, columns: str | Path | Mapping[str, Any]) -> ColumnRoles:
        """Return the roles of a YAML file, of YAML text in braces, or of a dictionary."""
        if isinstance(columns, Mapping):
            columns = repr(dict(columns))
        if isinstance(columns, str) and columns.lstrip().startswith("{"):
            return cls(spec.parse(columns, Roles, "--columns"), columns)
        text = spec.read_text(columns)
        return cls(spec.parse(text, Roles, str(columns)), text, str(columns))

    def error(self, what: str, path: Sequence[int | str], hint: str | None) -> InputError:
        """Return an error at a value of the document."""
        line, column = spec.locate(self.text, path)
        return InputError(what, where=f"{self.where}:{line}:{column}", hint=hint)


def resolve(
    schema: Schema,
    file: str,
    given: ColumnRoles | Layout | None = None,
    *,
    maybe_numbers: Collection[str] | None = None,
) -> Layout:
    """Return the layout of a file with these columns.

    A text file, all of whose ids are text, has columns of text that may be given as numbers: unreadable ones are bad
    rows. None: it is not a text file.
    """
    text, maybe_numbers = maybe_numbers is not None, maybe_numbers or ()
    if isinstance(given, Layout):
        missing = [name for name in given.columns if name not in schema]
        if missing:
            raise InputError(f"has no column {missing[0]!r}", where=file, hint="the training data has it")
        given.check_ids(_number_ids(given, schema, text), file, "the training data")
        return given
    given = given or ColumnRoles()
    found = _named(given, schema, file, maybe_numbers)
    used = {name for _, _, name in found}
    rest = {name: kind for name, kind in schema.items() if name not in used}
    roles = given.roles
    labels = tuple(name for role, _, name in found if role == "labels") or _infer_label(
        schema, rest, file, maybe_numbers
    )
    inferred = _inferred({name: kind for name, kind in rest.items() if name not in labels}, roles, file)
    weight = next((name for role, _, name in found if role == "weight"), None)
    pooling: dict[str, str] = {**roles.multi} if isinstance(roles.multi, dict) else {}
    lists = [(group, name) for role, group, name in found if role == "multi"]
    layout = Layout(
        labels,
        _groups("slots", roles.slots, found, inferred),
        _groups("dense", roles.dense, found, inferred),
        {name: pooling.get(group, "sum") for group, name in lists} | dict.fromkeys(inferred["multi"], "sum"),
        weight,
        roles.scale,
        roles.separator,
        roles.max_ids,
    )
    return replace(layout, number_ids=_number_ids(layout, schema, text))


def _number_ids(layout: Layout, schema: Schema, text: bool) -> tuple[str, ...]:
    """Return the columns of ids that are integers."""
    names = [] if text else [*layout.slot_columns, *layout.multi]
    return tuple(name for name in names if getattr(schema[name], "inner", schema[name]).is_integer())


def _named(
    given: ColumnRoles, schema: Schema, file: str, maybe_numbers: Collection[str]
) -> list[tuple[str, str, str]]:
    """Return (role, group, column) of every column that the roles name."""
    found: list[tuple[str, str, str]] = []
    for role, group, path, pattern in _mentions(given.roles):
        names = [name for name in schema if name == pattern] or [
            name for name in schema if fnmatchcase(name, pattern)
        ]
        if not names:
            near = nearest(pattern, schema)
            known = ", ".join(list(schema)[:_SHOWN]) + (", ..." if len(schema) > _SHOWN else "")
            hint = f"did you mean {near!r}? " if near else ""
            raise given.error(f"{file} has no column {pattern!r}", path, f"{hint}columns: {known}")
        for name in names:
            earlier = next((other for other, _, known in found if known == name), None)
            if earlier is not None:
                what = f"column {name!r} has two roles: {earlier} and {role}"
                raise given.error(what, path, "name it once")
            if role != "ignore" and not _fits(role, schema[name], name in maybe_numbers):
                what = f"column {name!r} of {file} has type {schema[name]}"
                raise given.error(what, path, _MEANING[role])
            found.append((role, group, name))
    return found


def _mentions(roles: Roles) -> Iterator[tuple[str, str, list[int | str], str]]:
    """Yield (role, group, path in the document, pattern) of every name."""
    for role in ("labels", "slots", "multi", "dense", "weight", "ignore"):
        value = getattr(roles, role)
        if isinstance(value, str):
            yield role, role, [role], value
        elif isinstance(value, list):
            yield from (
                (role, name if role == "multi" else role, [role, at], name) for at, name in enumerate(value)
            )
        elif isinstance(value, dict):
            for group, names in value.items():
                if role == "multi":
                    yield role, group, [role, group], group
                    continue
                yield from ((role, group, [role, group, at], name) for at, name in enumerate(names))


def _fits(role: str, kind: pl.DataType, maybe_number: bool = False) -> bool:
    import polars as pl

    number = maybe_number or kind.is_numeric() or kind == pl.Boolean
    if role == "slots":
        return _is_id(kind)
    if role == "multi":
        return kind == pl.String or (isinstance(kind, pl.List) and _is_id(kind.inner))
    return number


def _is_id(kind: Any) -> bool:
    import polars as pl

    return kind.is_integer() or kind in (pl.String, pl.Categorical)


def _infer_label(schema: Schema, rest: Schema, file: str, maybe_numbers: Collection[str]) -> tuple[str, ...]:
    label = next((name for name in rest if name.lower() in _LABELS), next(iter(rest), ""))
    if label not in schema or not _fits("labels", schema[label], label in maybe_numbers):
        raise InputError("has no label column", where=file, hint="name it `label`; values 0 or 1")
    return (label,)


def _inferred(rest: Schema, roles: Roles, file: str) -> dict[str, list[str]]:
    """Return the remaining columns of the roles that are not given."""
    import polars as pl

    found: dict[str, list[str]] = {"slots": [], "multi": [], "dense": []}
    for name, kind in rest.items():
        if isinstance(kind, pl.List) and _is_id(kind.inner):
            role = "multi"
        elif kind in (pl.String, pl.Categorical) or (kind.is_integer() and _SLOT_NAME.search(name)):
            role = "slots"
        elif kind.is_numeric() or kind == pl.Boolean:
            role = "dense"
        elif roles.slots is None and roles.dense is None:
            raise InputError(
                f"column {name!r} has type {kind}: expected numbers or ids",
                where=file,
                hint="add it to `ignore` in --columns",
            )
        else:
            continue
        if getattr(roles, role) is None:
            found[role].append(name)
    return found


def _groups(
    role: str, given: Any, found: list[tuple[str, str, str]], inferred: dict[str, list[str]]
) -> dict[str, tuple[str, ...]]:
    if given is None:
        return {role: tuple(inferred[role])}
    names = list(given) if isinstance(given, dict) else [role]
    return {
        group: tuple(name for one, where, name in found if one == role and where == group) for group in names
    }
