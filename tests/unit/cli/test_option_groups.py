"""Option groups: the fields of a dataclass are options of a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from berth.cli.option_groups import expand_options


@dataclass(frozen=True)
class Paint:
    colour: Annotated[str, typer.Option(help="Which colour.")] = "red"
    coats: Annotated[int, typer.Option(min=1)] = 2


def paint_app(seen: list[object]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @expand_options
    def run(*, wall: str, paint: Paint, dry: bool = False) -> None:
        seen.append((wall, paint, dry))

    return app


def test_the_function_gets_the_group_with_given_values_and_defaults():
    seen: list[object] = []
    result = CliRunner().invoke(paint_app(seen), ["north", "--colour", "blue", "--dry"])
    assert result.exit_code == 0, result.output
    assert seen == [("north", Paint("blue", 2), True)]


def test_the_constraints_of_a_field_are_checked():
    result = CliRunner().invoke(paint_app([]), ["north", "--coats", "0"])
    assert result.exit_code == 2
