"""Parses and formats quantities: `25GB/s`, `400Gbit/s`, `936ns`, `80GiB`, `12h`, `$2.42/h`.

Inside berth a quantity is a plain number in its base unit, and names carry the unit: seconds, bytes, bytes per
second, dollars per hour, floating-point operations per second. Text is parsed at the edge (YAML, command line)
and formatted when it is printed; formatted text can be parsed again. A number without unit is an error, because
25 may mean GB/s or Gbit/s; only 0 needs no unit.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

from berth.errors import QuantityError

_NOISE_S = 1e-10  # shorter times are rounding errors of sums
MAX_CONGESTION = 1e6  # links slower by more have stopped
_QUANTITY = re.compile(r"^\s*(\$?)\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _byte_units() -> dict[str, float]:
    units = {f"{prefix}B": factor for prefix, factor in {**_SI, **_BINARY}.items()}
    return units | {"bytes": 1.0, "byte": 1.0}


def _bandwidth_units() -> dict[str, float]:
    units = {f"{unit}/s": factor for unit, factor in _byte_units().items()}
    for prefix, factor in {**_SI, **_BINARY}.items():
        for bit in (f"{prefix}bit/s", f"{prefix}b/s", f"{prefix}bps"):
            units[bit] = factor / 8
    return units


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One kind of quantity: its units, an example for messages, and whether `$` leads it."""

    name: str
    units: dict[str, float]
    example: str
    dollar: bool = False


_TIME = _Dimension(
    "duration",
    {
        "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0,
        "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0, "w": 604800.0,
    },
    "12h, 30s or 40ms",
)  # fmt: skip
_SIZE = _Dimension("size", _byte_units(), "80GiB or 512MB")
_BANDWIDTH = _Dimension("bandwidth", _bandwidth_units(), "25GB/s or 400Gbit/s")
_PRICE = _Dimension("price", {"/h": 1.0, "/hour": 1.0, "/d": 1 / 24, "/s": 3600.0}, "$2.42/h", dollar=True)
_FLOPS = _Dimension(
    "compute rate",
    {f"{prefix}{tail}": factor for prefix, factor in _SI.items() for tail in ("FLOPS", "FLOP/s", "flops")},
    "312TFLOPS",
)
_RATE = _Dimension(
    "rate", {f"{prefix}{tail}": factor for prefix, factor in _SI.items() for tail in ("", "/s")}, "100k/s"
)
_AMOUNT = _Dimension("number", dict(_SI), "4e9 or 4G")


def seconds(text: str | float) -> float:
    """`12h` -> 43200.0. Compound durations such as `1h30m` are valid too."""
    if isinstance(text, str) and re.fullmatch(r"(\s*[\d.]+\s*[dhms]){2,}\s*", text):
        return sum(_parse(part, _TIME) for part in re.findall(r"[\d.]+\s*[dhms]", text))
    return _parse(text, _TIME)


def size_bytes(text: str | float) -> int:
    """`80GiB` -> 85899345920; always a whole number of bytes."""
    return round(_parse(text, _SIZE))


def bytes_per_second(text: str | float) -> float:
    """`400Gbit/s` -> 5e10."""
    return _parse(text, _BANDWIDTH)


def usd_per_hour(text: str | float) -> float:
    """`$2.42/h` -> 2.42."""
    return _parse(text, _PRICE)


def flops(text: str | float) -> float:
    """`312TFLOPS` -> 3.12e14 operations per second."""
    return _parse(text, _FLOPS)


def per_second(text: str | float) -> float:
    """`100k/s` -> 1e5 events (examples, jobs) per second; a bare number is a rate already."""
    return _parse(text, _RATE)


def amount(text: str | float) -> float:
    """`4G` or `4e9` -> 4e9 of anything that is counted."""
    return _parse(text, _AMOUNT)


def number_between(text: str, low: float, high: float) -> float | None:
    """Return a plain number if it is within the bounds, else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if low <= value <= high else None


def _parse(text: str | float, dimension: _Dimension) -> float:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise QuantityError(f"{text!r} is not a {dimension.name}", hint=f"write it like {dimension.example}")
    match = _QUANTITY.match(str(text))
    if match is None:
        raise QuantityError(f"{text!r} is not a {dimension.name}", hint=f"write it like {dimension.example}")
    dollar, number, unit = match.groups()
    value = float(number.replace("_", ""))
    if value == 0 and not unit:
        return 0.0
    if bool(dollar) != dimension.dollar or unit not in dimension.units:
        raise QuantityError(
            _unit_complaint(str(text), unit, dimension), hint=f"write it like {dimension.example}"
        )
    value *= dimension.units[unit]
    if not math.isfinite(value):
        raise QuantityError(
            f"{text!r} is not a {dimension.name}: too large", hint=f"write it like {dimension.example}"
        )
    return value


def _unit_complaint(text: str, unit: str, dimension: _Dimension) -> str:
    if not unit:
        return f"{text!r} has no unit, so it is not a {dimension.name}"
    return f"{text!r} is not a {dimension.name}: unit {unit!r}"


def as_sent(number: float, unit: str = "s") -> str:
    """Write a quantity exactly, as the API takes it: 5400s."""
    from decimal import Decimal

    text = f"{Decimal(repr(float(number))):f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{unit}"


def format_wait(value: float) -> str:
    """The time that something takes on a cluster: as `format_seconds`, with whole seconds below a minute (`8s`)."""
    if 0.0 < value < 59.95:
        return "<1s" if value < 0.5 else f"{round(value)}s"
    return format_seconds(value)


def format_seconds(value: float) -> str:
    """Two units at most above a minute (`2h30m`), three digits below (`1.25s`, `936ns`); below a tenth of a ns `0s`."""
    if value < 0:
        return "-" + format_seconds(-value)
    if not math.isfinite(value):
        return "never"
    if value >= 59.95:
        return _format_long(round(value))
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        if value >= factor * 0.9995:
            return f"{_digits(value / factor)}{unit}"
    return "0s" if value < _NOISE_S else f"{_digits(value / 1e-9)}ns"


def _format_long(whole: int) -> str:
    steps = [(86400, "d"), (3600, "h"), (60, "m"), (1, "s")]
    for (big, big_unit), (small, small_unit) in itertools.pairwise(steps):
        if whole >= big:
            count, rest = divmod(round(whole / small) * small, big)
            return f"{count}{big_unit}" + (f"{rest // small}{small_unit}" if rest else "")
    return f"{whole}s"


def format_bytes(value: float) -> str:
    """Binary prefixes where they are exact and short (`80GiB`), decimal ones elsewhere (`340MB`)."""
    whole = round(value)
    for prefix in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        factor = int(_BINARY[prefix])
        if 0 < whole < 10_000 * factor and whole % factor == 0:
            return f"{whole // factor}{prefix}B"
    return _scaled(value, "B")


def format_bandwidth(value: float) -> str:
    """`25GB/s`."""
    return _scaled(value, "B/s")


def format_usd(value: float) -> str:
    """`$1,234.50`; below a cent, three significant digits."""
    if value != 0 and abs(value) < 0.01:
        return f"${_digits(value)}"
    return f"${value:,.2f}"


def format_usd_per_hour(value: float) -> str:
    """`$2.42/h`."""
    return f"{format_usd(value).replace(',', '')}/h"


def format_flops(value: float) -> str:
    """`312TFLOPS`."""
    return _scaled(value, "FLOPS")


def format_rate(value: float) -> str:
    """`100k/s`."""
    return _scaled(value, "/s")


def format_count(count: int, noun: str) -> str:
    """`1 job`, `1,494 jobs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _scaled(value: float, unit: str) -> str:
    for prefix in ("E", "P", "T", "G", "M", "k"):
        if abs(value) >= _SI[prefix] * 0.9995:
            return f"{_digits(value / _SI[prefix])}{prefix}{unit}"
    return f"{_digits(value)}{unit}"


def _digits(value: float) -> str:
    """Three significant digits, or all digits of a whole number; never an exponent."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    return f"{float(text):.15f}".rstrip("0").rstrip(".")
