"""Models the times of other devices by a roofline over the device catalogue.

    compute(b) = max(flops(b) / (peak * efficiency of the kind), moved(b) / (memory bandwidth * 0.75 or 0.4))
                 + kernels * launch              moved(b) = what scales with the examples + 3 * weights
    step       = 7 * dense bytes / (memory bandwidth * 0.75) + launch       Adam reads and writes seven times

b is the examples of one call. Launches and weights do not shrink with the batch, so small calls are inefficient. The
peak is that of single precision: berth trains without mixed precision, and torch leaves TF32 off.
docs/design/profiles.md has the sources of the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from berth.cluster.catalogue import CatalogueEntry, known_devices, known_names, resolve
from berth.cluster.model import FP32, DeviceType
from berth.errors import InputError, UnknownNameError
from berth.plan.profile.layer_profile import DeviceTimes, LayerFacts, short
from berth.units import format_bandwidth, format_flops
from berth.workload.profile import Provenance

LAUNCH_S = {"gpu": 5e-6, "cpu": 1e-6}
MEMORY_EFFICIENCY = 0.75
GATHER_EFFICIENCY = 0.4  # rows of 64 to 256 bytes at random addresses
EFFICIENCY = {  # share of the single-precision peak that training reaches
    "fully_connected": 0.60,
    "attention": 0.60,
    "convolution": 0.55,
    "recurrent": 0.30,
}
OTHER_EFFICIENCY = 0.30
UNCERTAINTY = 0.5  # of modelled times: a factor of about 1.5 either way
_WEIGHT_PASSES = 3  # read forward, read backward, gradient written
_ADAM_PASSES = 7  # weights, gradients and two moments read; all but gradients written


@dataclass(frozen=True, slots=True)
class DeviceSpeeds:
    """The figures of a device that the roofline uses."""

    name: str
    kind: str
    flops: float  # single precision
    memory_bytes_per_s: float

    def __str__(self) -> str:
        return f"{format_flops(self.flops)} fp32, {format_bandwidth(self.memory_bytes_per_s)}"


def modelled_times(
    layers: Sequence[LayerFacts], batch: int, batches: Sequence[int], device: str | DeviceType
) -> DeviceTimes:
    """Return modelled times of all layers, whose facts are those of `batch` examples, on a device."""
    speeds = device_speeds(device)
    source = Provenance("modelled", f"roofline over {speeds}")
    return DeviceTimes(
        device=speeds.name,
        batch=batch,
        batches=tuple(batches),
        curves=tuple(
            tuple(short(compute_s(layer, speeds, examples / batch)) for examples in batches)
            for layer in layers
        ),
        step_s=tuple(short(step_s(layer.dense_bytes, speeds)) for layer in layers),
        uncertainty=UNCERTAINTY,
        compute=source,
        step=source,
    )


def compute_s(layer: LayerFacts, device: DeviceSpeeds, share: float = 1.0) -> float:
    """Return the seconds of forward and backward of this share of the batch."""
    arithmetic = layer.flops * share / (device.flops * EFFICIENCY.get(layer.kind, OTHER_EFFICIENCY))
    reach = GATHER_EFFICIENCY if layer.kind == "embedding" else MEMORY_EFFICIENCY
    weights = _WEIGHT_PASSES * layer.dense_bytes
    moved = max(layer.moved_bytes, weights)
    memory = ((moved - weights) * share + weights) / (device.memory_bytes_per_s * reach)
    return max(arithmetic, memory) + max(1, layer.kernels) * LAUNCH_S[device.kind]


def step_s(dense_bytes: int, device: DeviceSpeeds) -> float:
    """Return the seconds of Adam's step of these parameters."""
    if not dense_bytes:
        return 0.0
    return (
        _ADAM_PASSES * dense_bytes / (device.memory_bytes_per_s * MEMORY_EFFICIENCY) + LAUNCH_S[device.kind]
    )


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
    return DeviceSpeeds(device.name, device.kind, _fp32(device, entry), device.memory_bytes_per_s)


def _fp32(device: DeviceType, entry: CatalogueEntry | None) -> float:
    """Return the single-precision peak: the device's own, else the catalogue's in proportion to the stated peak.

    A peak without a precision is taken for that of single precision.
    """
    assert device.flops is not None
    if device.fp32_flops is not None:
        return device.fp32_flops
    if entry is not None and entry.device.fp32_flops and entry.device.flops:
        return entry.device.fp32_flops * device.flops / entry.device.flops
    if device.precision not in (None, FP32):
        raise InputError(
            f"the single-precision rate of {device.name} is not known: its `flops` are {device.precision}",
            hint=f"give {device.name} its `fp32:` in the cluster's file, for example fp32: 67TFLOPS",
        )
    return device.flops
