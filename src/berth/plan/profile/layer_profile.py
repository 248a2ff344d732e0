"""The profile of a model by layer: what each layer moves and holds, and its computation time on each device type.

Facts are per batch of `batch` examples. Computation is a curve: seconds of forward and backward of one call on ONE
device, launches included, at each number of examples of `batches`. The optimiser step of dense parameters comes once
per step, whatever the batch. Every device states whether its times were measured or modelled. The facts of a layer
(bytes, operations) are counted on the model's tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import resolve
from berth.cluster.model import DeviceType
from berth.workload.profile import Provenance

FloatArray = NDArray[np.float64]
DENSE_COPIES = 4  # weights, gradients and the two moments of Adam
SPARSE_COPIES = 2  # rows and their AdaGrad accumulators
INDEX_BYTES = 58  # of memory for each row of a table beside its values: key, slot and statistics


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What one layer moves, computes and holds for one batch, in single precision."""

    name: str
    kind: str
    input_bytes: int
    output_bytes: int  # the whole input of the next layer
    gradient_bytes: int = 0  # gradients of the output
    dense_bytes: int = 0  # parameters that every replica holds
    largest_tensor_bytes: int = 0  # of the dense parameters
    sparse_bytes: int = 0  # embedding tables, sharded over the servers
    touched_bytes: int = 0  # distinct rows of them that one batch reads
    touched_growth: float = 1.0  # g of: touched rows grow as batch ** g
    lookups: int = 0  # rows that one batch looks up, with repetitions; 0: not counted
    row_bytes: int = 4  # one row of the tables
    flops: int = 0  # forward and backward; look-ups and element-wise work count none
    moved_bytes: int = 0  # read and written in the device's memory, forward and backward
    activation_bytes: int = 0  # kept from forward to backward
    kernels: int = 0  # operations launched, forward and backward

    @property
    def cross_bytes(self) -> int:
        """Bytes of activations and their gradients, if the next layer runs on another type."""
        return self.output_bytes + self.gradient_bytes

    @property
    def replicated_bytes(self) -> int:
        """Memory of every replica: dense parameters, gradients, Adam's moments, activations."""
        return DENSE_COPIES * self.dense_bytes + self.activation_bytes

    @property
    def sharded_bytes(self) -> int:
        """Memory that is divided among the replicas of a stage: embedding tables and AdaGrad accumulators."""
        return SPARSE_COPIES * self.sparse_bytes

    def touched_rows(self, examples: float, batch: int) -> float:
        """Return the distinct rows that this many examples look up, from the count for `batch` and its growth."""
        scale = examples / batch
        rows = self.touched_bytes / self.row_bytes * scale**self.touched_growth
        return min(rows, self.lookups * scale) if self.lookups else rows

    def looked_up_rows(self, examples: float, batch: int) -> float:
        """Return the rows that this many examples look up, with repetitions; the distinct ones if not counted."""
        return (self.lookups or self.touched_bytes / self.row_bytes) * examples / batch


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Times of every layer on one device of a type, and their sources."""

    device: str
    batch: int  # of the profile
    batches: tuple[int, ...]  # examples per call at which the curves are known, ascending
    curves: tuple[tuple[float, ...], ...]  # seconds by layer and batch, not decreasing in the batch
    step_s: tuple[float, ...]  # seconds of each layer's optimiser step (Adam), once per step
    uncertainty: float  # relative half-width of the whole model's time, about one standard deviation
    compute: Provenance  # of the curves
    step: Provenance  # of step_s

    @property
    def is_measured(self) -> bool:
        """Whether the computation was measured."""
        return self.compute.kind == "measured"

    @property
    def compute_s(self) -> FloatArray:
        """Seconds of forward and backward, of shape (layers, batches)."""
        return np.array(self.curves, dtype=np.float64).reshape(len(self.curves), len(self.batches))

    def at(self, examples: float) -> FloatArray:
        """Return the seconds of each layer for one call of this many examples.

        Lines between the points of the curve; beyond them the first and the last line go on, but no call is faster
        than its share of the smallest one.
        """
        known = np.array(self.batches, dtype=np.float64)
        curves = self.compute_s
        line = along(known, curves, examples)
        return np.maximum(line, curves[:, 0] * min(1.0, examples / known[0]))


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """A whole profile: the layers in order, and times by device type."""

    model: str
    batch: int
    layers: tuple[LayerFacts, ...]
    batches: tuple[int, ...]  # examples per call of every curve, ascending
    devices: tuple[DeviceTimes, ...]
    facts: Provenance
    made: date
    sample: str = "example"
    rows: float | None = None  # of all tables in production: stated, not counted

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(layer.name for layer in self.layers)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the layers: embedding, fully_connected ..."""
        return tuple(layer.kind for layer in self.layers)

    @property
    def device_names(self) -> tuple[str, ...]:
        """Device types with times in the profile."""
        return tuple(times.device for times in self.devices)

    @property
    def cross_bytes(self) -> FloatArray:
        """Bytes per batch across the boundary after each layer, both ways; nothing follows the last."""
        crossing = np.array([layer.cross_bytes for layer in self.layers], dtype=np.float64)
        crossing[-1] = 0.0
        return crossing

    @property
    def replicated_bytes(self) -> FloatArray:
        """Memory of each layer on every replica."""
        return np.array([layer.replicated_bytes for layer in self.layers], dtype=np.float64)

    @property
    def sharded_bytes(self) -> FloatArray:
        """Memory of each layer over all replicas of its stage."""
        return np.array([layer.sharded_bytes for layer in self.layers], dtype=np.float64)

    def on(self, device: str | DeviceType) -> DeviceTimes:
        """Return the times on a device type: the profile's, or modelled from the catalogue."""
        from berth.plan.profile.roofline import modelled_times

        name = device.name if isinstance(device, DeviceType) else device
        wanted = (resolve(name) or name).lower()
        for times in self.devices:
            if (resolve(times.device) or times.device).lower() == wanted:
                return times
        return modelled_times(self.layers, self.batch, self.batches, device)


def along(points: FloatArray, values: FloatArray, at: float) -> FloatArray:
    """Return curves between their points, the last axis; beyond them the first and the last line go on.

    One point alone is in proportion.
    """
    if len(points) == 1:
        return np.asarray(values[..., 0] * at / points[0])
    right = int(np.clip(np.searchsorted(points, at), 1, len(points) - 1))
    share = (at - points[right - 1]) / (points[right] - points[right - 1])
    line: FloatArray = values[..., right - 1] * (1 - share) + values[..., right] * share
    return line


def grid(batch: int) -> tuple[int, ...]:
    """Return the examples per call at which computation is measured: powers of four around the profile's batch."""
    return tuple(
        sorted({batch, *(round(batch * 4.0**power) for power in range(-4, 2) if batch * 4.0**power >= 2)})
    )


def non_decreasing(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return the non-decreasing sequence nearest to the given one in logarithms (isotonic regression)."""
    blocks: list[list[float]] = []
    for value in seconds:
        blocks.append([value])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return tuple(_mean(block) for block in blocks for _ in block)


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean; of one value exactly that value."""
    return values[0] if len(values) == 1 else math.exp(sum(map(math.log, values)) / len(values))


def short(value: float) -> float:
    """Round to four significant digits, more than the precision of any measurement here."""
    return float(f"{value:.4g}")
