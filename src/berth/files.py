"""Output files that are complete or unchanged."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berth.errors import InputError

if TYPE_CHECKING:
    import polars as pl


def is_stream(path: str | Path) -> bool:
    """Whether a path is a character device or a FIFO, such as /dev/null: written to directly, never replaced."""
    return Path(path).is_char_device() or Path(path).is_fifo()


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary file that replaces `path`, or the file that it links to, when the block succeeds.

    A stream is yielded itself. An OSError in the block is an InputError.
    """
    target = Path(os.path.realpath(path))
    direct = is_stream(path)
    part = Path(path) if direct else target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        if not direct:
            part.replace(target)
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", where=str(path)) from None
    finally:
        if not direct:
            with suppress(OSError):  # in a folder that is gone, or not one, there is nothing to remove
                part.unlink()


def write_parquet(frame: pl.DataFrame, path: str | Path, **options: Any) -> None:
    """Write a table by way of memory: polars raises errors of its own on a full disk, without the reason."""
    packed = BytesIO()
    frame.write_parquet(packed, **options)
    with whole_file(path) as part:
        part.write_bytes(packed.getbuffer())
