"""Metrics of a run over time, as CSV or for TensorBoard."""

from __future__ import annotations

import contextlib
import csv
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from berth.errors import InputError
from berth.train.metrics import Progress

if TYPE_CHECKING:
    from berth.train.evaluate import Evaluation

COLUMNS = (
    "step", "examples", "loss", "auc", "training_auc", "examples_per_s", "cpu_ms_per_1000", "hit_rate", "moved_bytes",
    "rows", "eval_auc", "eval_loss",
)  # fmt: skip


class Log(Protocol):
    """A destination of metrics."""

    def write(self, metrics: dict[str, float]) -> None:
        """Write the metrics of one moment."""
        ...

    def close(self) -> None:
        """Close the log."""
        ...


def current_metrics(
    progress: Progress, statistics: Any, evaluation: Evaluation | None = None
) -> dict[str, float]:
    """Return the current metrics of a run, with those of its last evaluation."""
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
        "rows": sum(table["rows"] for table in statistics["tables"].values()),
        "eval_auc": evaluation.auc if evaluation is not None else math.nan,
        "eval_loss": evaluation.loss if evaluation is not None else math.nan,
    }


def hit_rate(statistics: Any) -> float:
    """Return the share of pulled keys whose row was in memory, over all tables."""
    pulled = sum(table["counts"]["pulled"] for table in statistics["tables"].values())
    missed = sum(table["counts"]["missed"] for table in statistics["tables"].values())
    return 1.0 - missed / pulled if pulled else 1.0


class CsvLog:
    """A CSV file. A resumed run continues in the same file, with its columns; lines after its step are removed."""

    def __init__(self, path: str | Path, step: int = 0) -> None:
        try:
            self._columns = _columns(Path(path))
            if Path(path).exists():
                os.truncate(path, _end_of(Path(path), step))
            self._file = Path(path).open("a", newline="", encoding="utf-8")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise InputError(f"can't be written: {error.strerror}", where=str(path)) from None
        self._rows = csv.writer(self._file)
        if self._file.tell() == 0:
            self._columns = COLUMNS
            self._rows.writerow(COLUMNS)

    def write(self, metrics: dict[str, float]) -> None:
        """Write one line; NaN is an empty field."""
        try:
            self._rows.writerow(
                ["" if math.isnan(metrics[name]) else f"{metrics[name]:.10g}" for name in self._columns]
            )
            self._file.flush()
        except OSError as error:
            raise InputError(f"can't be written: {error.strerror}", where=self._file.name) from None

    def close(self) -> None:
        """Close the file; what a full disk does not hold is lost."""
        with contextlib.suppress(OSError):
            self._file.close()


def _columns(path: Path) -> tuple[str, ...]:
    """Return the columns of a file, or all if there is none; those of another program raise an error."""
    if not path.exists() or path.stat().st_size == 0:
        return COLUMNS
    with path.open(encoding="utf-8", errors="replace") as file:
        found = tuple(file.readline().rstrip("\r\n").split(","))
    if not set(found) <= set(COLUMNS):
        raise InputError("has columns of another program", where=str(path), hint="name another file")
    return found


def _end_of(path: Path, step: int) -> int:
    """Return the end of the lines up to this step; 0 if there are none."""
    end = at = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
        at += len(line)
        if number and not _is_up_to(line, step):
            break
        end = at if number else 0
    return end


def _is_up_to(line: bytes, step: int) -> bool:
    """Return whether this is a complete line of a step up to `step`."""
    first = line.partition(b",")[0]
    return line.endswith(b"\n") and first.isdigit() and int(first) <= step


class TensorBoardLog:
    """Scalars for TensorBoard; a resumed run hides those after its step."""

    def __init__(self, folder: str | Path, step: int = 0) -> None:
        if find_spec("tensorboard") is None:
            raise InputError(
                "--tensorboard needs tensorboard", hint="pip install tensorboard, or use --csv FILE"
            )
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, metrics: dict[str, float]) -> None:
        """Write the metrics."""
        for name in COLUMNS[1:]:
            if not math.isnan(metrics[name]):
                self._writer.add_scalar(name, metrics[name], int(metrics["step"]))

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
