"""Parses quantities of options; errors name the option."""

from __future__ import annotations

import math
from collections.abc import Callable

from berth.errors import InputError, QuantityError
from berth.units import MAX_CONGESTION


def read(option: str, parse: Callable[[str], float], text: str) -> float:
    """Parse the text with a function of `berth.units`; not negative."""
    try:
        value = parse(text)
    except QuantityError as error:
        raise QuantityError(f"{option}: {error.what}", hint=error.hint) from None
    if value < 0:
        raise QuantityError(f"{option} {text}: can't be negative")
    return value


def read_positive(option: str, parse: Callable[[str], float], text: str) -> float:
    """The same, above zero."""
    return positive(option, read(option, parse, text))


def positive(option: str, value: float) -> float:
    """Return the value if it is a number above zero."""
    if not math.isfinite(value) or value <= 0:
        raise QuantityError(f"{option} is {value:g}", hint="a number above 0 is expected")
    return value


def congestion_of(option: str, value: float) -> float:
    """Return the value if it is at least 1, since links can't be faster than they are, and not absurdly large."""
    if not 1 <= value <= MAX_CONGESTION:
        raise QuantityError(
            f"{option} is {value:g}",
            hint=f"1 or more is expected, at most {MAX_CONGESTION:,.0f}: 1 is an idle network, 5 one five times slower",
        )
    return value


def congestions(option: str, text: str) -> tuple[float, ...]:
    """`1,5,20`: the same, several."""
    try:
        values = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        values = ()
    if not values:
        raise QuantityError(
            f"{option} {text!r} is not a number", hint="write it like 5, or several like 1,5,20"
        )
    return tuple(congestion_of(option, value) for value in values)


def share(option: str, text: str) -> float:
    """`50%` or `0.5`; below one."""
    value = _ratio(option, text)
    if not 0.0 <= value < 1.0:
        raise QuantityError(f"{option} {text}: from 0 to below 100%")
    return value


def portion(option: str, text: str) -> float:
    """The same, or all of it."""
    value = _ratio(option, text)
    if not 0.0 <= value <= 1.0:
        raise QuantityError(f"{option} {text}: from 0 to 100%")
    return value


def load(option: str, text: str) -> float:
    """`90%` or `0.9`; it may be above one."""
    value = _ratio(option, text)
    if not 1e-6 <= value <= 1e3:
        raise QuantityError(f"{option} {text}: from 0.0001% to 100,000%", hint="write it like 80% or 0.8")
    return value


def _ratio(option: str, text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise QuantityError(f"{option} {text!r} is not a share", hint="write it like 50% or 0.5") from None


def numbers(option: str, text: str) -> tuple[float, ...]:
    """`0.6,0.8`: finite numbers above zero."""
    try:
        values = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        values = ()
    if not values or not all(0 < value < 1e9 for value in values):
        raise QuantityError(
            f"{option} {text!r}: no numbers above zero", hint=f"write it like {option} 1,5,20"
        )
    return values


def dollars(option: str, text: str) -> float:
    """`500` or `$500`."""
    try:
        return positive(option, float(text.removeprefix("$").replace(",", "")))
    except ValueError as error:
        if isinstance(error, QuantityError):
            raise
        raise QuantityError(f"{option} {text!r} is not a price", hint="write it like 500 or $500") from None


def names(option: str, text: str | None, example: str) -> tuple[str, ...] | None:
    """`A,B`: at least one; None where nothing was given."""
    if text is None:
        return None
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise InputError(f"{option} names nothing", hint=f"write it like {option} {example}")
    return found
