"""`berth replay`: repeat the decisions of a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from berth.cli.options import AsJson, argument
from berth.errors import InputError
from berth.live.home import JOURNAL, state_folder
from berth.report.terminal import print_json
from berth.units import format_count

EXAMPLES = ("berth replay", "berth replay /var/lib/berth --json")


def replay(
    journal: Annotated[
        str | None, argument("JOURNAL", "A state folder or a journal.", shown="$BERTH_STATE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat every decision of a journal, in virtual time, and count the differences."""
    from berth.live.recover import replay_journal

    path = Path(journal) if journal else state_folder(None)
    path = path / JOURNAL if path.is_dir() else path
    if not path.is_file():
        raise InputError("there is no journal", where=str(path), hint="name the state folder of a controller")
    result = replay_journal(path)
    if as_json:
        print_json(result)
    else:
        passes = f"{result['passes']:,} pass{'es' if result['passes'] != 1 else ''}"
        records = format_count(result["records"], "record")
        decisions = format_count(result["decisions"], "decision")
        differences = format_count(result["differences"], "difference")
        typer.echo(f"{records}, {passes}, {decisions}: {differences}")
        if result["first"]:
            typer.echo(result["first"])
    if result["differences"]:
        raise typer.Exit(1)
