"""Figures of a training over time, for other programs: a CSV file, TensorBoard."""

from __future__ import annotations

import csv
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from berth.errors import InputError
from berth.train.metrics import Progress

COLUMNS = (
    "step", "examples", "loss", "auc", "training_auc", "examples_per_s", "cpu_ms_per_1000", "hit_rate", "moved_bytes",
)  # fmt: skip


class Log(Protocol):
    """Takes a line of figures now and then."""

    def write(self, figures: dict[str, float]) -> None:
        """One line."""
        ...

    def close(self) -> None:
        """No more come."""
        ...


def figures(progress: Progress, statistics: Any) -> dict[str, float]:
    """What is told of a training at one moment."""
    return {
        "step": progress.step,
        "examples": progress.examples,
        "loss": progress.loss,
        "auc": progress.auc,
        "training_auc": progress.training_auc,
        "examples_per_s": progress.examples_per_s,
        "cpu_ms_per_1000": progress.cpu_ms_per_1000,
        "hit_rate": hit_rate(statistics),
        "moved_bytes": sum(table.get("moved_bytes", 0) for table in statistics["tables"].values()),
    }


def hit_rate(statistics: Any) -> float:
    """Share of pulled keys whose row was in memory, over all tables."""
    pulled = sum(table["counts"]["pulled"] for table in statistics["tables"].values())
    missed = sum(table["counts"]["missed"] for table in statistics["tables"].values())
    return 1.0 - missed / pulled if pulled else 1.0


class CsvLog:
    """A line for every call. A training resumed from a step goes on in the same file, after the line of that step:
    later lines are cut off, so every step has one line."""

    def __init__(self, path: str | Path, step: int = 0) -> None:
        try:
            if Path(path).exists():
                os.truncate(path, _end_of(Path(path), step))
            self._file = Path(path).open("a", newline="", encoding="utf-8")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise InputError(f"can't be written: {error.strerror}", where=str(path)) from None
        self._rows = csv.writer(self._file)
        if self._file.tell() == 0:
            self._rows.writerow(COLUMNS)

    def write(self, figures: dict[str, float]) -> None:
        """Not a number is an empty field."""
        self._rows.writerow(
            ["" if math.isnan(figures[name]) else f"{figures[name]:.10g}" for name in COLUMNS]
        )
        self._file.flush()

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


def _end_of(path: Path, step: int) -> int:
    """Where the lines up to this step end: 0 if there are none, and the header is written again."""
    end = at = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
        at += len(line)
        if number and not _is_up_to(line, step):
            break
        end = at if number else 0
    return end


def _is_up_to(line: bytes, step: int) -> bool:
    """Whether it is a whole line of a step that is not later."""
    first = line.partition(b",")[0]
    return line.endswith(b"\n") and first.isdigit() and int(first) <= step


class TensorBoardLog:
    """Scalars by step, for `tensorboard --logdir`; of a resumed training those after its step are hidden."""

    def __init__(self, folder: str | Path, step: int = 0) -> None:
        if find_spec("tensorboard") is None:
            raise InputError(
                "--tensorboard needs tensorboard", hint="pip install tensorboard, or use --csv FILE"
            )
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, figures: dict[str, float]) -> None:
        """All but the step."""
        for name in COLUMNS[1:]:
            if not math.isnan(figures[name]):
                self._writer.add_scalar(name, figures[name], int(figures["step"]))

    def close(self) -> None:
        """On the disk."""
        self._writer.close()
