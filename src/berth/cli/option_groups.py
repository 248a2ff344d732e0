"""Option groups: a dataclass whose fields become options of a command.

    @expand_options
    def simulate(*, trace: TraceName, options: ScenarioOptions, as_json: AsJson = False) -> None: ...

typer sees every field of ScenarioOptions as an option in place of `options`; the function gets an instance.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a dataclass type by the fields of the dataclass."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        own = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += _options(groups[name]) if name in groups else [own]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{one.name: given.pop(one.name) for one in fields(group)})
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(one.name, kind, default=one.default, annotation=hints[one.name])
        for one in fields(group)
    ]
