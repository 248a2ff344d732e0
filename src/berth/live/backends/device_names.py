"""Maps a scheduler's name of a GPU to a device type: one of the catalogue, or one known by name only."""

from __future__ import annotations

import re

from berth.cluster.catalogue import UNNAMED, device_type, known_devices, resolve
from berth.cluster.model import DeviceType

_VENDORS = ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct")


def device_named(written: str) -> DeviceType:
    """Return the catalogue's device if the name is unambiguous, else a device known by name only."""
    words = [word for word in written.lower().replace("_", "-").split("-") if word not in _VENDORS]
    memory = [f"{word.rstrip('gb')}gb" for word in words if re.fullmatch(r"\d+gb?", word)]
    for guess in (written or UNNAMED, "-".join(words), "-".join(words[:1] + memory), "".join(words)):
        if possible(guess):
            return DeviceType(written)
        if known := resolve(guess):
            return device_type(known)
    return DeviceType(written)


def possible(name: str) -> list[str]:
    """Return the devices that an ambiguous name may mean: `a100` has 40 or 80 GB."""
    bare = "-".join(word for word in name.lower().replace("_", "-").split("-") if word not in _VENDORS)
    models = [known for known in known_devices() if known.lower().startswith(f"{bare}-")]
    return models if len(models) > 1 and resolve(bare) in models else []
