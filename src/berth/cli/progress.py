"""Progress of long commands, on standard error and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import typer

COMPILING = "compiling kernels (once, up to half a minute)"
_noted: list[str] = []  # why compiled code can't be kept, once it is printed
_COMPILING_AGAIN = "compiling kernels (up to half a minute)"


@contextmanager
def compiling(package: str, kernels: str) -> Iterator[None]:
    """A spinner while kernels are compiled, if no file of theirs is cached; afterwards a note if they can't be kept."""
    from berth.native import cache

    kept = cache.lock_folder(package)
    cold = not kept or not any(cache.package_folder(package).rglob(kernels))
    with spinner(COMPILING if kept else _COMPILING_AGAIN, elsewhere=True) if cold else nullcontext():
        yield
    note_write_failure()


def note_write_failure() -> None:
    """Print why compiled code can't be kept for the next run, if it can't."""
    from berth.native import cache

    if (why := cache.write_failure()) is not None and not _noted:
        _noted.append(why)
        typer.echo(
            f"note: compiled code can't be kept in {cache.cache_folder()}: {why}; "
            "set NUMBA_CACHE_DIR to a folder that can be written",
            err=True,
        )


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
