"""`berth evaluate`: the metrics of a trained model on held-out data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from berth.cli.options import AsJson, argument, flag, option
from berth.cli.output import notify
from berth.cli.progress import progress_bar
from berth.cli.quantities import read_positive
from berth.errors import InputError
from berth.report import terminal
from berth.units import amount, format_count

if TYPE_CHECKING:
    from berth.train.data import Batch
    from berth.train.inference import SavedRun

EXAMPLES = (
    "berth evaluate run1 --data test.parquet",
    "berth evaluate run1 mine.py:make_model --data test/ --best --json",
    "berth evaluate run1 --examples 100k",
)

Checkpoint = Annotated[str, argument("DIR", "Folder of checkpoints (`berth train --checkpoint`).")]
ModelOfRun = Annotated[
    str | None, argument("MODEL", "The model, as for `berth train`.", shown="the zoo model of the checkpoint")
]
Step = Annotated[int | None, option("N", "Step of the checkpoint.", shown="the newest")]
Best = Annotated[bool, flag("Use the checkpoint of the best evaluation.", "--best")]


def evaluate(
    checkpoint: Checkpoint,
    model: ModelOfRun = None,
    data: Annotated[
        str | None, option("PATH", "Criteo TSV (.gz, .xz, .zst), Parquet, or a folder of them.")
    ] = None,
    examples: Annotated[str | None, option("N", "Held-out examples of generated data instead.")] = None,
    step: Step = None,
    best: Best = False,
    strict: Annotated[bool, flag("Stop at the first unreadable row.", "--strict")] = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint: AUC, log loss and calibration. No rows are created."""
    from berth.train.evaluate import score

    if (data is None) == (examples is None):
        raise InputError("there is no data to evaluate on", hint="give --data PATH or --examples N, not both")
    run = open_saved(checkpoint, model, step, best)
    source = run.files(data, strict=strict) if data is not None else None
    held_out = source or run.held_out(round(read_positive("--examples", amount, examples or "")))
    found = score(run.model, shown_progress(run.batches(held_out))).evaluation(run.step)
    bad = source.bad_rows if source is not None else 0
    if as_json:
        terminal.print_json({"checkpoint": checkpoint, **found.to_json(), "bad_rows": bad})
        return
    out = terminal.console()
    rows = [["examples", f"{found.examples:,}"], ["loss", f"{found.loss:.6f}"]]
    if found.auc == found.auc:
        rows += [["AUC", f"{found.auc:.6f}"], ["log loss", f"{found.log_loss:.6f}"]]
        rows += [
            ["mean prediction", f"{found.mean_prediction:.6f}"],
            ["click rate", f"{found.click_rate:.6f}"],
        ]
        rows += [["calibration", f"{found.calibration:.4f}"]]
    for number, task in enumerate(found.tasks, 1):
        rows += [[f"task {number} {name.replace('_', ' ')}", f"{value:.6f}"] for name, value in task.items()]
    out.print(terminal.table(f"{checkpoint} after step {run.step:,}", ["metric", "value"], rows))
    if bad:
        out.print(f"{format_count(bad, 'row')} could not be read and {'was' if bad == 1 else 'were'} skipped")


def open_saved(folder: str, model: str | None, step: int | None, best: bool) -> SavedRun:
    """Return the run of a checkpoint."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from berth.train.inference import open_run

    if best and step is not None:
        raise InputError("--best and --step exclude each other", hint="give one of them")
    return open_run(folder, model, step="best" if best else step, notify=notify)


def shown_progress(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches, and show how many examples were read."""
    done = 0
    with progress_bar("examples") as update:
        for batch in batches:
            yield batch
            done += batch.examples
            _update(update, done)


def _update(update: Any, done: int) -> None:
    if update is not None:
        update(done, None)
