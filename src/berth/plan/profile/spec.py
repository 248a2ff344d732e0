"""A layer profile as it is written in YAML.

    model: mine
    batch: 4096                                   examples per batch, for everything below
    made: 2026-11-16
    facts: {kind: measured, note: ...}            where the bytes and operations of the layers are from
    layers:                                       in the order in which they run
      embedding: {kind: embedding, input_bytes: 2555904, output_bytes: 20447232, ...}
    batches: [16, 64, 256, 1024, 4096, 16384]     examples of one call, for every compute_s
    rows: 1.0e9                                   of all tables in production: stated
    devices:
      cpu-core:
        compute: {kind: measured, note: ...}      where compute_s is from; `step`: step_s
        step: {kind: measured, note: ...}
        uncertainty: 0.08
        layers:
          embedding: {compute_s: [0.0001, ...], step_s: 0.0}

Files of older versions have no `batches`, and per layer `oct_s` (seconds at `batch`) and `alpha` (the share that
replicas divide): they are read as the line t(b) = oct_s * (1 - alpha + alpha * b / batch).

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
Seconds = Annotated[float, Field(gt=0)]
Examples = Annotated[int, Field(gt=0, strict=True)]


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
    lookups: Count = 0
    row_bytes: Annotated[int, Field(gt=0, strict=True)] = 4
    flops: Count = 0
    moved_bytes: Count = 0
    activation_bytes: Count = 0
    kernels: Count = 0

    def facts(self, name: str) -> LayerFacts:
        """Return the facts with the layer's name."""
        return LayerFacts(name=name, **self.model_dump())


class TimeSpec(Spec):
    """The times of one layer on one device; the last five keys are those of older files."""

    compute_s: tuple[Seconds, ...] | None = None
    step_s: Annotated[float, Field(ge=0)] | None = None
    oct_s: Seconds | None = None
    odt_s: Annotated[float, Field(ge=0)] = 0.0
    alpha: Share = 1.0
    beta: Share = 1.0
    spread: Annotated[float, Field(ge=0)] | None = None


class DeviceSpec(Spec):
    """All layers on one device; `data` and `scaling` are in older files."""

    compute: SourceSpec = SourceSpec()
    step: SourceSpec | None = None
    uncertainty: Annotated[float, Field(ge=0)] | None = None
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
    batches: Annotated[tuple[Examples, ...], Field(min_length=1)] | None = None
    rows: Annotated[float, Field(gt=0)] | None = None
    devices: dict[Name, DeviceSpec] = Field(default_factory=dict)
