"""A small training that tests start, kill and go on with, in children of this process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from berth.train import fault_points
from berth.train.embedding import Embedding
from berth.train.options import Checkpoints, TrainOptions
from berth.train.session import Session
from berth.train.tables import adagrad

STEPS = 12


class Small(torch.nn.Module):
    """Dropout, so that the random state matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.rows = Embedding(4, optimiser=adagrad(0.05))
        self.top = torch.nn.Sequential(
            torch.nn.Linear(26 * 4 + 13, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        )

    def forward(self, inputs):
        rows = self.rows(inputs["slots"]).flatten(1)
        return self.top(torch.cat([rows, inputs["dense"]], dim=1)).squeeze(1)


def train(
    folder: Path,
    log: Path | None = None,
    *,
    model: torch.nn.Module | None = None,
    steps: int = STEPS,
    every: int = 3,
    batch: int = 64,
    **options,
) -> Session:
    """Trains to `steps` and closes nothing; `log` gets a line for every step, before the step is saved."""
    how = Checkpoints(folder, every=every, full_every=3, keep=2)
    parts = {name: options.pop(name) for name in ("store", "notify") if name in options}
    callbacks = [LossLog(log)] if log else []
    options = TrainOptions(batch=batch, checkpoints=how, **options)
    session = Session(model or Small(), options=options, callbacks=callbacks, **parts)
    session.run(steps)
    return session


class LossLog:
    """A file with a line for every step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        with self.path.open("a") as lines:
            lines.write(f"{metrics['step']} {metrics['loss'].hex()}\n")


def in_child(work: Callable[[], object], fault: str | None = None) -> int:
    """Runs it in a fork of this process; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if fault is not None:
                os.environ[fault_points.VARIABLE] = fault
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - shown, and reported by the exit code
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def losses(log: Path) -> dict[int, str]:
    """Step: loss, of the last time it was taken."""
    return {int(step): loss for step, loss in (line.split() for line in log.read_text().splitlines())}
