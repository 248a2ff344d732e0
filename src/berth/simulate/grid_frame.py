"""A sweep as one call that returns a data frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from berth.simulate.sweep import Grid, sweep, sweep_frame


def run_grid(
    grid: Grid,
    file: str | Path | None = None,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """Run every cell of a grid; one row per run, with what went into it and every figure.

    Finished cells are kept in `file` and not run again. A script that gives more than one worker needs the usual
    `if __name__ == "__main__"`, since each worker imports it.
    """
    rows = sweep(grid.cells(), None if file is None else Path(file), workers=workers, progress=progress)
    return sweep_frame(rows)
