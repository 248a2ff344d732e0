"""A step-time model with few numbers, fitted to measured placements.

n GPUs on m machines, l = batch per GPU / the reference batch:

    c    = base + per_batch * l + per_batch_squared * l^2        computation of one GPU
    comm = 2(n-1)/n * K,   K = within_machine          m = 1     ring all-reduce (0 for n = 1)
                               network * two_machines  m = 2
                               network                 m >= 3
    step = n^growth * (c/3 + ((2c/3)^6 + comm^6)^(1/6))

The forward third of the computation can't hide the communication of gradients, the rest hides nearly all it
covers. Rejected alternatives: docs/design/network-fit.md. A number that the rows do not determine is not
guessed: it is fixed, or unknown (None), and the fit reports which and why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from berth.arrays import FloatArray, Int64Array
from berth.errors import InputError
from berth.network.measurements import Measurements
from berth.network.step_time import NUMBERS, StepTimeModel, step_s

Predict = Callable[[FloatArray], FloatArray]

_STARTS = 4
_GIVEN_UP = ("per_batch_squared", "growth", "two_machines")  # in this order, where rows are few
_ERROR_SCALE = 0.05  # relative errors far above it weigh less: stragglers must not bend the fit


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a fit looks for its numbers, and where it starts."""

    low: FloatArray
    high: FloatArray
    start: FloatArray

    @classmethod
    def of(cls, rows: ArrayLike) -> Bounds:
        """From rows of (low, high, start)."""
        return cls(*np.asarray(rows, dtype=np.float64).reshape(-1, 3).T)


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeFit:
    """A fitted model with its errors and its undetermined numbers."""

    model: StepTimeModel
    deviation: dict[str, float]  # approximate standard error of each fitted number, in its unit
    fixed: dict[str, str]  # number -> why the rows can't determine it
    errors: FloatArray  # |predicted / measured - 1| of each row it was fitted to


def bounds(step_s_typical: float) -> dict[str, tuple[float, float, float]]:
    """(low, high, start) of each number, for a typical step time."""
    t = step_s_typical
    return {
        "base": (1e-4 * t, 3 * t, 0.2 * t),
        "per_batch": (1e-4 * t, 5 * t, 0.5 * t),
        "per_batch_squared": (0.0, 2 * t, 0.02 * t),
        "within_machine": (1e-5 * t, 3 * t, 0.1 * t),
        "network": (1e-4 * t, 5 * t, 0.3 * t),
        "two_machines": (0.8, 4.0, 1.4),
        "growth": (0.0, 0.6, 0.08),
    }


def fit_step_time(rows: Measurements, name: str = "") -> StepTimeFit:
    """Return the numbers that predict these rows best; undetermined ones are listed in `fixed`."""
    fixed = _undetermined(rows)
    free = [number for number in NUMBERS if number not in fixed]
    values = {number: 1.0 if number == "two_machines" else 0.0 for number in NUMBERS}
    limits = bounds(float(np.median(rows.step_s)))
    batch, load = None, np.ones(len(rows))
    if rows.batch is not None:
        batch = float(np.median(rows.batch))
        load = rows.batch / batch

    def predict(x: FloatArray) -> FloatArray:
        numbers = values | dict(zip(free, x, strict=True))
        return step_s([numbers[number] for number in NUMBERS], rows.gpus, rows.machines, load)

    found = least_error(predict, rows.step_s, Bounds.of([limits[number] for number in free]))
    numbers: dict[str, float | None] = values | dict(zip(free, found.tolist(), strict=True))
    for distance in ("within_machine", "network"):
        if distance in fixed:
            numbers[distance] = None
    model = StepTimeModel(name=name, batch=batch, **numbers)  # type: ignore[arg-type]
    errors = np.abs(predict(found) / rows.step_s - 1)
    return StepTimeFit(
        model, dict(zip(free, _deviation(predict, found, rows.step_s), strict=True)), fixed, errors
    )


def left_out_errors(rows: Measurements, folds: int, seed: int = 0) -> FloatArray:
    """Return the error of each row when its shape (GPUs, machines) was left out; NaN where no other row predicts it.

    Whole shapes are left out, since to the model rows of one shape and batch are one and the same.
    """
    if folds < 2:
        raise InputError(f"at least 2 parts are needed to leave one out (given: {folds})")
    fold = fold_of(rows.shapes, folds, seed)
    errors = np.full(len(rows), np.nan)
    for part in np.unique(fold):
        out = fold == part
        try:
            model = fit_step_time(rows.take(~out)).model
        except InputError:
            continue  # what remains is too little to fit: these rows stay unpredicted, and are counted so
        rest = rows.take(out)
        errors[out] = np.abs(model.predict(rest.gpus, rest.machines, rest.batch) / rest.step_s - 1)
    return errors


def fold_of(groups: Int64Array, folds: int, seed: int) -> Int64Array:
    """A part from 0 to folds - 1 for each row; rows of a group stay together."""
    labels, group = np.unique(groups, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(labels)) % folds)[group.reshape(-1)]


def least_error(
    predict: Predict, measured: FloatArray, limits: Bounds, *, starts: int = _STARTS, evaluations: int = 150
) -> FloatArray:
    """The numbers within limits with the least robust loss of log(predicted / measured); several starts."""
    from scipy.optimize import least_squares

    if not len(limits.start):
        return np.zeros(0)
    rng, target = np.random.default_rng(0), np.log(measured)
    margin = 1e-3 * (limits.high - limits.low)
    best = None
    for attempt in range(starts):
        spread = np.exp(rng.normal(0, 0.5, len(limits.start))) if attempt else 1.0
        found = least_squares(
            lambda x: np.log(predict(x)) - target,
            np.clip(limits.start * spread, limits.low + margin, limits.high - margin),
            bounds=(limits.low, limits.high),
            loss="soft_l1",
            f_scale=_ERROR_SCALE,
            max_nfev=evaluations,
            x_scale=np.maximum(np.abs(limits.start), 1e-3),
        )
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    return np.asarray(best.x, dtype=np.float64)


def quantiles(errors: FloatArray) -> tuple[float, float]:
    """Median and 90th percentile of the errors that are known."""
    known = errors[~np.isnan(errors)]
    if not len(known):
        return float("nan"), float("nan")
    return float(np.median(known)), float(np.quantile(known, 0.9))


def _undetermined(rows: Measurements) -> dict[str, str]:
    """The numbers these rows can't determine, each with the reason; refuses rows that determine nothing."""
    fixed = _by_batch(rows) | _by_distance(rows)
    batch = rows.batch if rows.batch is not None else np.ones(len(rows))
    points = len(np.unique(np.stack([rows.gpus, rows.machines, batch]), axis=1).T)
    for number in _GIVEN_UP:
        if points < len(NUMBERS) - len(fixed) and number not in fixed:
            fixed[number] = f"only {points} different points were measured"
    needed = len(NUMBERS) - len(fixed)
    if points < needed:
        raise InputError(
            f"{points} different points (GPUs, machines, batch) are too few: at least {needed} are needed",
            hint="measure more placements; runs of the same placement count once",
        )
    return fixed


def _by_batch(rows: Measurements) -> dict[str, str]:
    sizes = 0 if rows.batch is None else len(np.unique(rows.batch))
    if sizes >= 3:
        return {}
    why = ("there is no batch column", "all rows have one batch size", "there are only two batch sizes")[
        sizes
    ]
    return dict.fromkeys(("per_batch", "per_batch_squared")[sizes == 2 :], why)


def _by_distance(rows: Measurements) -> dict[str, str]:
    """Communication: one number per distance, and a growth that takes two sizes at one distance to see."""
    near, two, far = (rows.machines == 1) & (rows.gpus > 1), rows.machines == 2, rows.machines >= 3
    fixed = {}
    if not near.any():
        fixed["within_machine"] = "no row has several GPUs on one machine"
    if not (two | far).any():
        fixed["network"] = "no row spans machines"
    if not (two.any() and far.any()):
        fixed["two_machines"] = "it takes rows on two machines and on three or more"
    if max(len(np.unique(rows.gpus[where])) for where in (near, two, far)) < 2:
        fixed["growth"] = "no distance was measured with two numbers of GPUs"
    return fixed


def _deviation(predict: Predict, found: FloatArray, measured: FloatArray) -> list[float]:
    """Approximate standard errors, from the slope of the prediction and the typical error."""
    step = np.maximum(np.abs(found), 1e-6) * 1e-4
    slopes = [(np.log(predict(found + e)) - np.log(predict(found))) / e.sum() for e in np.diag(step)]
    scale = np.maximum(np.abs(found), 1e-6)
    design = np.stack(slopes, axis=1) * scale
    sigma = 1.4826 * float(np.median(np.abs(np.log(predict(found) / measured))))
    # The tiny ridge turns a direction that the rows say nothing about into a huge error, not a failure.
    inverse = np.linalg.inv(design.T @ design + 1e-9 * np.eye(len(found)))
    return [float(error) for error in sigma * np.sqrt(np.diag(inverse)) * scale]
