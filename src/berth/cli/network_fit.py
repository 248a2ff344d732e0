"""`berth network fit`: fits a step-time model to measurements and reports its errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli.options import AsJson, Force, argument, option
from berth.cli.output import check_output
from berth.errors import InputError
from berth.report.terminal import console, print_json, table
from berth.units import format_seconds

if TYPE_CHECKING:
    from berth.arrays import FloatArray
    from berth.network.fit import StepTimeFit
    from berth.network.measurements import Measurements

EXAMPLES = ("berth network fit measurements.csv --out fitted.yaml",)
_WORST = 5
_GPUS = (1, 2, 4, 8, 16, 32)
_MACHINES = (1, 2, 4, 8)
_MODELLED = "Modelled. -: that distance was not measured; *: beyond what was measured."


def fit(
    file: Annotated[
        str, argument("FILE", "CSV: placement (or gpus,machines), step_time[, local_bsz, model].")
    ],
    leave_out: Annotated[int, option("N", "Parts: each is left out once and predicted.", min=2)] = 5,
    seed: Annotated[int, option("N", "Which shapes fall into which part.", min=0)] = 0,
    out: Annotated[str | None, option("FILE", "Write the fitted numbers to this YAML file.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit a step-time model to measured placements and predict others.

    `placement` lists GPUs per machine: 4+4+12, or one digit per machine (1124; 16 is 1 and 6, not sixteen).
    """
    from berth.network.fit import fit_step_time, left_out_errors
    from berth.network.measurements import read_measurements
    from berth.network.step_time import save_models

    check_output(out, force, option="--out")
    answers = []
    for model, rows in read_measurements(file).items():
        try:
            found = fit_step_time(rows, model)
        except InputError as error:
            raise InputError(f"{model}: {error.what}", where=file, hint=error.hint) from None
        answers.append((rows, found, left_out_errors(rows, leave_out, seed)))
    if out is not None:
        save_models([found.model for _, found, _ in answers], out)
    if as_json:
        print_json({"file": file, "models": [_document(*answer) for answer in answers]})
        return
    for answer in answers:
        _print(*answer)
    if out is not None:
        typer.echo(f"wrote {out}")


def _print(rows: Measurements, found: StepTimeFit, left_out: FloatArray) -> None:
    screen = console()
    shapes = len(set(rows.shapes.tolist()))
    screen.print(f"[bold]{found.model.name}[/bold]: {len(rows)} runs of {shapes} shapes (GPUs, machines)\n")
    screen.print(table("Fitted numbers", ["number", "meaning", "value", "±"], _numbers(found), left=2))
    for sentence in _remarks(found, left_out):
        screen.print(f"- {sentence}", markup=False)
    screen.print(table("Relative error", ["", "median", "p90"], _errors(found, left_out)))
    worst = [(place, f"{100 * error:.1f}%") for place, error in _worst(rows, found, left_out)]
    screen.print(table("Worst placements", ["GPUs per machine", "median error"], worst))
    columns = ["GPUs", *(f"{machines} machine{'s' * (machines > 1)}" for machines in _MACHINES)]
    screen.print(table(_title(found), columns, _predictions(rows, found)))
    screen.print(_MODELLED + "\n", markup=False)


def _numbers(found: StepTimeFit) -> list[tuple[str, str, str, str]]:
    from berth.network.step_time import NUMBERS

    result = []
    for number, meaning in NUMBERS.items():
        value = getattr(found.model, number)
        error = _shown(number, found.deviation[number]) if number in found.deviation else "fixed"
        shown = "unknown" if value is None else _shown(number, value)
        result.append((number, meaning, shown, "" if value is None else error))
    return result


def _shown(number: str, value: float) -> str:
    from berth.network.step_time import TIMES

    return format_seconds(value) if number in TIMES else f"{value:.3f}"


def _remarks(found: StepTimeFit, left_out: FloatArray) -> list[str]:
    """Remarks: numbers that are fixed, unknown or loose, rows that can't be predicted."""
    import numpy as np

    result = []
    for number, why in found.fixed.items():
        value = getattr(found.model, number)
        result.append(f"{number} is {'unknown' if value is None else f'fixed at {value:g}'}: {why}.")
    for number, error in found.deviation.items():
        if error > getattr(found.model, number):
            result.append(f"{number} is loose (± above its value): these rows hardly depend on it.")
    unpredicted = int(np.isnan(left_out).sum())
    if unpredicted:
        result.append(
            f"{unpredicted} of {len(left_out)} runs can't be predicted once their shape is left out."
        )
    return result


def _errors(found: StepTimeFit, left_out: FloatArray) -> list[tuple[str, str, str]]:
    from berth.network.fit import quantiles

    def row(name: str, errors: FloatArray) -> tuple[str, str, str]:
        median, p90 = quantiles(errors)
        known = not math.isnan(median)
        return (name, f"{100 * median:.1f}%", f"{100 * p90:.1f}%") if known else (name, "unknown", "unknown")

    return [row("fitted", found.errors), row("left out", left_out)]


def _worst(rows: Measurements, found: StepTimeFit, left_out: FloatArray) -> list[tuple[str, float]]:
    """Placements with the largest left-out error; with the fitted one where there is none."""
    import numpy as np

    errors = np.where(np.isnan(left_out), found.errors, left_out)
    labels = np.array(rows.labels)
    medians = [(str(label), float(np.median(errors[labels == label]))) for label in np.unique(labels)]
    return sorted(medians, key=lambda pair: -pair[1])[:_WORST]


def _predictions(rows: Measurements, found: StepTimeFit) -> list[list[str]]:
    """Step times of even placements, with a star where it is an extrapolation."""
    result = []
    for gpus in _GPUS:
        cells = [str(gpus)]
        for machines in _MACHINES:
            value = float(found.model.predict([gpus], [machines])[0])
            beyond = gpus > rows.gpus.max() or machines > rows.machines.max()
            shown = "-" if math.isnan(value) else format_seconds(value) + ("*" if beyond else "")
            cells.append(shown if machines <= gpus else "")
        result.append(cells)
    return result


def _title(found: StepTimeFit) -> str:
    batch = found.model.batch
    return "Predicted step time" + (f" at a batch of {batch:g} per GPU" if batch is not None else "")


def _document(rows: Measurements, found: StepTimeFit, left_out: FloatArray) -> dict[str, Any]:
    import numpy as np

    from berth.network.fit import quantiles
    from berth.network.step_time import NUMBERS

    def score(errors: FloatArray) -> dict[str, float | None]:
        return {
            name: None if math.isnan(value) else value
            for name, value in zip(("median", "p90"), quantiles(errors), strict=True)
        }

    pairs = [(gpus, machines) for gpus in _GPUS for machines in _MACHINES if machines <= gpus]
    predicted = found.model.predict(*zip(*pairs, strict=True))
    return {
        "model": found.model.name,
        "runs": len(rows),
        "reference_batch": found.model.batch,
        "numbers": {number: getattr(found.model, number) for number in NUMBERS},
        "standard_error": found.deviation,
        "fixed": found.fixed,
        "fitted": score(found.errors),
        "left_out": score(left_out) | {"unpredicted": int(np.isnan(left_out).sum())},
        "worst": [{"placement": place, "error": error} for place, error in _worst(rows, found, left_out)],
        "predicted": [
            {"gpus": gpus, "machines": machines, "seconds": None if math.isnan(value) else value}
            for (gpus, machines), value in zip(pairs, predicted.tolist(), strict=True)
        ],
    }
