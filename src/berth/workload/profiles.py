"""Profiles of well-known networks by name, and the user's own from YAML.

    family: language                    everything but `bytes` and `compute` (or `work`) may be left out
    batch: 32                           samples per device and iteration
    bytes: 440MB                        gradients; or a count: 109_482_240 fp32
    largest_tensor: {value: 94MB, kind: published, note: "embedding, 30522 x 768", year: 2018}
    compute: {A100: 120ms}              one iteration by device, communication left out

A number is written plainly, or with its source beside it; a source that serves many numbers is written
once under `sources:` and named.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from berth import units
from berth.errors import InputError, UnknownNameError, nearest
from berth.network.traffic import Collective
from berth.spec import Seconds, Spec, load, parse
from berth.workload.profile import (
    DEFAULT_OVERLAP,
    JobProfile,
    Number,
    Provenance,
    ProvenanceKind,
    Work,
)

_BYTES_OF = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
_COUNTED = re.compile(r"^\s*([\d_]+)\s*(fp32|tf32|fp16|bf16)\s*$")
_DEFAULT_OVERLAP = Provenance(
    "modelled",
    "berth's default, chosen on measured step times of four networks (docs/design/network-fit.md)",
    2026,
)
_NOTHING = Provenance("modelled", "nothing stated, so nothing is exchanged")
_EVEN = Provenance("modelled", "not stated; taken as a tenth of all gradients")


def gradient_bytes(text: str | float) -> int:
    """`440MB`, or the count and type of the values: `109_482_240 fp32` is 437,928,960 bytes."""
    counted = _COUNTED.match(text) if isinstance(text, str) else None
    if counted is None:
        return units.size_bytes(text)
    return int(counted[1].replace("_", "")) * _BYTES_OF[counted[2]]


def _with_value(written: Any) -> Any:
    return written if isinstance(written, dict) else {"value": written}


T = TypeVar("T")
Gradients = Annotated[int, BeforeValidator(gradient_bytes), Field(gt=0)]
Exchanged = Annotated[int, BeforeValidator(units.size_bytes), Field(ge=0)]
Duration = Annotated[Seconds, Field(gt=0)]
Overlap = Annotated[float, Field(ge=1)]


class _Origin(Spec):
    """The source of a number: the name of one under `sources:`, or the source itself."""

    source: str | None = None
    kind: ProvenanceKind | None = None
    note: str | None = None
    year: Annotated[int, Field(ge=1950, le=2100)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.source is not None and (self.kind or self.note or self.year):
            raise InputError("has both `source` and a source of its own", hint="keep one")
        return self

    def origin(self, sources: dict[str, SourceSpec], where: str | None) -> Provenance:
        """The source, whichever way it was written."""
        if self.source is None:
            return Provenance(self.kind or "stated", self.note or f"stated in {where}", self.year)
        if self.source not in sources:
            raise UnknownNameError("source", self.source, sources)
        named = sources[self.source]
        return Provenance(named.kind, named.note, named.year)


class Sourced(_Origin, Generic[T]):
    """A number with its source."""

    value: T


class SourceSpec(Spec):
    """A source that several numbers share."""

    kind: ProvenanceKind
    note: str
    year: int


class WorkSpec(_Origin):
    """Operations of one sample's forward pass and the share of peak that is reached."""

    flop: Annotated[float, Field(gt=0)]
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.3


class ProfileSpec(Spec):
    """One profile in YAML. `sources` comes first: the numbers are checked against it."""

    sources: dict[str, SourceSpec] = Field(default_factory=dict)
    name: str | None = None
    title: str | None = None
    family: str = "other"
    aliases: list[str] = Field(default_factory=list)
    batch: Annotated[int, Field(gt=0)] = 1
    sample: str = "sample"
    bytes: Annotated[Sourced[Gradients], BeforeValidator(_with_value)]
    largest_tensor: Annotated[Sourced[Gradients], BeforeValidator(_with_value)] | None = None
    compute: dict[str, Annotated[Sourced[Duration], BeforeValidator(_with_value)]] = Field(
        default_factory=dict
    )
    work: WorkSpec | None = None
    overlap: Annotated[Sourced[Overlap], BeforeValidator(_with_value)] | None = None
    all_to_all: Annotated[Sourced[Exchanged], BeforeValidator(_with_value)] | None = None
    collective: Collective = "ring"

    @field_validator("largest_tensor")
    @classmethod
    def _is_one_of_the_tensors(cls, written: Any, info: ValidationInfo) -> Any:
        if written and "bytes" in info.data and written.value > info.data["bytes"].value:
            raise InputError("is larger than `bytes`", hint="it is one of the tensors that `bytes` counts")
        return written

    @model_validator(mode="after")
    def _says_how_long_it_computes(self) -> Self:
        if not self.compute and self.work is None:
            raise InputError("has neither `compute` nor `work`", hint="write `compute: {A100: 120ms}`")
        return self


class OwnProfileSpec(ProfileSpec):
    """A user's file: one profile and its sources."""

    @field_validator("bytes", "largest_tensor", "compute", "work", "overlap", "all_to_all")
    @classmethod
    def _names_a_source_that_is_there(cls, written: Any, info: ValidationInfo) -> Any:
        for origin in written.values() if isinstance(written, dict) else [written]:
            if origin and origin.source is not None and "sources" in info.data:
                origin.origin(info.data["sources"], None)
        return written


class CollectionSpec(Spec):
    """Many profiles that share sources: how berth's own are kept."""

    sources: dict[str, SourceSpec]
    profiles: dict[str, ProfileSpec]


def load_profile(name_or_path: str | Path, where: str | None = None) -> JobProfile:
    """A profile by name or alias (whatever its case), or from a YAML file; `where` an unknown name was written."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or _is_path(text):
        spec = load(text, OwnProfileSpec)
        return _profile(spec, spec.name or Path(text).stem, spec.sources, text)
    return catalogue_profile(text, where)


def is_profile(name: str) -> bool:
    """Whether a model is the name or alias of a shipped profile, or the path of a file."""
    return _is_path(name) or name.strip().lower() in _by_lowered_name()


def _is_path(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or "/" in text


def catalogue_profile(name: str, where: str | None = None) -> JobProfile:
    """A profile that berth ships, by name or alias; no file is ever read for it."""
    found = _by_lowered_name().get(name.strip().lower())
    if found is None:
        near = nearest(name, _by_lowered_name())
        raise UnknownNameError("model", name, [near] if near else profile_names(), where=where)
    return found


def all_profiles() -> list[JobProfile]:
    """Every profile that berth ships, by family as in the files."""
    return list(_shipped())


def profile_names() -> list[str]:
    """Names of the shipped profiles, without aliases."""
    return [profile.name for profile in _shipped()]


@cache
def _shipped() -> tuple[JobProfile, ...]:
    profiles: list[JobProfile] = []
    for file in ("vision", "language", "recommendation"):
        where = f"data/profiles/{file}.yaml"
        text = resources.files("berth.workload").joinpath(where).read_text(encoding="utf-8")
        collection = parse(text, CollectionSpec, where)
        named = collection.profiles.items()
        profiles += [_profile(spec, name, collection.sources, where) for name, spec in named]
    return tuple(profiles)


@cache
def _by_lowered_name() -> dict[str, JobProfile]:
    return {name.lower(): profile for profile in _shipped() for name in (profile.name, *profile.aliases)}


def _profile(spec: ProfileSpec, name: str, sources: dict[str, SourceSpec], where: str) -> JobProfile:
    def number(written: Sourced[Any] | None, default: float, why: Provenance) -> Number:
        if written is None:
            return Number(default, why)
        return Number(float(written.value), written.origin(sources, where))

    return JobProfile(
        name=name,
        title=spec.title or name,
        family=spec.family,
        batch=spec.batch,
        sample=spec.sample,
        parameter_bytes=number(spec.bytes, 0.0, _NOTHING),
        largest_tensor_bytes=number(spec.largest_tensor, spec.bytes.value / 10, _EVEN),
        overlap=number(spec.overlap, DEFAULT_OVERLAP, _DEFAULT_OVERLAP),
        all_to_all_bytes=number(spec.all_to_all, 0.0, _NOTHING),
        compute_s={device: number(written, 0.0, _NOTHING) for device, written in spec.compute.items()},
        work=Work(work.flop, work.efficiency, work.origin(sources, where)) if (work := spec.work) else None,
        collective=spec.collective,
        aliases=tuple(spec.aliases),
    )
