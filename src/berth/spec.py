"""Loads YAML into validated objects; every error has its position: `cluster.yaml:6:12`.

A file is parsed with the fast C loader and validated by pydantic. Only if that fails it is parsed again, into
nodes, which have the line and column of every key.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from berth import units
from berth.errors import InputError, SpecError, nearest

Seconds = Annotated[float, BeforeValidator(units.seconds), Field(ge=0, json_schema_extra={"quantity": "12h"})]
Bytes = Annotated[
    int, BeforeValidator(units.size_bytes), Field(gt=0, json_schema_extra={"quantity": "80GiB"})
]
Bandwidth = Annotated[
    float, BeforeValidator(units.bytes_per_second), Field(gt=0, json_schema_extra={"quantity": "25GB/s"})
]
UsdPerHour = Annotated[
    float, BeforeValidator(units.usd_per_hour), Field(ge=0, json_schema_extra={"quantity": "$2.42/h"})
]
Flops = Annotated[
    float, BeforeValidator(units.flops), Field(gt=0, json_schema_extra={"quantity": "312TFLOPS"})
]


class Spec(BaseModel):
    """Base of all YAML models: unknown keys are errors, objects are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_strip_whitespace=True)
    at_least: ClassVar[str] = "one key"  # of a model without required keys


SpecT = TypeVar("SpecT", bound=Spec)
_SHOWN = 5
_DEEPEST = 64
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # of a model, of a dataclass
_EXPECTED, _GIVEN = "input should be ", " (given: "


def load(path: str | Path, model: type[SpecT]) -> SpecT:
    """Read one YAML file as `model`; every error has its line and column."""
    return parse(read_text(path), model, str(path))


def parse(text: str, model: type[SpecT], where: str) -> SpecT:
    """Read YAML text as `model`; `where` names its source in messages."""
    return validate(_plain(text, where), model, text, where)


def validate(data: Any, model: type[SpecT], text: str, where: str) -> SpecT:
    """Check parsed data as `model`; `text` is what it was parsed from, for line and column of an error.

    JSON text that is not YAML has no positions: errors then name `where` only.
    """
    if data is None:
        raise SpecError("is empty", where=where, hint=f"it needs at least: {_required(model)}")
    if not isinstance(data, dict):
        raise SpecError(
            f"holds a {_kind(data)} where keys and values belong",
            where=f"{where}:1:1",
            hint="write `key: value` lines",
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _located(error, data, text, model, where) from None


def locate(text: str, path: Sequence[int | str], *, at_key: bool = False) -> tuple[int, int]:
    """Return line and column of the value (or key) at `path`, or of its deepest existing part."""
    return _position(yaml.compose(text, Loader=yaml.CSafeLoader), path, at_key=at_key)


def locate_repeated_key(text: str) -> tuple[int, int] | None:
    """Return line and column of a key that its object has already; None if there is none, or `text` is not YAML."""
    try:
        yaml.load(text, Loader=_UniqueKeys)
    except yaml.constructor.ConstructorError as error:
        mark = error.problem_mark
        return (mark.line + 1, mark.column + 1) if mark else None
    except (yaml.YAMLError, ValueError):
        return None
    return None


def read_text(path: str | Path) -> str:
    """Return the text of a file, or raise a SpecError."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise SpecError("no such file", where=str(path), hint="check the path") from None
    except IsADirectoryError:
        raise SpecError("is a folder, not a file", where=str(path), hint="name a file in it") from None
    except OSError as error:
        raise SpecError(f"can't be read: {error.strerror}", where=str(path)) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SpecError(
            "is not text (UTF-8)", where=f"{path}:{line}", hint="a text file is expected"
        ) from None
    if "\0" in text:
        raise SpecError("is binary, not text", where=str(path), hint="a text file is expected")
    return text


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, or raise an InputError."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror}", where=str(path)) from None


class _UniqueKeys(yaml.CSafeLoader):
    """The C loader silently keeps the last of two equal keys; this one raises an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain name", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _plain(text: str, where: str) -> Any:
    try:
        _refuse_deep_nesting(text, where)
        return yaml.load(text, Loader=_UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        spot = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise SpecError(error.problem or "is not YAML", where=spot, hint="fix the YAML there") from None
    except SpecError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"is not YAML: {str(error).splitlines()[0]}", where=where) from None


def _refuse_deep_nesting(text: str, where: str) -> None:
    """The C loader builds nested values by recursion and overflows its stack; its event stream does not."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            mark = event.start_mark
            spot = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
            raise SpecError(f"is nested more than {_DEEPEST} deep", where=spot)


def _located(error: ValidationError, data: Any, text: str, model: type[Spec], where: str) -> SpecError:
    """One SpecError for all errors of pydantic: the first with its position, the others listed below."""
    try:
        tree = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:  # JSON with escaped surrogates or control characters, for example
        tree = None
    messages: list[tuple[str, str]] = []
    for detail in error.errors(include_url=False):
        path, at_key = _about(tree, detail)
        line, column = _position(tree, path, at_key=at_key)
        text = _message(detail, model)
        key = _dotted(_written(data, detail["loc"], missing=detail["type"] == "missing"))
        spot = where if tree is None else f"{where}:{line}:{column}"
        if messages and messages[-1][0] == spot and messages[-1][1].startswith(f"{key}{_EXPECTED}"):
            # another branch of the same union; what it says of the value itself says more than the type
            if text.startswith(_EXPECTED):
                text = f"{messages[-1][1].rsplit(_GIVEN, 1)[0]} {text.replace(_EXPECTED, 'or ', 1)}"
            else:
                text = f"{key}{text}"
            messages[-1] = (spot, text)
        else:
            messages.append((spot, f"{key}{text}"))
    spot, what = messages[0]
    rest = [f"{other_spot}: {other}" for other_spot, other in messages[1:_SHOWN]]
    if len(messages) > _SHOWN:
        rest.append(f"... and {len(messages) - _SHOWN} more")
    return SpecError("\n".join([what, *rest]), where=spot)


def _about(tree: yaml.Node | None, detail: Any) -> tuple[list[int | str], bool]:
    """The path of what an error is about, and whether that is a key.

    Of several keys together it is the first that the message quotes.
    """
    loc = list(detail["loc"])
    error = detail.get("ctx", {}).get("error")
    if not isinstance(error, InputError):
        return loc, detail["type"] in _UNKNOWN
    node = tree
    for step in loc:
        _, value = _child(node, step)
        node = node if value is None else value
    quoted = [name for name in re.findall(r"`(\w+)`", error.what) if _child(node, name)[1] is not None]
    return loc + quoted[:1], bool(quoted)


def _position(tree: yaml.Node | None, loc: Sequence[int | str], *, at_key: bool = False) -> tuple[int, int]:
    """Line and column (from 1) of the deepest part of `loc` that is in the file."""
    node, found = tree, (1, 1)
    for step in loc:
        key, value = _child(node, step)
        if value is None:
            continue  # a step that only pydantic has (a union's branch, a missing field)
        mark = (key if at_key and key is not None else value).start_mark
        node, found = value, (mark.line + 1, mark.column + 1)
    return found


def _written(data: Any, loc: Sequence[int | str], *, missing: bool = False) -> list[int | str]:
    """The steps of `loc` that are in the data; the others are branches of a union. `missing`: the last is not there."""
    found: list[int | str] = []
    for step in loc[:-1] if missing else loc:
        if isinstance(data, dict):
            key = next((key for key in data if str(key) == str(step)), None)
            if key is None:
                continue
            data = data[key]
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            continue
        found.append(step)
    return [*found, *loc[-1:]] if missing else found


def _child(node: yaml.Node | None, step: int | str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The key's node (None in a list) and the value's, or two Nones."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == str(step)), (None, None))
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return None, node.value[step]
    return None, None


def _dotted(loc: Sequence[int | str]) -> str:
    path = ".".join(str(part) for part in loc if not str(part).startswith("function-"))
    return f"{path}: " if path else ""


def _message(detail: Any, model: type[Spec]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _UNKNOWN:
        near = nearest(str(detail["loc"][-1]), _all_fields(model))
        return "unknown key" + (f"; did you mean {near!r}?" if near else "")
    if kind == "missing":
        return "is missing"
    if kind == "too_short" and not context.get("actual_length"):
        return f"is empty; it needs at least {context['min_length']}"
    if isinstance(context.get("error"), InputError):
        return str(context["error"]).replace("\n ", ";")
    text = re.sub(r" or instance of \w+", "", detail["msg"])  # a class of berth
    return f"{text[:1].lower()}{text[1:]}{_GIVEN}{detail['input']!r:.60})"


def _all_fields(model: type[BaseModel]) -> set[str]:
    """Names of the fields of `model` and of every model below it."""
    schema = model.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return {name for part in parts for name in part.get("properties", {})}


def _required(model: type[Spec]) -> str:
    names = [name for name, field in model.model_fields.items() if field.is_required()]
    return ", ".join(f"`{name}:`" for name in names) or model.at_least


def _kind(data: object) -> str:
    return {list: "list", str: "text", int: "number", float: "number"}.get(type(data), type(data).__name__)
