"""Output files, checked before a command runs, and notices on standard error."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from berth.errors import InputError
from berth.files import is_stream, whole_file
from berth.report.terminal import printable


def notify(text: str) -> None:
    """Print a line to standard error."""
    typer.echo(printable(text), err=True)


def check_output(path: str | None, force: bool, *, option: str) -> None:
    """Raise an InputError for a file that can't be written or already exists."""
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise InputError("is a folder, not a file", where=path, hint=f"{option} names a file to write")
    stream = is_stream(target)
    if target.exists() and not stream and not target.is_file():
        raise InputError(
            "is a device or a socket, not a file", where=path, hint=f"{option} names a file to write"
        )
    if target.exists() and not stream and not force:
        raise InputError("exists already", where=path, hint="choose another name, or give --force")
    leads_to = Path(os.path.realpath(path))
    if leads_to.is_symlink():
        raise InputError("can't be written: its symbolic links lead to themselves", where=path)
    folder = leads_to.parent
    if not stream and not folder.is_dir():
        raise InputError("can't be written: there is no such folder", where=path)
    if not os.access(target if target.exists() else folder, os.W_OK):
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
