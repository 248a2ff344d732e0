"""`berth predict`: the predictions of a trained model, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from berth.cli.evaluate import Best, Checkpoint, ModelOfRun, Step, open_saved, shown_progress
from berth.cli.options import AsJson, Force, option
from berth.cli.output import check_output
from berth.errors import InputError
from berth.files import whole_file, write_parquet
from berth.report import terminal

EXAMPLES = (
    "berth predict run1 --data test.parquet --out predictions.parquet",
    "berth predict run1 mine.py:make_model --data test/ --out predictions.csv --best",
)
_SUFFIXES = (".parquet", ".csv")


def predict(
    checkpoint: Checkpoint,
    model: ModelOfRun = None,
    data: Annotated[
        str, option("PATH", "Criteo TSV, Parquet, or a folder of them.", show_default=False)
    ] = "",
    out: Annotated[str, option("FILE", "File to write, .parquet or .csv.", show_default=False)] = "",
    step: Step = None,
    best: Best = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the predicted probability of a click, and the label, of every row, in the order of the data."""
    from berth.train.evaluate import predict as predictions_of

    if not data or not out:
        raise InputError("predict reads --data and writes --out", hint="give both: --data PATH --out FILE")
    if Path(out).suffix not in _SUFFIXES:
        raise InputError(f"--out {out}: the name must end in .parquet or .csv")
    check_output(out, force, option="--out")
    run = open_saved(checkpoint, model, step, best)
    source = run.files(data, strict=True, shuffled=False)
    try:
        found = [
            (values, batch.labels.numpy())
            for batch, values in predictions_of(run.model, shown_progress(run.batches(source)))
        ]
    except InputError as error:
        if error.hint is not None and "--strict" in error.hint:
            error.hint = "predictions follow the rows of the data: fix or remove this one"
        raise
    rows = _write(out, found, source.layout.labels)
    if as_json:
        terminal.print_json({"checkpoint": checkpoint, "step": run.step, "rows": rows, "file": out})
        return
    terminal.console().print(
        f"{out}: {rows:,} predictions of {checkpoint} after step {run.step:,}", markup=False, highlight=False
    )


def _write(path: str, parts: list[tuple[Any, Any]], names: tuple[str, ...]) -> int:
    import numpy as np
    import polars as pl

    predictions, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    columns = {"prediction": predictions, "label": labels}
    if predictions.ndim > 1:
        columns = {f"prediction of {name}": predictions[:, task] for task, name in enumerate(names)}
        columns |= {name: labels[:, task] for task, name in enumerate(names)}
    frame = pl.DataFrame(columns)
    if path.endswith(".csv"):
        with whole_file(path) as part:
            frame.write_csv(part)
    else:
        write_parquet(frame, path)
    return len(frame)
