"""Default tiers: names by position, figures by name.

The figures are those of a common cluster of eight-GPU machines: NVLink inside the machine, one 200 Gbit/s
port per device to the rack, half of that and a fourfold over-subscription across the network. A description
can override each of them.
"""

from __future__ import annotations

from berth.cluster.model import Tier

_KNOWN = {
    "machine": Tier("machine", 300e9, 1e-6),
    "rack": Tier("rack", 25e9, 2e-6),
    "pod": Tier("pod", 12.5e9, 3e-6, 2.0),
    "network": Tier("network", 12.5e9, 5e-6, 4.0),
}
# A count of devices without a shape: any two are as near as inside one machine.
POOL = Tier("pool", 300e9, 1e-6)


def default_names(count: int) -> tuple[str, ...]:
    """Return names for `count` tiers, nearest first: machine, rack, pod, pod2 ... network."""
    if count <= 3:
        return ("machine", "rack", "network") if count == 3 else ("machine", "network")[:count]
    pods = ("pod", *(f"pod{number}" for number in range(2, count - 2)))
    return ("machine", "rack", *pods, "network")


def default_tier(name: str, position: int, count: int) -> Tier:
    """Return the default figures of a tier by its name, or by its position if the name is not a known one."""
    default = _KNOWN.get(name) or _by_position(position, count)
    return Tier(name, default.bytes_per_s, default.latency_s, default.oversubscription)


def default_tiers(count: int) -> tuple[Tier, ...]:
    """Return the tiers of a cluster that does not describe them."""
    return tuple(default_tier(name, position, count) for position, name in enumerate(default_names(count)))


def _by_position(position: int, count: int) -> Tier:
    usual = default_names(count)[position]
    return _KNOWN.get(usual, _KNOWN["pod"])
