"""`berth cluster`: show a cluster, list presets and devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from berth import units
from berth.cli import complete
from berth.cli.options import AsJson, argument
from berth.cli.verbs import Verbs
from berth.report import terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from berth.cluster.catalogue import CatalogueEntry
    from berth.cluster.model import Cluster, Machine
    from berth.cluster.summary import IdenticalParts

app = Verbs(help="Show a cluster; list presets and known devices.")

_MAX_BRANCHES = 12
_SCALES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))
_GROUP_WORDS = ("rack", "unit", "pod", "zone", "row", "room", "hall", "group")


@app.verb(
    "berth cluster show 4x20x8:H100",
    "berth cluster show lab --json",
    "berth cluster show cluster.yaml",
    "berth cluster show topology.csv:8xA100",
)
def show(
    cluster: Annotated[
        str,
        argument(
            "CLUSTER",
            "A shape (160, 20x8, 4x20x8:H100), a preset, a YAML file, or a CSV of hosts and switches.",
            complete=complete.clusters,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show the tree, devices, price and tiers of a cluster."""
    from berth.cluster.load import load_cluster

    loaded = load_cluster(cluster)
    if as_json:
        terminal.print_json(_cluster_json(loaded))
        return
    _print_cluster(loaded, terminal.console())


@app.verb("berth cluster presets")
def presets(as_json: AsJson = False) -> None:
    """List the shipped clusters."""
    from berth.cluster.load import load_cluster
    from berth.cluster.load import presets as load_presets

    rows = [(name, text, load_cluster(name).devices) for name, text in load_presets().items()]
    if as_json:
        keys = ("name", "description", "devices")
        terminal.print_json({"presets": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    cells = [(name, text, f"{devices:,}") for name, text, devices in rows]
    terminal.console().print(terminal.table("", ("preset", "what it is", "devices"), cells, left=2))


@app.verb("berth cluster devices", "berth cluster devices --json")
def devices(as_json: AsJson = False) -> None:
    """List the known device types in the words of a cluster's file, with the source of every figure."""
    from berth.cluster.catalogue import known_devices

    entries = known_devices()
    if as_json:
        terminal.print_json({"devices": [_entry_json(entry) for entry in entries.values()]})
        return
    console = terminal.console()
    columns = ("device", "flops", "fp32", "memory", "memory_\nbandwidth", "link", "price")
    rows = [_entry_row(entry) for entry in entries.values()]
    console.print(terminal.table("Devices", columns, rows, narrow=True))
    sources = [(name, _entry_sources(entry)) for name, entry in entries.items()]
    console.print(terminal.table("Where the figures are from", ("device", "source"), sources, left=2))


def _print_cluster(cluster: Cluster, console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    heading = (
        f"{cluster.name}: {_many(cluster.devices, 'device')} on {_many(len(cluster.machines), 'machine')}"
    )
    console.print(Text(heading, style="bold"))
    console.print(Padding(_tree(cluster), (1, 0, 1, 2)))
    console.print(_type_table(cluster))
    console.print(Text(_price_line(cluster)))
    console.print()
    console.print(_tier_table(cluster))
    console.print(Text("Bandwidth is what one device gets; an up-link is shared by its whole group."))
    for note in cluster.notes:
        console.print(Text(f"Note: {note}."))


def _tree(cluster: Cluster) -> Tree:
    from rich.tree import Tree

    from berth.cluster.summary import collapse

    tree = Tree("", hide_root=True)
    _grow(tree, collapse(cluster), cluster, single=True)
    return tree


def _grow(tree: Tree, kinds: tuple[IdenticalParts, ...], cluster: Cluster, *, single: bool) -> None:
    from rich.text import Text

    for kind in kinds[:_MAX_BRANCHES]:
        label, rest = _label(kind, cluster, named=single and len(kinds) > 1)
        _grow(tree.add(Text(label)), rest, cluster, single=single and kind.count == 1)
    if len(kinds) > _MAX_BRANCHES:
        hidden = kinds[_MAX_BRANCHES:]
        machines = sum(kind.machines for kind in hidden)
        tree.add(Text(f"... and {_many(len(hidden), 'more kind')} ({_many(machines, 'machine')})"))


def _label(kind: IdenticalParts, cluster: Cluster, *, named: bool) -> tuple[str, tuple[IdenticalParts, ...]]:
    """One line for a part and, while it has a single kind of child, for its children."""
    head = f"{kind.name}: " if named and kind.count == 1 and kind.machine is None else ""
    words = []
    while True:
        words.append(_many(kind.count, cluster.tiers[kind.level].name))
        if kind.machine is not None:
            return (
                f"{head}{' x '.join([*words, _contents(kind.machine, cluster)])}{_extras(kind.machine)}",
                (),
            )
        if len(kind.parts) != 1:
            return f"{head}{' x '.join(words)}, {'each ' if kind.count > 1 else ''}with", kind.parts
        kind = kind.parts[0]


def _contents(machine: Machine, cluster: Cluster) -> str:
    parts = [f"{count:,} {cluster.device_types[index].name}" for index, count in machine.devices]
    return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"


def _extras(machine: Machine) -> str:
    extras = []
    if machine.cores is not None:
        extras.append(_many(machine.cores, "core"))
    if machine.memory_bytes is not None:
        extras.append(units.format_bytes(machine.memory_bytes))
    if machine.nic_bytes_per_s is not None:
        extras.append(f"NIC {units.format_bandwidth(machine.nic_bytes_per_s)}")
    return f"  ({', '.join(extras)})" if extras else ""


def _type_table(cluster: Cluster) -> Any:
    from berth.cluster.summary import summarise_types

    rows = [
        (
            of.device.name,
            f"{of.count:,}",
            _or_unknown(of.device.memory_bytes, units.format_bytes),
            _or_unknown(of.memory_bytes, units.format_bytes),
            _or_unknown(of.device.flops, units.format_flops),
            _or_unknown(of.device.usd_per_hour, units.format_usd_per_hour),
            _or_unknown(of.usd_per_hour, units.format_usd_per_hour),
        )
        for of in summarise_types(cluster)
    ]
    columns = ("device", "count", "memory", "together", "peak", "price", "together")
    return terminal.table("Devices", columns, rows)


def _price_line(cluster: Cluster) -> str:
    if cluster.usd_per_hour is None:
        unpriced = [kind.name for kind in cluster.device_types if kind.usd_per_hour is None]
        return f"Price of all: unknown (no price is known for {', '.join(unpriced)})"
    hosts = sum(machine.usd_per_hour or 0.0 for machine in cluster.machines)
    share = f", of which {units.format_usd_per_hour(hosts)} for the hosts" if hosts else ""
    return f"Price of all: {units.format_usd_per_hour(cluster.usd_per_hour)}{share}"


def _tier_table(cluster: Cluster) -> Any:
    from berth.cluster.summary import summarise_tiers

    rows = [
        (
            of.tier.name,
            units.format_bandwidth(of.tier.bytes_per_s),
            units.format_seconds(of.tier.latency_s),
            f"{of.tier.oversubscription:g}:1",
            f"{of.groups:,}",
            _span(*of.devices, lambda size: f"{size:,}"),
            _span(*of.uplink_bytes_per_s, units.format_bandwidth) if of.uplink_bytes_per_s else "-",
        )
        for of in summarise_tiers(cluster)
    ]
    columns = ("tier", "bandwidth", "latency", "oversub", "groups", "devices", "up-link")
    return terminal.table("Tiers, nearest first (devices and up-link of one group)", columns, rows)


def _cluster_json(cluster: Cluster) -> dict[str, Any]:
    from berth.cluster.summary import collapse, summarise_tiers, summarise_types

    return {
        "name": cluster.name,
        "devices": cluster.devices,
        "machines": len(cluster.machines),
        "usd_per_hour": cluster.usd_per_hour,
        "device_types": [
            {**asdict(of.device), "count": of.count, "total_usd_per_hour": of.usd_per_hour}
            for of in summarise_types(cluster)
        ],
        "tiers": [
            {
                **asdict(of.tier),
                "groups": of.groups,
                "devices_per_group": of.devices,
                "uplink_bytes_per_s": of.uplink_bytes_per_s,
            }
            for of in summarise_tiers(cluster)
        ],
        "tree": [_kind_json(kind, cluster) for kind in collapse(cluster)],
        "notes": list(cluster.notes),
    }


def _kind_json(kind: IdenticalParts, cluster: Cluster) -> dict[str, Any]:
    head = {"tier": cluster.tiers[kind.level].name, "count": kind.count}
    if kind.machine is None:
        return {**head, "parts": [_kind_json(part, cluster) for part in kind.parts]}
    facts = asdict(kind.machine)
    facts["devices"] = {cluster.device_types[index].name: count for index, count in facts["devices"]}
    return {**head, **{name: value for name, value in facts.items() if name != "name"}}


def _entry_json(entry: CatalogueEntry) -> dict[str, Any]:
    facts = asdict(entry)
    return {**facts.pop("device"), **facts}


def _exact(unit: str) -> Callable[[float], str]:
    """Return a formatter that keeps every digit, so that a figure can be copied into a cluster's file."""

    def shown(value: float) -> str:
        for prefix, factor in _SCALES:
            digits = f"{value / factor:.12g}"
            if value >= factor and float(digits) * factor == value:
                return f"{digits}{prefix}{unit}"
        return units.as_sent(value, unit)

    return shown


def _entry_row(entry: CatalogueEntry) -> tuple[str, ...]:
    device = entry.device
    return (
        device.name,
        _or_dash(device.flops, _exact("FLOPS")),
        _or_dash(device.fp32_flops, _exact("FLOPS")),
        _or_dash(device.memory_bytes, units.format_bytes),
        _or_dash(device.memory_bytes_per_s, _exact("B/s")),
        _or_dash(device.link_bytes_per_s, _exact("B/s")),
        _or_dash(device.usd_per_hour, "${:.12g}/h".format),
    )


def _entry_sources(entry: CatalogueEntry) -> str:
    precision = f"precision: {entry.device.precision}; " if entry.device.precision else ""
    price = f"; price: {entry.price_source}" if entry.price_source else ""
    return f"{precision}{entry.source}{price}"


def _or_dash(value: Any, shown: Callable[[Any], str]) -> str:
    return "-" if value is None else shown(value)


def _or_unknown(value: Any, shown: Any) -> str:
    return "unknown" if value is None else str(shown(value))


def _span(low: float, high: float, shown: Any) -> str:
    """`8`, `16-64`, `100-400GB/s`; the unit appears once if both ends share it."""
    first, last = str(shown(low)), str(shown(high))
    if first == last:
        return first
    unit = last.lstrip("0123456789.,")
    return f"{first.removesuffix(unit)}-{last}" if first.lstrip("0123456789.,") == unit else f"{first}-{last}"


def _many(count: int, word: str) -> str:
    """`1 rack`, `4 racks`; an unknown word keeps its form: `4 asw groups`."""
    if word in _GROUP_WORDS or word in ("machine", "device", "core", "more kind"):
        return f"{count:,} {word}{'s' if count != 1 else ''}"
    return f"{count:,} {word}" if word == "pool" else f"{count:,} {word} group{'s' if count != 1 else ''}"
