"""The alternatives of a job as the API takes them and the journal keeps them, and as the scheduler reads them.

Quantities are text of one form with a unit, and stay text: what was accepted is read back unchanged. Plan files are
read by `berth submit`; their contents are sent along, by their SHA-256, and are in the journal from then on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from berth.errors import InputError
from berth.live.profiles import NO_OTHER_KEYS, DeviceName
from berth.spec import Spec
from berth.units import seconds, size_bytes, usd_per_hour
from berth.workload.shape_spec import part_to_dict
from berth.workload.shapes import (
    MAX_ALTERNATIVES,
    MAX_PARTS,
    TOO_LONG_HINT,
    Offer,
    Part,
    Shape,
    canonical,
    devices_text,
    parse_work,
    too_long,
)

# no controls (C0, C1), no invisible or bidirectional marks, no line separators
ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+$"


def _whole(value: Any) -> Any:
    """A number without a fraction is an integer, however JSON writes it: 4.0 is 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)
_NUMBER = r"([1-9][0-9]{0,17}(\.[0-9]{1,18})?|0\.[0-9]{0,17}[1-9])"
TIME = rf"^{_NUMBER}(ns|us|ms|s|min|m|h|d)$"
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PlanText = Annotated[str, Field(min_length=1, max_length=200_000, pattern=r"^[^\x00]*$")]
_Label = Annotated[str, Field(min_length=1, max_length=200, pattern=ONE_LINE)]
_Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]
_Count = Annotated[int, Field(gt=0, le=1_000_000, strict=True), Whole]
_Processes = Annotated[int, Field(ge=0, le=1024, strict=True), Whole]
_Time = Annotated[str, Field(pattern=TIME, examples=["40ms"])]
_Size = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$", examples=["4MiB"])]
_Price = Annotated[str, Field(pattern=rf"^\$(0|{_NUMBER})/h$", examples=["$9.5/h"])]
WorkText = Annotated[str, Field(pattern=rf"^{_NUMBER}[kMGBT]? (examples|steps)$", examples=["2B examples"])]


class SentPart(Spec):
    """One part: devices that start together with those of all other parts."""

    name: _Word
    devices: Annotated[
        dict[DeviceName, _Count], Field(min_length=1, max_length=8, json_schema_extra=NO_OTHER_KEYS)
    ]
    tier: _Word | None = None  # the part lies within one group of this tier
    processes: _Processes = 1  # for each device
    collective: _Size | None = None  # all-reduced within the part in a step


class SentShape(Spec):
    """One alternative: parts, and the time of a step by tier (`near`: the nearest that can hold it)."""

    name: _Label | None = None
    parts: Annotated[list[SentPart], Field(min_length=1, max_length=MAX_PARTS)]
    step: Annotated[dict[_Word, _Time], Field(min_length=1, max_length=16, json_schema_extra=NO_OTHER_KEYS)]
    batch: Annotated[float, Field(gt=0, le=1e15, strict=True)] | None = None  # examples of a step
    price: _Price | None = None
    between: _Size | None = None  # sent between parts in a step
    tier: _Word | None = None  # all of it lies within one group of this tier
    plan: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")] | None = None
    plan_digest: Digest | None = None


Alternatives = Annotated[list[SentShape], Field(min_length=1, max_length=MAX_ALTERNATIVES)]
Plans = Annotated[dict[Digest, PlanText], Field(max_length=MAX_ALTERNATIVES, json_schema_extra=NO_OTHER_KEYS)]


def digest_of(text: str) -> str:
    """Return the SHA-256 of a plan's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_offer(
    work: str | None, batch: float | None, alternatives: Sequence[SentShape], plans: Mapping[str, str]
) -> None:
    """Refuse alternatives that are valid alone but not together, and plans that are not what they are called."""
    if work is None:
        raise InputError(
            "alternatives without `work` can't be compared",
            hint="add how much there is to do, like work: 2B examples",
        )
    names = [_name(shape) for shape in alternatives]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two alternatives are called {twice!r}", hint="give each a `name`")
    for shape in alternatives:
        parts = [part.name for part in shape.parts]
        if twice := next((name for name in parts if parts.count(name) > 1), None):
            raise InputError(f"{_name(shape)}: two parts are called {twice!r}")
        if (shape.batch or batch) is None and work.endswith("examples"):
            raise InputError(
                f"{_name(shape)}: work is counted in examples, and the examples of a step are not known",
                hint="add `batch`, or count the work in steps",
            )
        if shape.plan_digest is not None and shape.plan_digest not in plans:
            raise InputError(f"{_name(shape)}: the contents of its plan are missing from `plans`")
    for digest, text in plans.items():
        if digest_of(text) != digest:
            raise InputError(f"the plan {digest[:12]} is not what its SHA-256 says")
    if (
        wrong := too_long(offer_from_sent(work, batch, None, [one.model_dump() for one in alternatives]))
    ) is not None:
        raise InputError(wrong[0], hint=TOO_LONG_HINT)


def offer_from_sent(
    work: str, batch: float | None, deadline_s: float | None, alternatives: Sequence[Mapping[str, Any]]
) -> Offer:
    """Return the offer that JSON data describes; it was accepted before, so it is not checked."""
    shapes = tuple(_shape(one, batch) for one in alternatives)
    return canonical(Offer(parse_work(work), shapes, deadline_s))


def _name(shape: SentShape) -> str:
    return shape.name or _shape(shape.model_dump(), None).name


def _shape(plain: Mapping[str, Any], batch: float | None) -> Shape:
    parts = tuple(
        Part(
            one["name"],
            tuple(one["devices"].items()),
            one.get("tier"),
            one.get("processes", 1),
            float(size_bytes(one["collective"])) if one.get("collective") else 0.0,
        )
        for one in plain["parts"]
    )
    shape = Shape(
        name=plain.get("name") or "",
        parts=parts,
        step_s=tuple((tier, seconds(text)) for tier, text in plain["step"].items()),
        examples_per_step=plain.get("batch") or batch,
        usd_per_hour=usd_per_hour(plain["price"]) if plain.get("price") else None,
        between_bytes=float(size_bytes(plain["between"])) if plain.get("between") else 0.0,
        tier=plain.get("tier"),
        plan=plain.get("plan"),
        plan_digest=plain.get("plan_digest"),
    )
    return shape if shape.name else replace(shape, name=devices_text(shape.devices))


def sent_offer(offer: Offer) -> dict[str, Any]:
    """Return an offer as the API takes it: its work, its deadline and its alternatives."""
    data: dict[str, Any] = {"work": f"{_decimal(offer.work.amount)} {offer.work.unit}"}
    if offer.deadline_s is not None:
        data["deadline"] = f"{_decimal(offer.deadline_s)}s"
    data["alternatives"] = [_sent_shape(shape) for shape in offer.alternatives]
    return data


def _sent_shape(shape: Shape) -> dict[str, Any]:
    optional = {
        "batch": shape.examples_per_step,
        "price": None if shape.usd_per_hour is None else f"${_decimal(shape.usd_per_hour)}/h",
        "between": f"{round(shape.between_bytes)}B" if round(shape.between_bytes) else None,
        "tier": shape.tier,
        "plan": shape.plan,
        "plan_digest": shape.plan_digest,
    }
    steps = {tier: f"{_decimal(step_s)}s" for tier, step_s in shape.step_s}
    data = {"name": shape.name, "parts": [part_to_dict(part) for part in shape.parts], "step": steps}
    return data | {key: value for key, value in optional.items() if value is not None}


def _decimal(number: float) -> str:
    """Return a number without an exponent, with as many digits as the API takes."""
    text = f"{Decimal(repr(float(number))):.18f}".rstrip("0").rstrip(".")
    return text or "0"
