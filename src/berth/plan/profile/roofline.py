"""Models the times of other devices by a roofline over the device catalogue.

    compute(k) = max(flops/k / (peak * efficiency of the kind), moved(k) / (memory bandwidth * 0.75 or 0.4))
                 + kernels * launch                         moved(k) = what scales with the batch / k + 3 * weights
    data, dense layers:   gradient bytes / link + 2 messages        a ring over two devices
    data, sparse layers:  (rows pulled + rows pushed + keys) / network + 2 messages

oct_s and odt_s are the formulas at k = 1. alpha is fitted to compute(1, 2, 4, 8), so that launches and weights, which
replicas do not divide, count as serial; beta is fitted to the rows that 1/k of the batch touches; a ring all-reduce
does not shrink with k, so beta of a dense layer is 0. docs/design/profiles.md has the sources of the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from berth.cluster.catalogue import known_devices, known_names, resolve
from berth.cluster.model import DeviceType
from berth.errors import InputError, UnknownNameError
from berth.plan.profile.amdahl import fit_amdahl
from berth.plan.profile.layer_profile import DeviceTimes, LayerFacts, short
from berth.units import format_bandwidth, format_flops
from berth.workload.profile import Provenance

REPLICA_COUNTS = (1, 2, 4, 8)
NETWORK_BYTES_PER_S = 25e9 / 8  # the NIC of most rented GPU machines
MESSAGE_S = 30e-6  # a message between two machines, software included
LINK_MESSAGE_S = 10e-6  # a step of a collective between two devices of one machine
LAUNCH_S = {"gpu": 5e-6, "cpu": 1e-6}
DEFAULT_LINK_BYTES_PER_S = 16e9  # PCIe 3.0 x16, for devices without a stated link
MEMORY_EFFICIENCY = 0.75
GATHER_EFFICIENCY = 0.4  # rows of 64 to 256 bytes at random addresses
# Share of the peak that training reaches: of tensor (matrix) units, and of plain fp32 units.
EFFICIENCY = {
    "fully_connected": (0.30, 0.60),
    "attention": (0.30, 0.60),
    "convolution": (0.20, 0.55),
    "recurrent": (0.10, 0.30),
}
OTHER_EFFICIENCY = (0.10, 0.30)
_WEIGHT_PASSES = 3  # read forward, read backward, gradient written
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class DeviceSpeeds:
    """The figures of a device that the roofline uses."""

    name: str
    kind: str
    flops: float
    precision: str | None
    memory_bytes_per_s: float
    link_bytes_per_s: float

    @property
    def has_tensor_units(self) -> bool:
        """Whether the peak is that of tensor (matrix) units."""
        return self.precision is not None and ("tensor" in self.precision or "matrix" in self.precision)

    def __str__(self) -> str:
        peak = f"{format_flops(self.flops)}{f' {self.precision}' if self.precision else ''}"
        return f"{peak}, {format_bandwidth(self.memory_bytes_per_s)}"


def modelled_times(layers: Sequence[LayerFacts], device: str | DeviceType) -> DeviceTimes:
    """Return modelled times of all layers on a device."""
    speeds = device_speeds(device)
    computes = [[compute_s(layer, speeds, replicas) for replicas in REPLICA_COUNTS] for layer in layers]
    data = [modelled_data(layer, speeds) for layer in layers]
    return DeviceTimes(
        device=speeds.name,
        compute=Provenance("modelled", f"roofline over {speeds}"),
        data=modelled_data_source(speeds),
        scaling=Provenance("modelled", "the same roofline at 1, 2, 4 and 8 replicas; a ring does not shrink"),
        oct_s=tuple(short(seconds[0]) for seconds in computes),
        odt_s=tuple(seconds for seconds, _ in data),
        alpha=tuple(_share(seconds) for seconds in computes),
        beta=tuple(share for _, share in data),
    )


def modelled_data(layer: LayerFacts, speeds: DeviceSpeeds) -> tuple[float, float]:
    """Return the seconds of synchronisation on one device, and their parallel share."""
    seconds = [data_s(layer, speeds, replicas) for replicas in REPLICA_COUNTS]
    return short(seconds[0]), _share(seconds)


def modelled_data_source(speeds: DeviceSpeeds) -> Provenance:
    """Return the source of modelled synchronisation times."""
    link, network = format_bandwidth(speeds.link_bytes_per_s), format_bandwidth(NETWORK_BYTES_PER_S)
    return Provenance("modelled", f"dense gradients over a link of {link}, sparse rows over {network}")


def compute_s(layer: LayerFacts, device: DeviceSpeeds, replicas: int = 1) -> float:
    """Return the seconds of forward and backward of 1/replicas of the batch."""
    tensor, plain = EFFICIENCY.get(layer.kind, OTHER_EFFICIENCY)
    efficiency = tensor if device.has_tensor_units else plain
    arithmetic = layer.flops / replicas / (device.flops * efficiency)
    reach = GATHER_EFFICIENCY if layer.kind == "embedding" else MEMORY_EFFICIENCY
    weights = _WEIGHT_PASSES * layer.dense_bytes
    moved = max(layer.moved_bytes, weights)
    memory = ((moved - weights) / replicas + weights) / (device.memory_bytes_per_s * reach)
    return max(arithmetic, memory) + max(1, layer.kernels) * LAUNCH_S[device.kind]


def data_s(layer: LayerFacts, device: DeviceSpeeds, replicas: int = 1) -> float:
    """Return the seconds to synchronise a layer's parameters when `replicas` share the batch."""
    seconds = 0.0
    if layer.dense_bytes:
        seconds += layer.dense_bytes / device.link_bytes_per_s + 2 * LINK_MESSAGE_S
    if layer.touched_bytes:
        rows = layer.touched_bytes / replicas**layer.touched_growth
        keys = rows / layer.row_bytes * _KEY_BYTES
        seconds += (2 * rows + keys) / NETWORK_BYTES_PER_S + 2 * MESSAGE_S
    return seconds


def device_speeds(device: str | DeviceType) -> DeviceSpeeds:
    """Return the figures of a device: its own if stated, otherwise the catalogue's."""
    name = device.name if isinstance(device, DeviceType) else device
    key = resolve(name)
    entry = known_devices()[key] if key else None
    if not isinstance(device, DeviceType):
        if entry is None:
            raise UnknownNameError("device type", name, known_names())
        device = entry.device
    if device.flops is None or device.memory_bytes_per_s is None:
        lacking = "peak rate" if device.flops is None else "memory bandwidth"
        raise InputError(
            f"the {lacking} of {device.name} is not known, so it can't be modelled",
            hint=f"profile the model on {device.name}, or name another device (`berth cluster devices`)",
        )
    link = (entry.link_bytes_per_s if entry else None) or DEFAULT_LINK_BYTES_PER_S
    precision = entry.precision if entry else "tensor"
    return DeviceSpeeds(device.name, device.kind, device.flops, precision, device.memory_bytes_per_s, link)


def _share(seconds: Sequence[float]) -> float:
    return short(fit_amdahl(dict(zip(REPLICA_COUNTS, seconds, strict=True))).share)
