"""How verbs that take long say that they are at it: on a terminal's standard error, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

COMPILING = "compiling kernels (once, about a minute)"


@contextmanager
def progress_bar(text: str) -> Iterator[Any]:
    """A bar that is gone when the work is done: told how much of how much, and what it is at; or None."""
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

        def tell(done: int, total: int | None, what: str = text) -> None:
            bar.update(task, completed=done, total=total or None, description=what)

        yield tell


@contextmanager
def spinner(text: str, *, elsewhere: bool = False) -> Iterator[Callable[[str], None] | None]:
    """Something of unknown length; told what it is at. Where nobody watches: one line, if it is wanted."""
    if not sys.stderr.isatty():
        if elsewhere:
            typer.echo(text, err=True)
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update
