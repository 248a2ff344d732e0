"""A job's alternatives as YAML or JSON; the keys that `berth submit` and JSON lines of a trace share.

work: 2B examples              # or steps
batch: 65536                   # examples of a step, where an alternative does not say
deadline: 6h
alternatives:
  - plan: plan-a.yaml          # parts, traffic and step time from `berth plan`
  - parts: [{name: dense, devices: {A100-40: 4}, tier: rack}, {name: rows, devices: {cpu-core: 40}}]
    step: {near: 40ms, rack: 52ms, network: 90ms}
  - parts: [{name: all, devices: {any_of: [V100-16, T4], count: 8}}]
    step: 70ms                 # the same at every tier
    price: $9.50/h             # left out: the price of its devices in the cluster
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from berth import units
from berth.errors import InputError, SpecError
from berth.spec import Bytes, Seconds, Spec, UsdPerHour, locate, parse
from berth.workload.shapes import (
    EVERY,
    MAX_ALTERNATIVES,
    MAX_PARTS,
    TOO_LONG_HINT,
    Offer,
    Part,
    Shape,
    Work,
    canonical,
    devices_text,
    parse_work,
    too_long,
)

Count = Annotated[int, Field(gt=0, le=1_000_000, strict=True)]
Amount = Annotated[float, BeforeValidator(units.amount), Field(gt=0)]
StepTime = Annotated[Seconds, Field(gt=0)]
# forms of one value; no key is called so, which a message could take it for
_ANY_OF, _TYPES, _BY_TIER, _SAME = "(any of)", "(types)", "(by tier)", "(same)"
ReadPlan = Callable[[str, str], Shape]  # (path as written, position of the key) -> its shape


class AnyOfSpec(Spec):
    """Devices of one type, whichever of these."""

    any_of: Annotated[list[str], Field(min_length=1, max_length=8)]
    count: Count


def _form_of(devices: Any) -> str:
    """Which form of `devices` was written, so that a mistake in one is not reported for both."""
    any_of = isinstance(devices, AnyOfSpec) or (isinstance(devices, dict) and "any_of" in devices)
    return _ANY_OF if any_of else _TYPES


def _form_of_step(step: Any) -> str:
    return _BY_TIER if isinstance(step, dict) else _SAME


_Types = Annotated[dict[str, Count], Field(min_length=1, max_length=8)]


class PartSpec(Spec):
    """One part."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    devices: Annotated[
        Annotated[AnyOfSpec, Tag(_ANY_OF)] | Annotated[_Types, Tag(_TYPES)], Discriminator(_form_of)
    ]
    tier: str | None = None
    processes: Count = 1
    collective: Bytes | None = None


class ShapeSpec(Spec):
    """One alternative: a plan, or parts and the time of a step."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    plan: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    plan_digest: str | None = None
    parts: Annotated[list[PartSpec], Field(min_length=1, max_length=MAX_PARTS)] | None = None
    step: (
        Annotated[
            Annotated[dict[str, StepTime], Field(min_length=1), Tag(_BY_TIER)]
            | Annotated[StepTime, Tag(_SAME)],
            Discriminator(_form_of_step),
        ]
        | None
    ) = None
    batch: Amount | None = None
    price: UsdPerHour | None = None
    between: Bytes | None = None
    tier: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.parts is None and self.plan is None:
            raise InputError("an alternative needs `parts` and `step`, or a `plan`")
        if self.parts is not None and self.step is None:
            raise InputError(
                "step times are missing",
                hint="write one for all tiers like step: 40ms, or one for each tier of the cluster",
            )
        names = [part.name for part in self.parts or ()]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"two parts are called {twice!r}")
        return self


class OfferSpec(Spec):
    """The keys of a job that has alternatives."""

    work: Annotated[Any, BeforeValidator(parse_work)] = None
    batch: Amount | None = None
    deadline: Annotated[Seconds, Field(gt=0)] | None = None
    alternatives: Annotated[list[ShapeSpec], Field(min_length=1, max_length=MAX_ALTERNATIVES)]


def parse_offer(text: str, where: str, read_plan: ReadPlan | None = None) -> Offer:
    """Read the YAML of an offer; every error has its position."""
    spec = parse(text, OfferSpec, where)

    def position(*path: int | str) -> str:
        line, column = locate(text, path)
        return f"{where}:{line}:{column}"

    return offer_of(spec, position, read_plan)


def offer_of(spec: OfferSpec, position: Callable[..., str], read_plan: ReadPlan | None = None) -> Offer:
    """The offer that was written; `position` says where the value at a path of keys is.

    `read_plan` reads the shape of a plan file: this package knows nothing of plans.
    """
    if spec.work is None:
        raise SpecError(
            "alternatives without `work` can't be compared",
            where=position("alternatives"),
            hint="add how much there is to do, like work: 2B examples",
        )
    found: list[tuple[Shape, str, int]] = []
    for row, written in enumerate(spec.alternatives):
        place = position("alternatives", row)
        shapes = _of_plan(written, row, position, read_plan) if written.parts is None else _of_parts(written)
        found += [(shape, place, row) for shape in shapes]
    if len(found) > MAX_ALTERNATIVES:
        raise SpecError(
            f"these are {len(found)} alternatives, counting every type of `any_of`; {MAX_ALTERNATIVES} at most",
            where=position("alternatives"),
        )
    shapes = _with_batches(spec, [(shape, row) for shape, _, row in found], position)
    _check_names(shapes, [place for _, place, _ in found])
    offer = Offer(spec.work, tuple(shapes), spec.deadline, tuple(place for _, place, _ in found))
    if (wrong := too_long(offer)) is not None:
        what, slow = wrong
        where = position("work") if slow is None else offer.where[offer.alternatives.index(slow)]
        raise SpecError(what, where=where, hint=TOO_LONG_HINT)
    return canonical(offer)


def _of_plan(
    written: ShapeSpec, row: int, position: Callable[..., str], read_plan: ReadPlan | None
) -> list[Shape]:
    assert written.plan is not None
    place = position("alternatives", row, "plan")
    if read_plan is None:
        raise SpecError("a plan file can't be read here", where=place, hint="write its parts and step times")
    shape = read_plan(written.plan, place)
    if written.plan_digest not in (None, shape.plan_digest):
        raise SpecError(
            f"{written.plan} has changed since it was submitted",
            where=place,
            hint="submit the job again, or restore the file",
        )
    return [replace(shape, name=written.name or shape.name, tier=written.tier or shape.tier)]


def _of_parts(written: ShapeSpec) -> list[Shape]:
    """The shapes of written parts: one for each combination of types of `any_of`."""
    assert written.parts is not None
    steps = written.step if isinstance(written.step, dict) else {EVERY: written.step}
    choices = [_choices(part.devices) for part in written.parts]
    several = sum(map(len, choices)) > len(choices)
    shapes = []
    for picked in itertools.product(*choices):
        parts = tuple(
            Part(part.name, devices, part.tier, part.processes, float(part.collective or 0))
            for part, devices in zip(written.parts, picked, strict=True)
        )
        shape = Shape(
            name="",
            parts=parts,
            step_s=tuple((tier, float(seconds or 0.0)) for tier, seconds in steps.items()),
            examples_per_step=written.batch,
            usd_per_hour=written.price,
            between_bytes=float(written.between or 0),
            tier=written.tier,
            plan=written.plan,
            plan_digest=written.plan_digest,
        )
        text = devices_text(shape.devices)
        name = text if written.name is None else f"{written.name} ({text})" if several else written.name
        shapes.append(replace(shape, name=name))
    return shapes


def _choices(devices: AnyOfSpec | dict[str, int]) -> list[tuple[tuple[str, int], ...]]:
    if isinstance(devices, AnyOfSpec):
        return [((name, devices.count),) for name in dict.fromkeys(devices.any_of)]
    return [tuple(devices.items())]


def _with_batches(
    spec: OfferSpec, shapes: Sequence[tuple[Shape, int]], position: Callable[..., str]
) -> list[Shape]:
    """The shapes with the examples of a step: their own, else the job's, else what all others have."""
    work: Work = spec.work
    known = {shape.examples_per_step for shape, _ in shapes if shape.examples_per_step}
    common = spec.batch or (known.pop() if len(known) == 1 else None)
    found = []
    for shape, row in shapes:
        batch = shape.examples_per_step or common
        if batch is None and work.unit == "examples":
            raise SpecError(
                "work is counted in examples, and the examples of a step are not known",
                where=position("alternatives", row),
                hint="add `batch: 65536` to the job or to the alternative, or count the work in steps",
            )
        found.append(replace(shape, examples_per_step=batch))
    return found


def _check_names(shapes: Sequence[Shape], where: Sequence[str]) -> None:
    seen: dict[str, Shape] = {}
    for shape, place in zip(shapes, where, strict=True):
        if seen.setdefault(shape.name, shape) != shape:
            raise SpecError(
                f"two alternatives are called {shape.name!r}", where=place, hint="give each a `name`"
            )


def offer_to_dict(offer: Offer) -> dict[str, Any]:
    """The offer as JSON data that `OfferSpec` reads back to an equal one."""
    data: dict[str, Any] = {"work": str(offer.work)}
    if offer.deadline_s is not None:
        data["deadline"] = f"{offer.deadline_s!r}s"
    data["alternatives"] = [_shape_to_dict(shape) for shape in offer.alternatives]
    return data


def _shape_to_dict(shape: Shape) -> dict[str, Any]:
    data: dict[str, Any] = {"name": shape.name, "parts": [part_to_dict(part) for part in shape.parts]}
    steps = {tier: f"{seconds!r}s" for tier, seconds in shape.step_s}
    data["step"] = steps.get(EVERY, steps)
    if shape.examples_per_step is not None:
        data["batch"] = f"{shape.examples_per_step:.17g}"
    if shape.usd_per_hour is not None:
        data["price"] = f"${shape.usd_per_hour!r}/h"
    if shape.between_bytes:
        data["between"] = f"{round(shape.between_bytes)}B"
    optional = {"tier": shape.tier, "plan": shape.plan, "plan_digest": shape.plan_digest}
    return data | {key: value for key, value in optional.items() if value is not None}


def part_to_dict(part: Part) -> dict[str, Any]:
    """A part as it is written."""
    data: dict[str, Any] = {"name": part.name, "devices": dict(part.devices)}
    if part.tier is not None:
        data["tier"] = part.tier
    if part.processes != 1:
        data["processes"] = part.processes
    if round(part.collective_bytes):
        data["collective"] = f"{round(part.collective_bytes)}B"
    return data
