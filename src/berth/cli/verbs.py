"""Typer classes for commands: help with examples, and without Python types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class Verb(TyperCommand):
    """One command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, without types."""
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, without types."""
        return _without_types(super().get_params(ctx))


class Verbs(typer.Typer):
    """A typer app whose commands are added with their examples."""

    def __init__(self, *, cls: type[TyperGroup] = Group, examples: Sequence[str] = (), **rest: Any) -> None:
        super().__init__(cls=cls, no_args_is_help=True, epilog=as_epilog(examples), **rest)

    def verb(
        self, *examples: str, name: str | None = None, panel: str | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a function as a command with examples at the end of its help."""
        assert examples, "a command without an example"
        return self.command(name, cls=Verb, epilog=as_epilog(examples), rich_help_panel=panel)


def as_epilog(examples: Sequence[str]) -> str | None:
    """Return the examples as help text, one line each."""
    return (
        "\n".join(["Examples:" if len(examples) > 1 else "Example:", *(f"  {one}" for one in examples)])
        or None
    )


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if param.param_type_name == "argument":
            param.display_type_rich = _nothing
        elif param.is_flag:
            param.metavar = ""
    return params


def _nothing(ctx: Any) -> None:
    """Hide the type of an argument."""
