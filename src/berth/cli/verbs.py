"""Typer classes for commands: help with examples, and without Python types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from berth.errors import InputError, nearest


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


class NameOrCommand(Group):
    """Accept `berth plan MODEL --option` and `berth plan check FILE`: a word that is not a command is the name."""

    name_means = "name"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a command an empty name; otherwise allow options on both sides of the name."""
        if args and args[0] in self.commands:
            return super().parse_args(ctx, ["", *args])
        first = args[0] if args else ""
        ctx.allow_interspersed_args = True
        rest = super().parse_args(ctx, args)
        if ctx._protected_args:
            words, meant = " ".join([*ctx._protected_args, *rest]), nearest(first, self.commands)
            hint = f"did you mean {meant!r}?" if meant else f"see {ctx.command_path.split(' [')[0]} --help"
            raise InputError(f"nothing is expected after the {self.name_means}: {words}", hint=hint)
        return rest


class Verbs(typer.Typer):
    """A typer app whose commands are added with their examples, the first of which are its own if it has none."""

    def __init__(self, *, cls: type[TyperGroup] = Group, examples: Sequence[str] = (), **rest: Any) -> None:
        super().__init__(cls=cls, no_args_is_help=True, epilog=as_epilog(examples), **rest)
        self._first: list[str] | None = None if examples else []  # examples of its commands

    def verb(
        self, *examples: str, name: str | None = None, panel: str | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a function as a command with examples at the end of its help."""
        assert examples, "a command without an example"
        if self._first is not None:
            self._first.append(examples[0])
            self.info.epilog = as_epilog(self._first)
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
