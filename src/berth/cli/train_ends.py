"""How `berth train` ends before it is done: by a key, or because another of its processes is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from berth.train.session import Session


@contextmanager
def ended_by_key(session: Session, *, quiet: bool = False) -> Iterator[None]:
    """Ctrl-C: one line about how to go on, exit code 130. A second one waits for nothing."""
    from berth.train.interruption import Stopped
    from berth.train.launch import INTERRUPTED, how_to_go_on

    try:
        yield
    except Stopped as stopped:
        if not quiet:
            typer.echo(f"stopped at step {stopped.step:,}{how_to_go_on(stopped.saved)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        session.abandon()
        if not quiet:
            typer.echo("ended at once; what was saved before stands", err=True)
        os._exit(INTERRUPTED)  # what is being written is not waited for


@contextmanager
def in_company() -> Iterator[None]:
    """A process that loses another ends at once: the launcher knows which, and starts all of them again."""
    from berth.errors import ServerError
    from berth.train.launch import LOST_ANOTHER

    try:
        yield
    except ServerError as error:
        if "BERTH_TRAIN_ATTEMPT" not in os.environ:
            typer.echo(f"error: {str(error).splitlines()[0]}", err=True)
        os._exit(LOST_ANOTHER)  # nothing that waits for the others may hold it up
