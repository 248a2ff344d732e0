"""`berth replay`: a journal's decisions, taken again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from berth.cli.options import AsJson
from berth.errors import InputError
from berth.units import format_count

EXAMPLES = ("berth replay", "berth replay /var/lib/berth --json")


def replay(
    journal: Annotated[
        str | None,
        typer.Argument(metavar="JOURNAL", help="A state folder or a journal.", show_default="$BERTH_STATE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take every decision of a journal again, in virtual time, and count the differences."""
    from berth.live.home import JOURNAL, state_folder
    from berth.live.recover import replay_journal
    from berth.report.terminal import print_json

    path = Path(journal) if journal else state_folder(None)
    path = path / JOURNAL if path.is_dir() else path
    if not path.is_file():
        raise InputError("there is no journal", where=str(path), hint="name the state folder of a controller")
    told = replay_journal(path)
    if as_json:
        print_json(told)
    else:
        records, decisions = (
            format_count(told["records"], "record"),
            format_count(told["decisions"], "decision"),
        )
        passes = f"{told['passes']:,} pass{'es' if told['passes'] != 1 else ''}"
        different = format_count(told["differences"], "difference")
        typer.echo(f"{records}, {passes}, {decisions}: {different}")
        if told["first"]:
            typer.echo(told["first"])
    if told["differences"]:
        raise typer.Exit(1)
