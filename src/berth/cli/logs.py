"""`berth logs`, `berth wait`: what a job writes, and how it ends."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from berth.cli.live_options import JobName, State, Url, client
from berth.cli.options import AsJson

EXAMPLE = "berth logs --follow j17"
WAIT_EXAMPLE = "berth wait j17 && echo fine"
_OVER = ("finished", "failed", "cancelled")
_POLL_S = 0.5
FAILED_CODE = 1


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Which try.", show_default="the last")
    ] = None,
    rank: Annotated[int, typer.Option(metavar="N", min=0, help="Which process of the gang.")] = 0,
    state: State = None,
    url: Url = None,
) -> None:
    """Print what a job has written."""
    asked, offset, shown = client(state, url), 0, attempt
    quiet = True
    while True:
        row = asked.get("jobs", job) if follow else None
        if row is not None and quiet and not row["attempts"] and row["state"] not in _OVER:
            typer.echo(
                f"{row['id']} is {row['state']}; what it writes follows (berth why {row['id']})", err=True
            )
            quiet = False
        if row is not None and attempt is None and row["attempts"] != shown:
            if shown:
                typer.echo(f"--- attempt {row['attempts']} ---", err=True)
            shown, offset = row["attempts"], 0
        text, headers = asked.text("jobs", job, "logs", attempt=shown or None, rank=rank, offset=offset)
        offset = int(headers.get("x-next-offset", offset))
        typer.echo(text, nl=False)
        if text:
            continue
        if row is None or row["state"] in _OVER:
            return
        time.sleep(_POLL_S)


def wait(
    job: JobName,
    state: State = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Wait until a job is over; the exit code is the job's."""
    asked = client(state, url)
    while (row := asked.get("jobs", job))["state"] not in _OVER:
        time.sleep(_POLL_S)
    if as_json:
        from berth.report.terminal import print_json

        print_json(row)
    else:
        typer.echo(f"{row['id']} {row['state']}", err=True)
    code = row["code"] if row["code"] else 0
    raise typer.Exit(code or (0 if row["state"] == "finished" else FAILED_CODE))
