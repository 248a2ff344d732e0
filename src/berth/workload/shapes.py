"""Jobs with parts and alternatives: what a job may run as, and how much work it has.

A **part** asks for devices of one or more types; a **shape** is a set of parts that start together, with the time of
a step at each tier; a job's **offer** is its work and the shapes that would do. Work is counted in examples or in
steps, so that what is left carries over when a job goes on in another shape. A plain gang has no offer.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from berth import units
from berth.errors import QuantityError

YEAR_S = 365 * 86_400.0
NEAR = "near"  # in `step_s`: the nearest tier that can ever hold the shape
EVERY = "every"  # in `step_s`: all tiers
MAX_PARTS = 16
MAX_ALTERNATIVES = 64
LONGEST_S = 1e10  # about 300 years: the upper bound of every time in a trace, and of all the work of a job
Unit = Literal["examples", "steps"]
_WORK = re.compile(r"\s*(.+?)\s*(examples|steps)\s*")
_WORK_EXAMPLE = "write it like 2B examples or 500k steps"


@dataclass(frozen=True, slots=True)
class Work:
    """How much a job has to do."""

    amount: float
    unit: Unit = "examples"

    def __str__(self) -> str:
        return f"{self.amount:.17g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Part:
    """Devices that belong together: all of them start, or none."""

    name: str
    devices: tuple[tuple[str, int], ...]  # (device type, how many)
    tier: str | None = None  # the part must lie within one group of this tier
    processes: int = 1  # for each device
    collective_bytes: float = 0.0  # all-reduced among its devices in a step

    @property
    def size(self) -> int:
        """Devices of all types."""
        return sum(count for _, count in self.devices)


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to run a job: its parts, and the time of a step by tier."""

    name: str
    parts: tuple[Part, ...]
    step_s: tuple[tuple[str, float], ...]  # (tier, NEAR or EVERY; seconds)
    examples_per_step: float | None = None
    usd_per_hour: float | None = None  # None: the price of its devices in the cluster
    between_bytes: float = 0.0  # sent between its parts in a step
    tier: str | None = None  # the whole shape must lie within one group of this tier
    plan: str | None = None  # the file of `berth plan` that it was read from
    plan_digest: str | None = None  # SHA-256 of that file

    @property
    def devices(self) -> dict[str, int]:
        """Devices of each type, of all parts."""
        total: dict[str, int] = {}
        for part in self.parts:
            for name, count in part.devices:
                total[name] = total.get(name, 0) + count
        return total

    def unit_s(self, step_s: float, unit: Unit) -> float:
        """Seconds per unit of work at a step time."""
        return step_s if unit == "steps" else step_s / (self.examples_per_step or math.nan)


@dataclass(frozen=True, slots=True)
class Offer:
    """A job's work, and the shapes in which it can be done; the scheduler chooses one whenever it starts the job."""

    work: Work
    alternatives: tuple[Shape, ...]  # in a canonical order: that in which they were written has no meaning
    deadline_s: float | None = None  # after submission
    where: tuple[str, ...] = field(default=(), compare=False)  # position of each alternative, for messages

    def near_s(self, shape: Shape) -> float:
        """Seconds that all of the work takes in a shape at its nearest placement."""
        return self.work.amount * shape.unit_s(min(step_s for _, step_s in shape.step_s), self.work.unit)


TOO_LONG_HINT = "check the work, the step times and the examples of a step"


def too_long(offer: Offer) -> tuple[str, Shape | None] | None:
    """What is wrong with an offer whose work would take too long, and the shape if it is about one; None: nothing.

    All work must end within `LONGEST_S` in each alternative, at its nearest placement and alone.
    """
    seconds = {shape: offer.near_s(shape) for shape in offer.alternatives}
    fastest, slowest = min(seconds, key=seconds.__getitem__), max(seconds, key=seconds.__getitem__)
    limit = f"; {LONGEST_S / YEAR_S:.0f} years at most"
    if not seconds[fastest] <= LONGEST_S:
        years = _years(seconds[fastest])
        return f"{offer.work.amount:g} {offer.work.unit} take {years} in the fastest alternative{limit}", None
    if not seconds[slowest] <= LONGEST_S:
        return f"the work takes {_years(seconds[slowest])} in {slowest.name}{limit}", slowest
    return None


def _years(seconds: float) -> str:
    return f"{seconds / YEAR_S:,.0f} years" if seconds < 1e6 * YEAR_S else f"{seconds / YEAR_S:.0e} years"


def canonical(offer: Offer) -> Offer:
    """The same offer with its shapes in one order, whatever the order in which they were written; equal ones once."""
    where = dict(zip(offer.alternatives, offer.where or itertools.repeat(""), strict=False))
    ordered = tuple(sorted(where, key=_content))
    return replace(offer, alternatives=ordered, where=tuple(where[shape] for shape in ordered))


def _content(shape: Shape) -> tuple[object, ...]:
    size = sum(shape.devices.values())
    return (size, sorted(shape.devices.items()), repr(shape.parts), shape.step_s, repr(shape))


def devices_text(devices: Mapping[str, int]) -> str:
    """`4 A100-40 + 40 cpu-core`."""
    return " + ".join(f"{count} {name}" for name, count in devices.items())


def parse_work(text: str) -> Work:
    """`2B examples` or `500k steps`."""
    match = _WORK.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise QuantityError(f"{text!r} is not an amount of work", hint=_WORK_EXAMPLE)
    number, unit = match.groups()
    number = re.sub(r"\s*[bB]$", "G", number.strip())  # a billion
    try:
        amount = units.amount(number)
    except QuantityError:
        raise QuantityError(f"{text!r} is not an amount of work", hint=_WORK_EXAMPLE) from None
    if not 0 < amount < math.inf:
        raise QuantityError(f"{text!r}: work must be above zero", hint=_WORK_EXAMPLE)
    return Work(amount, "steps" if unit == "steps" else "examples")
