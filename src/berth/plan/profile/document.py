"""The profile of a model, layer by layer: what each moves and holds, and how long each kind of device takes.

Everything is per batch of `batch` examples on ONE unit of a device. Computation is forward and backward, data is
the synchronisation of parameters; `alpha` and `beta` are the shares of the two that k units divide among them
(Amdahl: time at k units = time at one * (1 - share + share / k)). Every time says whether it was measured or
modelled. The facts of a layer (bytes, operations) are counted on the model's own tensors.
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
    """What one layer moves, computes and holds for one batch; bytes are those of single precision."""

    name: str
    kind: str
    input_bytes: int
    output_bytes: int  # all that the next layer is handed
    gradient_bytes: int = 0  # what comes back for it
    dense_bytes: int = 0  # parameters every unit holds a copy of
    largest_tensor_bytes: int = 0  # of the dense parameters
    sparse_bytes: int = 0  # embedding tables, spread over the servers
    touched_bytes: int = 0  # distinct rows of them that one batch reads
    touched_growth: float = 1.0  # g of: touched rows grow as batch ** g
    row_bytes: int = 4  # one row of the tables
    flops: int = 0  # forward and backward; look-ups and element-wise work count none
    moved_bytes: int = 0  # read and written in the device's memory, forward and backward
    activation_bytes: int = 0  # kept from forward to backward
    kernels: int = 0  # operations launched, forward and backward

    @property
    def cross_bytes(self) -> int:
        """Activations forward and their gradients back, when the next layer runs elsewhere."""
        return self.output_bytes + self.gradient_bytes

    @property
    def replicated_bytes(self) -> int:
        """Memory that every unit needs: dense parameters, gradients, Adam's moments, activations."""
        return DENSE_COPIES * self.dense_bytes + self.activation_bytes

    @property
    def sharded_bytes(self) -> int:
        """Memory that the units of a stage share: embedding tables and their AdaGrad accumulators."""
        return SPARSE_COPIES * self.sparse_bytes


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Times of every layer on one unit of a device, and where they are from."""

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
        """Whether the computation was measured; the other sources speak for themselves."""
        return self.compute.kind == "measured"


class Times(NamedTuple):
    """Seconds per batch on one unit and parallel shares, each of shape (layers, devices)."""

    oct_s: FloatArray
    odt_s: FloatArray
    alpha: FloatArray
    beta: FloatArray


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """A whole profile: layers in the order in which they run, and times by device."""

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
        """Devices whose times the profile holds."""
        return tuple(times.device for times in self.devices)

    @property
    def cross_bytes(self) -> FloatArray:
        """Bytes per batch across the boundary after each layer, both ways; nothing follows the last."""
        crossing = np.array([layer.cross_bytes for layer in self.layers], dtype=np.float64)
        crossing[-1] = 0.0
        return crossing

    @property
    def replicated_bytes(self) -> FloatArray:
        """Memory of each layer on every unit."""
        return np.array([layer.replicated_bytes for layer in self.layers], dtype=np.float64)

    @property
    def sharded_bytes(self) -> FloatArray:
        """Memory of each layer over all units of its stage together."""
        return np.array([layer.sharded_bytes for layer in self.layers], dtype=np.float64)

    def on(self, device: str | DeviceType) -> DeviceTimes:
        """Times on a device: the profile's own, or modelled from the catalogue and labelled so."""
        from berth.plan.profile.roofline import modelled_times

        name = device.name if isinstance(device, DeviceType) else device
        wanted = (resolve(name) or name).lower()
        for times in self.devices:
            if (resolve(times.device) or times.device).lower() == wanted:
                return times
        return modelled_times(self.layers, device)

    def times(self, devices: Sequence[str | DeviceType]) -> Times:
        """Times on several devices as arrays of shape (layers, devices)."""
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
        """One time or share with its source."""
        times = self.on(device)
        source = {"oct_s": times.compute, "odt_s": times.data}.get(which, times.scaling)
        return Number(getattr(times, which)[self.names.index(layer)], source)


def short(value: float) -> float:
    """Four significant digits: more than any measurement here is good for, and a file people can read."""
    return float(f"{value:.4g}")
