"""A layer profile as it is written in YAML.

    model: mine
    batch: 4096                                   examples per batch, for everything below
    made: 2026-11-16
    facts: {kind: measured, note: ...}            where the bytes and operations of the layers are from
    layers:                                       in the order in which they run
      embedding: {kind: embedding, input_bytes: 2555904, output_bytes: 20447232, ...}
    devices:
      cpu-core:
        compute: {kind: measured, note: ...}      where oct_s is from; `data`: odt_s; `scaling`: alpha and beta
        data: {kind: measured, note: ...}
        scaling: {kind: measured, note: ...}
        layers:
          embedding: {oct_s: 0.012, odt_s: 0.0004, alpha: 0.98, beta: 0.91}

Numbers are in base units (bytes, seconds, operations), so that what is read is exactly what was written.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field

from berth.plan.profile.layer_profile import LayerFacts
from berth.spec import Spec
from berth.workload.profile import Provenance, ProvenanceKind

Name = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, strict=True)]
Share = Annotated[float, Field(ge=0, le=1)]


class SourceSpec(Spec):
    """The source of numbers."""

    kind: ProvenanceKind = "stated"
    note: str = ""
    year: int | None = None

    def source(self) -> Provenance:
        """Return the source as a dataclass."""
        return Provenance(self.kind, self.note, self.year)


class LayerSpec(Spec):
    """The facts of one layer."""

    kind: Name = "other"
    input_bytes: Count = 0
    output_bytes: Count
    gradient_bytes: Count = 0
    dense_bytes: Count = 0
    largest_tensor_bytes: Count = 0
    sparse_bytes: Count = 0
    touched_bytes: Count = 0
    touched_growth: Share = 1.0
    row_bytes: Annotated[int, Field(gt=0, strict=True)] = 4
    flops: Count = 0
    moved_bytes: Count = 0
    activation_bytes: Count = 0
    kernels: Count = 0

    def facts(self, name: str) -> LayerFacts:
        """Return the facts with the layer's name."""
        return LayerFacts(name=name, **self.model_dump())


class TimeSpec(Spec):
    """The times of one layer on one device."""

    oct_s: Annotated[float, Field(gt=0)]
    odt_s: Annotated[float, Field(ge=0)] = 0.0
    alpha: Share = 1.0
    beta: Share = 1.0
    spread: Annotated[float, Field(ge=0)] | None = None


class DeviceSpec(Spec):
    """All layers on one device."""

    compute: SourceSpec = SourceSpec()
    data: SourceSpec = SourceSpec()
    scaling: SourceSpec = SourceSpec()
    layers: dict[Name, TimeSpec]


class LayerProfileSpec(Spec):
    """The whole file."""

    model: Name
    sample: str = "example"
    batch: Annotated[int, Field(gt=0, strict=True)]
    made: date
    facts: SourceSpec = SourceSpec()
    layers: Annotated[dict[Name, LayerSpec], Field(min_length=1)]
    devices: dict[Name, DeviceSpec] = Field(default_factory=dict)
