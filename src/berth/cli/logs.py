"""`berth logs`, `berth wait`: the output of a job, and its exit code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from berth.cli.live_options import Controller, JobName, LiveOptions
from berth.cli.option_groups import expand_options
from berth.cli.options import flag, option
from berth.live.home import UnreachableError
from berth.units import seconds

if TYPE_CHECKING:
    from berth.live.client import Client

T = TypeVar("T")
Patience = Annotated[str, option("TIME", "How long to wait for a controller that is down.")]

EXAMPLE = "berth logs --follow j17"
WAIT_EXAMPLE = "berth wait j17 && echo fine"
_ENDED = ("finished", "failed", "cancelled")
_POLL_S = 0.5
FAILED_CODE = 1


class _RetryingClient:
    """A client that repeats requests while the controller does not answer."""

    def __init__(self, client: Client, patience_s: float) -> None:
        self._client, self._patience_s = client, patience_s

    def get(self, *path: str) -> Any:
        """Read JSON."""
        return self._retry(lambda: self._client.get(*path))

    def text(self, *path: str, **query: Any) -> tuple[str, dict[str, str]]:
        """Read text, with the headers of the response."""
        return self._retry(lambda: self._client.text(*path, **query))

    def _retry(self, request: Callable[[], T]) -> T:
        down_since: float | None = None
        while True:
            try:
                return request()
            except UnreachableError as error:
                now = time.monotonic()
                if down_since is None and self._patience_s:
                    typer.echo(f"{error.what}; asking again", err=True)
                down_since = down_since or now
                if now - down_since >= self._patience_s:
                    raise
                time.sleep(_POLL_S)


@expand_options
def logs(
    *,
    job: JobName,
    follow: Annotated[bool, flag("Continue until the job has ended.", "--follow", "-f")] = False,
    attempt: Annotated[int | None, option("N", "Number of the attempt.", min=1, shown="the last")] = None,
    rank: Annotated[int, option("N", "Rank of the process.", min=0)] = 0,
    patience: Patience = "10m",
    controller: Controller,
) -> None:
    """Print the output of a job; with --follow, also across restarts of the controller."""
    client = _RetryingClient(controller.client(), seconds(patience) if follow else 0.0)
    offset, shown, waiting_noted = 0, attempt, False
    while True:
        row = client.get("jobs", job) if follow else None
        if row is not None and not (waiting_noted or row["attempts"] or row["state"] in _ENDED):
            typer.echo(f"{row['id']} is {row['state']}; its output follows (berth why {row['id']})", err=True)
            waiting_noted = True
        if row is not None and attempt is None and row["attempts"] != shown:
            if shown:
                typer.echo(f"--- attempt {row['attempts']} ---", err=True)
            shown, offset = row["attempts"], 0
        text, headers = client.text("jobs", job, "logs", attempt=shown or None, rank=rank, offset=offset)
        offset = int(headers.get("x-next-offset", offset))
        typer.echo(text, nl=False)
        if text:
            continue
        if row is None or row["state"] in _ENDED:
            return
        time.sleep(_POLL_S)


@expand_options
def wait(*, job: JobName, patience: Patience = "10m", options: LiveOptions) -> None:
    """Wait until a job has ended, also across restarts of the controller, and exit with its code.

    Exit code 75: the controller has not answered for the time of --patience; the job may still run.
    """
    client = _RetryingClient(options.client(), seconds(patience))
    while (row := client.get("jobs", job))["state"] not in _ENDED:
        time.sleep(_POLL_S)
    options.show(row, f"{row['id']} {row['state']}", err=True)
    raise typer.Exit(row["code"] or (0 if row["state"] == "finished" else FAILED_CODE))
