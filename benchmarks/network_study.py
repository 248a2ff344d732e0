"""What `benchmarks/network.py` prints: the step-time model and the sharing rules against public measurements.

Step times: Pollux (OSDI 2021), four models on up to 16 GPUs of 4 machines, and on 6 to 16 machines for the
extrapolation. Contention: DeepShare's pairwise throughput ratios, six models.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from berth.arrays import BoolArray, FloatArray, Int64Array
from berth.network.fit import Bounds, bounds, fit_step_time, fold_of, least_error, left_out_errors
from berth.network.measurements import Measurements, read_measurements
from berth.network.step_time import NUMBERS, step_s
from contention_rules import RULES, Pairs, Rule, fit_rule, pair_medians

Limits = list[tuple[float, float, float]]
PairErrors = Callable[[Pairs, Pairs], FloatArray]  # fitted to the first, errors on the second

MODELS = ("bert", "cifar10", "deepspeech2", "imagenet")
FOLDS = 5
REFERENCE = "median of each model pair"


@dataclass(frozen=True, slots=True, eq=False)
class Errors:
    """Relative errors of one form on one data set."""

    numbers: int
    fitted: FloatArray
    left_out: list[FloatArray]  # one array per seed
    beyond: FloatArray  # step times: more machines than fitted; contention: model pairs never fitted


@dataclass(frozen=True, slots=True)
class Form:
    """A rival formula: (low, high, start) of its numbers for a typical step time, and its prediction."""

    name: str
    limits: Callable[[float], Limits]
    predict: Callable[[FloatArray, Measurements, float], FloatArray]  # numbers, rows, reference batch


def step_data(folder: Path, model: str) -> tuple[Measurements, Measurements]:
    """The measured placements of a model, and its runs on many machines."""
    near = read_measurements(folder / "pollux" / model / "placements.csv")["placements"]
    return near, read_measurements(folder / "pollux" / model / "scalability.csv")["scalability"]


def own_errors(near: Measurements, far: Measurements, seeds: range) -> Errors:
    """berth's model, fitted and left out as its users do it."""
    fit = fit_step_time(near)
    beyond = np.abs(fit.model.predict(far.gpus, far.machines, far.batch) / far.step_s - 1)
    left_out = [left_out_errors(near, FOLDS, seed) for seed in seeds]
    return Errors(len(NUMBERS) - len(fit.fixed), fit.errors, left_out, beyond)


def form_errors(form: Form, near: Measurements, far: Measurements, seeds: range) -> Errors:
    """A rival, by the same protocol."""
    reference = float(np.median(_batch(near)))

    def errors(fitted: Measurements, *asked: Measurements) -> list[FloatArray]:
        limits = Bounds.of(form.limits(float(np.median(fitted.step_s))))
        x = least_error(lambda x: form.predict(x, fitted, reference), fitted.step_s, limits)
        return [np.abs(form.predict(x, rows, reference) / rows.step_s - 1) for rows in asked]

    left_out = []
    for seed in seeds:
        fold, found = fold_of(near.shapes, FOLDS, seed), np.empty(len(near))
        for part in range(FOLDS):
            (found[fold == part],) = errors(near.take(fold != part), near.take(fold == part))
        left_out.append(found)
    fitted, beyond = errors(near, near, far)
    return Errors(len(form.limits(1.0)), fitted, left_out, beyond)


def step_floor(rows: Measurements) -> FloatArray:
    """How far runs of one placement (machines in any order) and batch lie from their own mean.

    Corrected for the mean being their own: no function of placement and batch can be expected to be nearer.
    """
    _, placement = np.unique(rows.labels, return_inverse=True)
    _, found = np.unique(np.stack([placement.reshape(-1), _batch(rows)]), axis=1, return_inverse=True)
    group, values = found.reshape(-1), np.log(rows.step_s)
    sizes = np.bincount(group)
    count, mean = sizes[group], (np.bincount(group, weights=values) / sizes)[group]
    several = count > 1
    rest: FloatArray = np.abs(values - mean)[several] * np.sqrt(count[several] / (count[several] - 1))
    return rest


def _batch(rows: Measurements) -> FloatArray:
    assert rows.batch is not None
    return rows.batch


def _own_limits(typical_s: float) -> Limits:
    return list(bounds(typical_s).values())


def _no_two(x: FloatArray, rows: Measurements, reference: float) -> FloatArray:
    numbers = [*x[:5].tolist(), 1.0, float(x[5])]
    return step_s(numbers, rows.gpus, rows.machines, _batch(rows) / reference)


def _uneven(x: FloatArray, rows: Measurements, reference: float) -> FloatArray:
    """Communication times imbalance^x: GPUs on the fullest machine over the mean; unknown splits are even."""
    even = np.ceil(rows.gpus / rows.machines)
    known = [0 if " on " in label else int(label.split("+")[0]) for label in rows.labels]
    factor = (np.maximum(np.array(known), even) * rows.machines / rows.gpus) ** x[7]
    # The formula works row by row, so a distance may have a number of its own in each.
    numbers = [*x[:3], x[3] * factor, x[4] * factor, *x[5:7]]
    return step_s(numbers, rows.gpus, rows.machines, _batch(rows) / reference)


def _pollux_limits(t: float) -> Limits:
    compute = [(1e-4 * t, 3 * t, 0.2 * t), (1e-4 * t, 5 * t, 0.5 * t)]
    near = [(1e-6 * t, 3 * t, 0.05 * t), (0.0, t, 0.01 * t)]
    far = [(1e-4 * t, 5 * t, 0.6 * t), (0.0, t, 0.01 * t)]
    return [*compute, *near, *far, (1.0, 10.0, 2.0)]


def _pollux(x: FloatArray, rows: Measurements, reference: float) -> FloatArray:
    compute = x[0] + x[1] * _batch(rows) / reference
    more = rows.gpus - 2
    near = np.where(rows.gpus > 1, x[2] + x[3] * more, 0.0)
    comm = np.maximum(np.where(rows.machines > 1, x[4] + x[5] * more, near), 1e-9)
    result: FloatArray = compute * (1 + (comm / compute) ** x[6]) ** (1 / x[6])
    return result


NO_TWO = Form("less the two-machine one", lambda t: [*_own_limits(t)[:5], _own_limits(t)[6]], _no_two)
UNEVEN = Form("plus one for uneven-ness", lambda t: [*_own_limits(t), (-1.0, 2.0, 0.02)], _uneven)
POLLUX = Form("Pollux' published form", _pollux_limits, _pollux)
RIVALS = (NO_TWO, UNEVEN, POLLUX)


@dataclass(frozen=True, slots=True, eq=False)
class Contention:
    """Ratios between settings (model, GPUs, machines)."""

    models: tuple[str, ...]
    setting_model: Int64Array
    kept: FloatArray  # [victim, other]
    interpolated: int  # settings left out because they are interpolated
    interpolation_gap: float  # their largest difference from the geometric mean of their neighbours

    @property
    def pairs(self) -> Pairs:
        """Every ordered pair, flat."""
        count = len(self.setting_model)
        victim, other = np.indices((count, count)).reshape(2, -1)
        return Pairs(self.setting_model[victim], self.setting_model[other], self.kept.reshape(-1))


def contention_data(folder: Path) -> Contention:
    """DeepShare's ratios without its (8 GPUs, 4 machines) settings, which are interpolated."""
    with (folder / "deepshare" / "shared_thp_ratio.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    settings = [tuple(row[0].split(",")) for row in rows]
    kept = np.array([row[1:] for row in rows], dtype=np.float64)
    models = tuple(dict.fromkeys(setting[0] for setting in settings))
    made = np.array([setting[1:] == ("8", "4") for setting in settings])
    model = np.array([models.index(setting[0]) for setting in settings], dtype=np.int64)
    gap = _interpolation_gap(settings, models, kept)
    return Contention(models, model[~made], kept[np.ix_(~made, ~made)], int(made.sum()), gap)


def _interpolation_gap(settings: list[tuple[str, ...]], models: tuple[str, ...], kept: FloatArray) -> float:
    """(8,4) against the geometric mean of (8,2) and (8,8), where none of the three is cut off at 1."""
    at = {setting: index for index, setting in enumerate(settings)}
    gaps = []
    for table in (kept, kept.T):
        for model in models:
            low, middle, high = (table[:, at[(model, "8", machines)]] for machines in ("2", "4", "8"))
            free = np.maximum(np.maximum(low, middle), high) < 1
            gaps.append(np.abs(np.sqrt(low * high) - middle)[free])
    return float(np.concatenate(gaps).max())


def contention_floor(data: Contention) -> FloatArray:
    """What is left in each model pair after an effect of either setting: an estimate, no run was repeated."""
    found = []
    for victim in range(len(data.models)):
        for other in range(len(data.models)):
            block = np.log(data.kept[np.ix_(data.setting_model == victim, data.setting_model == other)])
            rest = block - block.mean(0) - block.mean(1, keepdims=True) + block.mean()
            found.append(np.abs(rest).reshape(-1) * len(block) / (len(block) - 1))
    return np.concatenate(found)


def contention_errors(data: Contention, seeds: range) -> Iterator[tuple[str, Errors]]:
    """Each rule by name, and last the reference."""
    pairs, models = data.pairs, len(data.models)
    splits = [_left_out_pairs(len(data.setting_model), seed) for seed in seeds]
    blocks = list(_model_pairs(pairs, models))
    forms = {rule.name: (rule.numbers(models), _by_rule(rule, models)) for rule in RULES.values()}
    for name, (numbers, errors) in (forms | {REFERENCE: (models**2, _by_median(models))}).items():
        left_out, unseen = (
            [errors(pairs.take(~out), pairs.take(out)) for out in parts] for parts in (splits, blocks)
        )
        yield name, Errors(numbers, errors(pairs, pairs), left_out, np.concatenate(unseen))


def _by_rule(rule: Rule, models: int) -> PairErrors:
    def errors(fitted: Pairs, asked: Pairs) -> FloatArray:
        found = fit_rule(rule, fitted, models)
        return np.abs(found.predict(asked.victim, asked.other) / asked.kept - 1)

    return errors


def _by_median(models: int) -> PairErrors:
    def errors(fitted: Pairs, asked: Pairs) -> FloatArray:
        return np.abs(pair_medians(fitted, models)[asked.victim, asked.other] / asked.kept - 1)

    return errors


def _left_out_pairs(settings: int, seed: int) -> BoolArray:
    """A fifth of the unordered pairs of settings, both directions together."""
    first, second = np.triu_indices(settings)
    chosen = np.random.default_rng(seed).random(len(first)) < 0.2
    out = np.zeros((settings, settings), dtype=bool)
    out[first[chosen], second[chosen]] = True
    return (out | out.T).reshape(-1)


def _model_pairs(pairs: Pairs, models: int) -> Iterator[BoolArray]:
    """Each unordered pair of models, both directions together."""
    low, high = np.minimum(pairs.victim, pairs.other), np.maximum(pairs.victim, pairs.other)
    for first, second in zip(*np.triu_indices(models), strict=True):
        yield (low == first) & (high == second)
