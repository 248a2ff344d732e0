"""Progress of long commands, on standard error and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

COMPILING = "compiling kernels (once, up to half a minute)"


@contextmanager
def progress_bar(text: str) -> Iterator[Any]:
    """A transient progress bar; yields `update(done, total, what)`, or None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(text, total=None)

        def update(done: int, total: int | None, what: str = text) -> None:
            bar.update(task, completed=done, total=total or None, description=what)

        yield update


@contextmanager
def spinner(text: str, *, elsewhere: bool = False) -> Iterator[Callable[[str], None] | None]:
    """A spinner; yields `update(text)`. Without a terminal: None, and one line if `elsewhere`."""
    if not sys.stderr.isatty():
        if elsewhere:
            typer.echo(text, err=True)
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update
