"""Distributions of job sizes and durations, by name or written out.

Each distribution maps one uniform number per job to a value by its inverse. So the size or duration of a job
depends on its own number only, and drawing more jobs never changes the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from berth import units
from berth.arrays import FloatArray, Int64Array
from berth.errors import InputError, QuantityError, UnknownNameError
from berth.workload import reproducible_arrays as reproducible
from berth.workload.weights import WeightedChoice, parse_weights

if TYPE_CHECKING:
    from berth.workload.trace import Trace

SIZES: dict[str, dict[str, float]] = {
    "powers-of-two": {"1": 40, "2": 20, "4": 20, "8": 14, "16": 4, "32": 2},
    "odd": {"1": 25, "2": 10, "3": 15, "5": 15, "6": 10, "7": 10, "10": 8, "12": 7},
    "large": {"8": 30, "16": 30, "32": 25, "64": 15},
}
_MAX_GPUS = 2**31 - 1
Inverse = Callable[[FloatArray, Int64Array], FloatArray]  # uniform numbers and sizes to seconds


@dataclass(frozen=True, slots=True)
class Sizes:
    """GPUs by share of jobs."""

    text: str
    gpus: tuple[int, ...]
    weighted: WeightedChoice

    def draw(self, uniform: FloatArray) -> Int64Array:
        """Return the GPUs of each job."""
        return np.asarray(self.gpus, dtype=np.int64)[self.weighted.pick(uniform)]


@dataclass(frozen=True, slots=True)
class Durations:
    """Run times, which may depend on the size of the job."""

    text: str
    inverse: Inverse

    def draw(self, uniform: FloatArray, sizes: Int64Array) -> FloatArray:
        """Return the seconds of each job."""
        return self.inverse(uniform, sizes)


def load_sizes(text: str) -> Sizes:
    """Return the sizes of `philly`, `powers-of-two`, `odd`, `large`, or written out: `1=0.7,2=0.1,8=0.2`."""
    name = text.strip().lower()
    if name == "philly":
        return _sizes(text, {str(size): count for size, count in _philly()["sizes"].items()})
    if name in SIZES:
        return _sizes(text, SIZES[name])
    if not name[:1].isdigit():
        error = UnknownNameError("distribution of sizes", text, [*SIZES, "philly"])
        error.hint = f"{error.hint}; or write it out: 1=0.7,2=0.1,8=0.2"
        raise error
    return _sizes(text, parse_weights(text, "sizes"))


def load_durations(text: str) -> Durations:
    """Return the durations of `philly`, `lognormal:1h:1.5`, `exponential:2h`, `pareto:1.1:1m:7d`, `fixed:1h`."""
    name, *written = (part.strip() for part in text.split(":"))
    law = _LAWS.get(name.lower())
    if law is None:
        raise UnknownNameError("distribution of durations", name, _LAWS)
    make, defaults = law
    if len(written) > len(defaults):
        shape = ":".join([name, *defaults])
        raise InputError(f"durations {text!r}: too many numbers", hint=f"write it like {shape}")
    try:
        return Durations(text, make(*written, *defaults[len(written) :]))
    except QuantityError as error:
        raise InputError(f"durations {text!r}: {error.what}", hint=error.hint) from None


def like(trace: Trace) -> tuple[Sizes, Durations]:
    """Return sizes and durations with the joint distribution of a trace.

    A size is drawn as often as the trace has it. A duration is drawn from the trace's jobs of the same size:
    their quantiles, joined by straight lines in the logarithm, so values between the observed ones occur and
    none outside them.
    """
    gpus, counts = np.unique(trace.num_gpu, return_counts=True)
    weights = {str(size): float(count) for size, count in zip(gpus, counts, strict=True)}
    values = [np.sort(trace.duration_s[trace.num_gpu == size]) for size in gpus]
    inverse = _by_size(gpus.tolist(), [(_evenly(len(value)), value) for value in values])
    return _sizes(f"like {trace.source}", weights), Durations(f"like {trace.source}", inverse)


def _sizes(text: str, weights: dict[str, float]) -> Sizes:
    for written in weights:
        if not (written.isascii() and written.isdigit() and 0 < int(written) <= _MAX_GPUS):
            raise InputError(
                f"sizes {text!r}: {written!r} is not a number of GPUs", hint="write it like 1=0.7,8=0.3"
            )
    weighted = WeightedChoice.of(weights)
    return Sizes(text, tuple(int(size) for size in weighted.choices), weighted)


def _lognormal(median: str, sigma: str) -> Inverse:
    middle, width = _seconds(median), _number(sigma, "sigma", 0.0, 10.0)

    def inverse(uniform: FloatArray, _sizes: Int64Array) -> FloatArray:
        inside = np.maximum(uniform, 2.0**-54)  # the inverse at 0 is minus infinity
        return middle * reproducible.exp(width * reproducible.normal_quantile(inside))

    return inverse


def _exponential(mean: str) -> Inverse:
    mean_s = _seconds(mean)
    return lambda uniform, _: -mean_s * reproducible.log(1 - uniform)


def _pareto(alpha: str, least: str, most: str) -> Inverse:
    shape, low, high = _number(alpha, "alpha", 0.01, 100.0), _seconds(least), _seconds(most)
    if high < low:
        raise QuantityError(f"the longest, {most}, is shorter than the shortest, {least}")
    tail = 1 - float(reproducible.exp(shape * reproducible.log(np.asarray([low / high])))[0])
    return lambda uniform, _: low * reproducible.exp(reproducible.log(1 - uniform * tail) * (-1 / shape))


def _fixed(duration: str) -> Inverse:
    duration_s = _seconds(duration)
    return lambda uniform, _: np.full(len(uniform), duration_s)


def _from_philly() -> Inverse:
    table = _philly()
    curves = [(table["probabilities"], seconds) for seconds in table["duration_s"].values()]
    return _by_size(list(table["duration_s"]), curves)


def _by_size(bounds: Sequence[int], curves: Sequence[tuple[Any, Any]]) -> Inverse:
    """One quantile curve for each class of sizes; a class reaches up to its bound, the last one beyond."""
    logs = [
        (np.asarray(at, dtype=float), reproducible.log(np.asarray(seconds, dtype=float)))
        for at, seconds in curves
    ]

    def inverse(uniform: FloatArray, sizes: Int64Array) -> FloatArray:
        classes = np.minimum(np.searchsorted(bounds, sizes), len(bounds) - 1)
        result = np.empty(len(uniform))
        for index in np.unique(classes):
            mask = classes == index
            result[mask] = reproducible.exp(reproducible.interpolate(uniform[mask], *logs[index]))
        return result

    return inverse


def _evenly(count: int) -> FloatArray:
    return np.linspace(0.0, 1.0, count) if count > 1 else np.zeros(1)


def _seconds(text: str) -> float:
    value = units.seconds(text)
    if value <= 0:
        raise QuantityError(f"{text!r} must be greater than 0", hint="write it like 1h")
    return value


def _number(text: str, what: str, least: float, most: float) -> float:
    value = units.number_between(text, least, most)
    if value is None:
        raise QuantityError(f"{what} {text!r} is not a number from {least:g} to {most:g}")
    return value


@cache
def _philly() -> dict[str, Any]:
    import yaml

    text = resources.files("berth.workload").joinpath("data/philly.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return table


_LAWS: dict[str, tuple[Callable[..., Inverse], tuple[str, ...]]] = {
    "philly": (_from_philly, ()),
    "lognormal": (_lognormal, ("1h", "1.5")),
    "exponential": (_exponential, ("2h",)),
    "pareto": (_pareto, ("1.1", "1m", "7d")),
    "fixed": (_fixed, ("1h",)),
}
