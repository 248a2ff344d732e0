"""Job profiles: what one iteration of a known network computes and sends, with the source of each number.

A profile is one iteration of one network at a stated batch per device. Compute time is known for some
devices (measured or published); for others it is modelled from the nearest known one by the ratio of peak
operations per second, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from berth.cluster.catalogue import UNNAMED, known_devices, known_names, resolve
from berth.cluster.model import DeviceType
from berth.errors import InputError, UnknownNameError
from berth.network.traffic import Collective, Traffic
from berth.units import format_flops, format_seconds

ProvenanceKind = Literal["published", "measured", "modelled", "stated"]
REFERENCE_DEVICE = "V100"
DEFAULT_OVERLAP = 6.0
FORWARD = 1 / 3  # of the computation: the backward pass takes twice as long as the forward one
_FORWARD_AND_BACKWARD = 3  # a backward pass costs two forward passes


@dataclass(frozen=True, slots=True)
class Provenance:
    """The source of a number. `stated`: given by the user without a source."""

    kind: ProvenanceKind
    note: str
    year: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.note}" + (f" ({self.year})" if self.year else "")


@dataclass(frozen=True, slots=True)
class Number:
    """A value in its base unit, and its source."""

    value: float
    source: Provenance


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one sample's forward pass, and the share of a device's peak that training reaches."""

    flop: float
    efficiency: float
    source: Provenance


@dataclass(frozen=True, slots=True)
class JobProfile:
    """One iteration of one network on one device."""

    name: str
    title: str
    family: str
    batch: int  # samples per device and iteration
    sample: str  # what one sample is
    parameter_bytes: Number  # gradients reduced over all devices
    largest_tensor_bytes: Number
    overlap: Number  # y of (backward^y + comm^y)^(1/y)
    all_to_all_bytes: Number  # what each device exchanges with the others
    compute_s: Mapping[str, Number] = field(default_factory=dict)  # by device, the reference device first
    work: Work | None = None
    collective: Collective = "ring"
    aliases: tuple[str, ...] = ()

    @property
    def skew(self) -> float:
        """Largest tensor over all gradients; Tiresias keeps jobs together whose skew is above 0.3."""
        return self.largest_tensor_bytes.value / self.parameter_bytes.value

    @property
    def reference_device(self) -> str:
        """The device that applies if none is named."""
        return next(iter(self.compute_s), REFERENCE_DEVICE)

    def compute(self, device: str | DeviceType | None = None) -> Number:
        """Return the seconds of one iteration on a device: known, or modelled and labelled as such."""
        meant = self.reference_device if _is_unnamed(device) else device or ""
        name = _canonical(meant.name if isinstance(meant, DeviceType) else meant)
        known = {_canonical(listed): number for listed, number in self.compute_s.items()}
        if name in known:
            return known[name]
        peak = _peak(meant, self)
        return self._scaled(peak) if self.compute_s else self._worked(peak)

    def traffic(self, device: str | DeviceType | None = None) -> Traffic:
        """Return what one iteration on such devices computes and sends."""
        return Traffic(
            compute_s=self.compute(device).value,
            all_reduce_bytes=self.parameter_bytes.value,
            all_to_all_bytes=self.all_to_all_bytes.value,
            collective=self.collective,
            overlap=self.overlap.value,
            forward=FORWARD,
        )

    def _scaled(self, peak: _Peak) -> Number:
        bases = [(name, rate) for name in self.compute_s if (rate := _catalogued(name))]
        if not bases:
            listed = ", ".join(self.compute_s)
            raise InputError(
                f"{self.name} can't be scaled to {peak.name}: the speed of {listed} is unknown",
                hint=f"add {peak.name} under `compute:`",
            )
        name, base = min(bases, key=lambda entry: abs(math.log(entry[1].flops / peak.flops)))
        known = self.compute_s[name]
        note = f"{format_seconds(known.value)} on {name} ({known.source.kind}) x {base} / {peak}"
        return Number(known.value * base.flops / peak.flops, Provenance("modelled", note))

    def _worked(self, peak: _Peak) -> Number:
        assert self.work is not None  # the specification asks for compute or work
        flop = _FORWARD_AND_BACKWARD * self.work.flop * self.batch
        note = f"{flop:.3g} operations / ({peak} x {self.work.efficiency:g}); {self.work.source.note}"
        seconds = flop / (peak.flops * self.work.efficiency)
        return Number(seconds, Provenance("modelled", note, self.work.source.year))


@dataclass(frozen=True, slots=True)
class _Peak:
    """The peak rate of a device, written with its precision: rates of two precisions compare poorly."""

    name: str
    flops: float
    precision: str | None = None

    def __str__(self) -> str:
        return format_flops(self.flops) + (f" {self.precision}" if self.precision else "")


def _is_unnamed(device: str | DeviceType | None) -> bool:
    if isinstance(device, DeviceType):
        return resolve(device.name) == UNNAMED and device.flops is None
    return device is None or resolve(device) == UNNAMED


def _canonical(device: str) -> str:
    return (resolve(device) or device).lower()


def _catalogued(device: str) -> _Peak | None:
    key = resolve(device)
    entry = known_devices()[key] if key else None
    if entry is None or entry.device.flops is None:
        return None
    return _Peak(device, entry.device.flops, entry.device.precision)


def _peak(device: str | DeviceType, profile: JobProfile) -> _Peak:
    """The rate to scale to: the device's own if it has one, else the catalogue's."""
    if isinstance(device, DeviceType) and device.flops is not None:
        known = _catalogued(device.name)
        return _Peak(device.name, device.flops, device.precision or (known.precision if known else None))
    name = device.name if isinstance(device, DeviceType) else device
    described = isinstance(device, DeviceType)  # in a cluster's file, maybe a kind of one's own
    if resolve(name) is None and not described:
        raise UnknownNameError("device", name, {*known_names(), *profile.compute_s})
    peak = _catalogued(name)
    if peak is None:
        measure = f"measure {profile.name} on {name} and write a profile"
        raise InputError(
            f"the speed of {name} is not known, so {profile.name} can't be scaled to it",
            hint=f"give {name} its `flops:`, or {measure}"
            if described
            else f"name another device, or {measure}",
        )
    return peak
