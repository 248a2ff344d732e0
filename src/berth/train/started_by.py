"""What started this process, and whether it has started the same run before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from berth.train.attempt import is_store_of_agent
from berth.train.rendezvous import torchrun_name

LAUNCHER = "BERTH_TRAIN_LAUNCHER"  # its name, which workers have in common over all attempts
TORCHRUN = "TORCHELASTIC_RUN_ID"
_JOBS = {"BERTH_JOB": "berth job", "SLURM_JOB_ID": "Slurm job"}  # the outermost first
_ATTEMPTS = {"BERTH_ATTEMPT": "1", "SLURM_RESTART_COUNT": "0"}  # by variable: that of the first one
_TORCHRUN_ATTEMPT = {"TORCHELASTIC_RESTART_COUNT": "0"}


@dataclass(frozen=True, slots=True)
class StartedBy:
    """The job of a process, and the program of the job that runs it."""

    job: str  # started again as a whole; "" if nothing would
    attempt: str  # of the job
    is_restart: bool  # of the job
    # no other has this name: torchrun or the launcher, over their restarts, or else this process
    program: str


def started_by() -> StartedBy:
    """Return what started this process; under torchrun its key-value store is asked for the name."""
    job = next(_jobs(), "")
    attempt = [os.environ.get(name, first) for name, first in _attempts().items()]
    is_restart = attempt != list(_attempts().values())
    return StartedBy(job, " ".join(attempt) if job else "", is_restart, _program())


def _jobs() -> Iterator[str]:
    """Yield the jobs of this process; torchrun is one if it started the launcher, so that its store is not known."""
    names = _JOBS if is_store_of_agent() else {**_JOBS, TORCHRUN: "torchrun"}
    return (f"{what} {os.environ[name]}" for name, what in names.items() if name in os.environ)


def _attempts() -> dict[str, str]:
    """Return the variables that number attempts of the job, with those of the first one."""
    return _ATTEMPTS if is_store_of_agent() else {**_ATTEMPTS, **_TORCHRUN_ATTEMPT}


def _program() -> str:
    if is_store_of_agent():
        return f"torchrun {torchrun_name()}"
    if LAUNCHER in os.environ:
        return f"launcher {os.environ[LAUNCHER]}"
    return _process_name(os.getpid())


@cache
def _process_name(pid: int) -> str:
    return f"process {pid} {secrets.token_hex(8)}"
