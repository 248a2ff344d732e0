"""`berth logs`, `berth wait`: what a job writes, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from berth.cli.live_options import JobName, State, Url, client
from berth.cli.options import AsJson
from berth.units import seconds

if TYPE_CHECKING:
    from berth.live.client import Client

T = TypeVar("T")
Patience = Annotated[
    str, typer.Option(metavar="TIME", help="How long to wait for a controller that is down.")
]

EXAMPLE = "berth logs --follow j17"
WAIT_EXAMPLE = "berth wait j17 && echo fine"
_OVER = ("finished", "failed", "cancelled")
_POLL_S = 0.5
FAILED_CODE = 1


class _Patient:
    """A client that asks again while the controller does not answer."""

    def __init__(self, client: Client, patience_s: float) -> None:
        self._client, self._patience_s = client, patience_s

    def get(self, *path: str) -> Any:
        """Read something."""
        return self._answer(lambda: self._client.get(*path))

    def text(self, *path: str, **query: Any) -> tuple[str, dict[str, str]]:
        """Read text, with the headers of the answer."""
        return self._answer(lambda: self._client.text(*path, **query))

    def _answer(self, ask: Callable[[], T]) -> T:
        from berth.live.home import UnreachableError

        silent_since: float | None = None
        while True:
            try:
                return ask()
            except UnreachableError as error:
                now = time.monotonic()
                if silent_since is None and self._patience_s:
                    typer.echo(f"{error.what}; asking again", err=True)
                silent_since = silent_since or now
                if now - silent_since >= self._patience_s:
                    raise
                time.sleep(_POLL_S)


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Which try.", show_default="the last")
    ] = None,
    rank: Annotated[int, typer.Option(metavar="N", min=0, help="Which process of the gang.")] = 0,
    patience: Patience = "10m",
    state: State = None,
    url: Url = None,
) -> None:
    """Print what a job has written; with --follow, also across restarts of the controller."""
    asked, offset, shown = _Patient(client(state, url), seconds(patience) if follow else 0.0), 0, attempt
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
    patience: Patience = "10m",
    state: State = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Wait until a job is over, also across restarts of the controller; the exit code is the job's.

    75: the controller has not answered for as long as --patience says; the job may still run.
    """
    asked = _Patient(client(state, url), seconds(patience))
    while (row := asked.get("jobs", job))["state"] not in _OVER:
        time.sleep(_POLL_S)
    if as_json:
        from berth.report.terminal import print_json

        print_json(row)
    else:
        typer.echo(f"{row['id']} {row['state']}", err=True)
    code = row["code"] if row["code"] else 0
    raise typer.Exit(code or (0 if row["state"] == "finished" else FAILED_CODE))
