"""Command options grouped into dataclasses, one per concern.

A command takes the dataclasses; typer sees one parameter per field, in order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with every dataclass parameter replaced by the fields of the dataclass."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[Any]] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}  # type: ignore[misc]
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _field_parameters(groups[parameter.name])
        else:
            parameters.append(
                parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            )

    @wraps(function)
    def command(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        function(**values, **built)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _field_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]
