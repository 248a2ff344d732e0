"""The device catalogue: memory, peak rate and price of well-known devices, each figure with its source.

A figure without a reliable source is left out. None means unknown, and code that needs the figure reports that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from pydantic import RootModel

from berth.cluster.model import DeviceType
from berth.cluster.spec import DeviceSpec
from berth.errors import UnknownNameError

UNNAMED = "GPU"  # the type of devices whose only known fact is their number


class EntrySpec(DeviceSpec):
    """One device in devices.yaml: what a cluster's file can state, other names, and the sources."""

    aliases: tuple[str, ...] = ()
    source: str
    link_source: str | None = None
    price_source: str | None = None


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A device type and the sources of its figures."""

    device: DeviceType
    aliases: tuple[str, ...]
    source: str
    price_source: str | None
    link_source: str | None


@cache
def known_devices() -> dict[str, CatalogueEntry]:
    """Return all known devices by name, in the order of the file."""
    import yaml

    text = resources.files("berth.cluster").joinpath("data/devices.yaml").read_text(encoding="utf-8")
    written = RootModel[dict[str, EntrySpec]].model_validate(yaml.load(text, Loader=yaml.CSafeLoader)).root
    return {name: _entry(name, entry) for name, entry in written.items()}


def known_names() -> list[str]:
    """Return every name and alias in the catalogue."""
    return [name for key, entry in known_devices().items() for name in (key, *entry.aliases)]


def resolve(name: str) -> str | None:
    """Return the catalogue's name for a device name or alias in any case; None if unknown."""
    return _by_lowered_name().get(name.lower())


def device_type(name: str) -> DeviceType:
    """Return a device type by name or alias."""
    known = resolve(name)
    if known is None:
        raise UnknownNameError("device type", name, known_names())
    return known_devices()[known].device


@cache
def _by_lowered_name() -> dict[str, str]:
    return {name.lower(): key for key, entry in known_devices().items() for name in (key, *entry.aliases)}


def _entry(name: str, entry: EntrySpec) -> CatalogueEntry:
    return CatalogueEntry(
        entry.device(name), entry.aliases, entry.source, entry.price_source, entry.link_source
    )
