"""Output files that are complete or unchanged."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from berth.errors import InputError

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def is_stream(path: str | Path) -> bool:
    """Whether a path is a character device or a FIFO, such as /dev/null: written to directly, never replaced."""
    return Path(path).is_char_device() or Path(path).is_fifo()


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary file that replaces `path`, or the file that it links to, when the block succeeds.

    What is a stream is yielded itself. An error of the system in the block is an InputError.
    """
    target = Path(os.path.realpath(path))
    direct = is_stream(path)
    part = Path(path) if direct else target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        if not direct:
            part.replace(target)
    except Exception as error:
        if (reason := _reason(error)) is None:
            raise
        raise InputError(f"can't be written: {reason}", where=str(path)) from None
    finally:
        if not direct:
            with suppress(OSError):  # in a folder that is gone, or not one, there is nothing to remove
                part.unlink()


def _reason(error: Exception) -> str | None:
    """What the system says; None for other errors. Polars reports a full disk in the text of an error of its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if found := _OS_ERROR.search(str(error)):
        return os.strerror(int(found[1]))
    return str(error) if isinstance(error, OSError) else None
