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
    if not (values := _floats(text)):
        raise QuantityError(
            f"{option} {text!r} is not a number", hint="write it like 5, or several like 1,5,20"
        )
    return tuple(congestion_of(option, value) for value in values)


def share(option: str, text: str) -> float:
    """`50%` or `0.5`; below one."""
    return _ratio(option, text, lambda value: 0.0 <= value < 1.0, "from 0 to below 100%")


def portion(option: str, text: str) -> float:
    """The same, or all of it."""
    return _ratio(option, text, lambda value: 0.0 <= value <= 1.0, "from 0 to 100%")


def load(option: str, text: str) -> float:
    """`90%` or `0.9`; it may be above one."""
    hint = "write it like 80% or 0.8"
    return _ratio(option, text, lambda value: 1e-6 <= value <= 1e3, "from 0.0001% to 100,000%", hint)


def _ratio(
    option: str, text: str, holds: Callable[[float], bool], span: str, hint: str | None = None
) -> float:
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise QuantityError(f"{option} {text!r} is not a share", hint="write it like 50% or 0.5") from None
    if not holds(value):
        raise QuantityError(f"{option} {text}: {span}", hint=hint)
    return value


def numbers(option: str, text: str) -> tuple[float, ...]:
    """`0.6,0.8`: finite numbers above zero."""
    values = _floats(text)
    if not values or not all(0 < value < 1e9 for value in values):
        raise QuantityError(
            f"{option} {text!r}: no numbers above zero", hint=f"write it like {option} 1,5,20"
        )
    return values


def whole_number(option: str, text: str) -> int:
    """`65536`, `64k` or `1e6`: a whole number above zero."""
    from berth.units import amount

    value = read_positive(option, amount, text)
    if value != int(value):
        raise QuantityError(f"{option} {text}: a whole number is expected")
    return int(value)


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """`1,2,4`: whole numbers above zero, ascending, each once."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise QuantityError(f"{option} names no number", hint=f"write it like {option} 1,2,4")
    return tuple(sorted({whole_number(option, part) for part in parts}))


def _floats(text: str) -> tuple[float, ...]:
    """The numbers of a list; none if one is not a number."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        return ()


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
