"""Output files, checked before a command runs, and notices on standard error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from berth.errors import InputError


def notify(text: str) -> None:
    """Print a line to standard error."""
    typer.echo(text, err=True)


def check_output(path: str | None, force: bool, *, option: str) -> None:
    """Raise an InputError for a file that can't be written or already exists."""
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise InputError("is a folder, not a file", where=path, hint=f"{option} names a file to write")
    if target.exists() and not force:
        raise InputError("exists already", where=path, hint="choose another name, or give --force")
    if not target.parent.is_dir():
        raise InputError("can't be written: there is no such folder", where=path)
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise InputError("can't be written: not allowed", where=path)


def check_folder(path: str | None, *, option: str) -> None:
    """Raise an InputError for an output folder that is a file, or below one."""
    if path is None:
        return
    for place in (Path(path), *Path(path).parents):
        if place.exists():
            if not place.is_dir():
                raise InputError("is a file, not a folder", where=str(place), hint=f"{option} names a folder")
            return


def write_text(path: str, text: str) -> None:
    """Write a text file atomically."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(path: str) -> Iterator[Path]:
    """A temporary file that replaces `path` when the block succeeds."""
    part = Path(f"{path}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", where=path) from None
    finally:
        part.unlink(missing_ok=True)
