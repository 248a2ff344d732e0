"""The cells of a sweep as tasks of Ray: on the cluster of RAY_ADDRESS, or on a Ray of this machine that ends with it.

A task returns what `run_cell` returns here, so where a cell ran does not change its figures. Other machines need the
same berth, policy and files: a cell names the code and the content it is for, and a task with others is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from berth.errors import InputError
from berth.extras import require
from berth.simulate.sweep import Cell, Row, code_of, run_cell

_RETRIES = 2  # of a cell whose machine is lost


def results_on_ray(cells: Sequence[Cell], workers: int) -> Iterator[Row]:
    """Yields the rows of cells as they finish; `workers`: processes of a Ray of this machine."""
    require("ray", "--on ray")
    import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(ray, workers)
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(run_same_code)
    waiting: list[Any] = []
    try:
        waiting += (task.remote(cell) for cell in cells)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            yield _row(ray, done[0])
    finally:
        for left in waiting:
            ray.cancel(left, force=True)
        if ours:
            ray.shutdown()


def _connect(ray: Any, workers: int) -> None:
    address = os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            ray.init(address, **quiet)
        else:
            ray.init(num_cpus=workers, include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"Ray at {address}" if address else "a Ray of this machine"
        hint = "check RAY_ADDRESS, or leave it unset to start a Ray here" if address else None
        raise InputError(f"--on ray: can't connect to {where}: {error}", hint=hint) from None


def _row(ray: Any, reference: Any) -> Row:
    """The row of a finished task; what a user can fix is raised as it would be here."""
    try:
        row: Row = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise error.cause from None
        raise
    return row


def run_same_code(cell: Cell) -> Row:
    """Plays a cell where the engine, the policy and the files are those that it was made for."""
    if code_of(cell.policy, cell.cluster, cell.mix) != cell.code:
        raise InputError(
            f"--on ray: a machine of the cluster has another version of berth, of the policy {cell.policy} or of "
            "the files of cluster and mix",
            hint="install the same version on all machines, with the same files at the same paths",
        )
    return run_cell(cell)
