"""The profile of a model by layer: what each layer moves and holds, and its time on each device type.

Everything is per batch of `batch` examples on ONE device. Computation is forward and backward, data is the
synchronisation of parameters; `alpha` and `beta` are the shares of the two that k replicas divide among them (Amdahl:
time of k replicas = time of one * (1 - share + share / k)). Every time states whether it was measured or modelled. The
facts of a layer (bytes, operations) are counted on the model's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import resolve
from berth.cluster.model import DeviceType
from berth.workload.profile import Number, Provenance

FloatArray = NDArray[np.float64]
TimeName = Literal["oct_s", "odt_s", "alpha", "beta"]
DENSE_COPIES = 4  # weights, gradients and the two moments of Adam
SPARSE_COPIES = 2  # rows and their AdaGrad accumulators


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


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Times of every layer on one device of a type, and their sources."""

    device: str
    compute: Provenance
    data: Provenance
    scaling: Provenance
    oct_s: tuple[float, ...]
    odt_s: tuple[float, ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    spread: tuple[float, ...] = ()  # of oct_s: (75th - 25th percentile) / median; empty if modelled

    @property
    def is_measured(self) -> bool:
        """Whether the computation was measured."""
        return self.compute.kind == "measured"


class Times(NamedTuple):
    """Seconds per batch on one device and parallel shares, each of shape (layers, devices)."""

    oct_s: FloatArray
    odt_s: FloatArray
    alpha: FloatArray
    beta: FloatArray


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """A whole profile: the layers in order, and times by device type."""

    model: str
    batch: int
    layers: tuple[LayerFacts, ...]
    devices: tuple[DeviceTimes, ...]
    facts: Provenance
    made: date
    sample: str = "example"

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
        return modelled_times(self.layers, device)

    def times(self, devices: Sequence[str | DeviceType]) -> Times:
        """Return the times on several device types as arrays of shape (layers, devices)."""
        columns = [self.on(device) for device in devices]
        return Times(
            *(
                np.array([getattr(column, name) for column in columns], dtype=np.float64).reshape(
                    len(columns), len(self.layers)
                ).T.copy()
                for name in Times._fields
            )
        )  # fmt: skip

    def number(self, layer: str, device: str | DeviceType, which: TimeName) -> Number:
        """Return one time or share with its source."""
        times = self.on(device)
        source = {"oct_s": times.compute, "odt_s": times.data}.get(which, times.scaling)
        return Number(getattr(times, which)[self.names.index(layer)], source)


def short(value: float) -> float:
    """Round to four significant digits, more than the precision of any measurement here."""
    return float(f"{value:.4g}")
