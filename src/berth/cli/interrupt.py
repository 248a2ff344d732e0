"""What a command says after Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from berth.errors import INTERRUPTED


@contextmanager
def report_interrupt(kept: Callable[[], str] | None = None) -> Iterator[None]:
    """After Ctrl-C, print that the command has stopped, with what is `kept`, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped" if kept is None else f"stopped; {kept()}", err=True)
        raise typer.Exit(INTERRUPTED) from None
