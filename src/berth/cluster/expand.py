"""Expands a cluster description: counts become machines, nesting becomes rows of group numbers.

The description is measured first (depth, devices), so that a typing error such as `count: 1000000000` is
refused before anything is built. It is then walked once, in file order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from berth import spec as yaml_spec
from berth.cluster.catalogue import known_devices, known_names, resolve
from berth.cluster.model import Cluster, DeviceType, Machine, Tier
from berth.cluster.spec import ClusterSpec, GroupSpec, MachineSpec, RackSpec, or_default
from berth.cluster.tiers import default_names, default_tier, default_tiers
from berth.errors import SpecError, UnknownNameError

MAX_DEVICES = 10_000_000
_KINDS = ("groups", "racks", "machines")

Path = tuple[int | str, ...]
Parent = ClusterSpec | GroupSpec | RackSpec
Child = GroupSpec | RackSpec | MachineSpec


@dataclass(frozen=True, slots=True)
class SpecText:
    """The text of a description and its file name, to locate mistakes."""

    text: str
    name: str

    def spot(self, path: Path, *, at_key: bool = False) -> str:
        """Return `file:line:column` of a value, or of its key."""
        line, column = yaml_spec.locate(self.text, path, at_key=at_key)
        return f"{self.name}:{line}:{column}"


def expand(spec: ClusterSpec, name: str, source: SpecText | None = None) -> Cluster:
    """Return the cluster of a description; `name` applies if the description has no name."""
    walk = _Walk(spec, source)
    depth, devices = walk.measure(spec, ())
    if devices > MAX_DEVICES:
        raise walk.error(
            (), f"describes {devices:,} devices; the limit is {MAX_DEVICES:,}", "check the counts"
        )
    walk.visit(spec, (), _Place())
    return walk.cluster(spec.name or name, walk.tiers(depth))


@dataclass(frozen=True, slots=True)
class _Place:
    """The group being walked: its name, its numbers (outermost first), and whether it is one of several copies."""

    name: str = ""
    chain: tuple[int, ...] = ()
    repeated: bool = False


@dataclass(slots=True)
class _Walk:
    spec: ClusterSpec
    source: SpecText | None
    types: dict[str, DeviceType] = field(default_factory=dict)  # in order of appearance
    machines: list[Machine] = field(default_factory=list)
    chains: list[tuple[int, ...]] = field(default_factory=list)  # per machine, outermost group first
    names: dict[int, dict[str, int]] = field(default_factory=dict)  # groups per depth, with their numbers
    machine_names: set[str] = field(default_factory=set)

    def error(self, path: Path, what: str, hint: str | None = None, *, at_key: bool = False) -> SpecError:
        where = self.source.spot(path, at_key=at_key) if self.source else None
        return SpecError(what, where=where, hint=hint)

    def children(self, parent: Parent, path: Path) -> tuple[str, Sequence[Child]]:
        given = [kind for kind in _KINDS if getattr(parent, kind, None) is not None]
        if not given:
            raise self.error(path, "holds no machines", "give one of `machines:`, `racks:` or `groups:`")
        if len(given) > 1:
            both = f"`{given[0]}:` and `{given[1]}:` are both given"
            raise self.error(
                (*path, given[1]), both, "keep one of them: a level has one type of child", at_key=True
            )
        return given[0], getattr(parent, given[0])

    def measure(self, parent: Parent, path: Path) -> tuple[int, int]:
        """Return the levels of groups between `parent` and its machines, and the devices below it."""
        kind, entries = self.children(parent, path)
        depth, devices = 0, 0
        for index, child in enumerate(entries):
            if isinstance(child, MachineSpec):
                devices += child.count * sum(child.devices.values())
                continue
            below, inside = self.measure(child, (*path, kind, index))
            if index and below + 1 != depth:
                raise self._uneven((*path, kind, index), kind[:-1], below, depth - 1)
            depth, devices = below + 1, devices + child.count * inside
        return depth, devices

    def _uneven(self, path: Path, word: str, depth: int, first: int) -> SpecError:
        what = f"the machines of this {word} are {_levels(depth)}, those of the first {word} {_levels(first)}"
        return self.error(path, what, "all machines must be at the same depth; add or remove a group")

    def visit(self, parent: Parent, path: Path, place: _Place) -> None:
        kind, entries = self.children(parent, path)
        number = 0
        for index, child in enumerate(entries):
            child_path = (*path, kind, index)
            devices = self._devices(child, child_path) if isinstance(child, MachineSpec) else ()
            for copy in range(child.count):
                name = _name(child, copy, f"{kind[0]}{number}", place)
                number += 1
                if isinstance(child, MachineSpec):
                    self._add_machine(child, name, devices, child_path, place)
                else:
                    self._enter(child, name, kind, child_path, place)

    def _enter(self, child: GroupSpec | RackSpec, name: str, kind: str, path: Path, place: _Place) -> None:
        siblings = self.names.setdefault(len(place.chain), {})
        if name in siblings:
            raise self._duplicate(child, name, kind, path)
        siblings[name] = len(siblings)
        chain = (*place.chain, siblings[name])
        self.visit(child, path, _Place(name, chain, place.repeated or child.count > 1))

    def _add_machine(
        self, child: MachineSpec, name: str, devices: tuple[tuple[int, int], ...], path: Path, place: _Place
    ) -> None:
        if name in self.machine_names:
            raise self._duplicate(child, name, "machines", path)
        self.machine_names.add(name)
        self.chains.append(place.chain)
        self.machines.append(Machine(name, devices, child.cores, child.memory, child.nic, child.price))

    def _duplicate(self, child: Child, name: str, kind: str, path: Path) -> SpecError:
        spot = (*path, "name") if child.name else path
        return self.error(spot, f"two {kind} are called {name!r}", "give each a different name, or none")

    def _devices(self, child: MachineSpec, path: Path) -> tuple[tuple[int, int], ...]:
        counts: dict[int, int] = {}
        for name, count in child.devices.items():
            index = self._type_index(name, (*path, "devices", name))
            counts[index] = counts.get(index, 0) + count
        return tuple(counts.items())

    def _type_index(self, name: str, path: Path) -> int:
        device = self._device(name, path)
        self.types.setdefault(device.name, device)
        return list(self.types).index(device.name)

    def _device(self, name: str, path: Path) -> DeviceType:
        known = resolve(name)
        if name in self.spec.devices:
            return self.spec.devices[name].device(name, known_devices()[known].device if known else None)
        if known is None:
            where = self.source.spot(path, at_key=True) if self.source else None
            raise UnknownNameError("device type", name, {*known_names(), *self.spec.devices}, where=where)
        return known_devices()[known].device

    def tiers(self, depth: int) -> tuple[Tier, ...]:
        """Return the given tiers; missing figures get the defaults of their name or position."""
        count, given = depth + 2, self.spec.tiers
        if given is None:
            return default_tiers(count)
        usual = default_names(count)
        if len(given) != count:
            what = f"{len(given)} tiers are given where {count} are needed"
            raise self.error(("tiers",), what, f"nearest first, for example: {', '.join(usual)}")
        tiers: list[Tier] = []
        for position, written in enumerate(given):
            default = default_tier(written.name or usual[position], position, count)
            if any(tier.name == default.name for tier in tiers):
                raise self.error(("tiers", position), f"two tiers are called {default.name!r}")
            tiers.append(
                Tier(
                    default.name,
                    or_default(written.bandwidth, default.bytes_per_s),
                    or_default(written.latency, default.latency_s),
                    or_default(written.oversubscription, default.oversubscription),
                )
            )
        return tuple(tiers)

    def cluster(self, name: str, tiers: tuple[Tier, ...]) -> Cluster:
        count, depth = len(self.machines), len(tiers) - 2
        inner = np.array(self.chains, dtype=np.int32).reshape(count, depth).T[::-1]
        rows = [np.arange(count, dtype=np.int32)[None], inner, np.zeros((1, count), dtype=np.int32)]
        names = [tuple(self.names[level]) for level in reversed(range(depth))]
        machine_names = tuple(machine.name for machine in self.machines)
        return Cluster(
            name=name,
            device_types=tuple(self.types.values()),
            tiers=tiers,
            machines=tuple(self.machines),
            groups=np.concatenate(rows),
            group_names=(machine_names, *names, (name,)),
            notes=_free_of_charge(tuple(self.types.values())),
        )


def _free_of_charge(types: Sequence[DeviceType]) -> tuple[str, ...]:
    """A note about types that cost $0 beside others with a price: no other cost is a multiple of nothing."""
    free = [kind.name for kind in types if kind.usd_per_hour == 0.0]
    if not free or not any(kind.usd_per_hour for kind in types):
        return ()
    names = ", ".join(free)
    costs, alone = ("costs", names) if len(free) == 1 else ("cost", "them")
    return (
        f"{names} {costs} $0/h: a job that could run on {alone} alone takes its alternatives without regard to dollars",
    )


def _name(child: Child, copy: int, generated: str, place: _Place) -> str:
    """Return a given name (with its group's name if the group is repeated), or a generated one such as r0-m3."""
    if child.name is None:
        return f"{place.name}-{generated}" if place.name else generated
    own = child.name if child.count == 1 else f"{child.name}{copy}"
    return f"{place.name}-{own}" if place.repeated else own


def _levels(depth: int) -> str:
    return "directly in it" if depth == 0 else f"{depth} level{'s' if depth > 1 else ''} further down"
