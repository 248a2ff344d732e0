"""A cluster from a table of hosts and the switches above them.

    ip,DSW,PSW,ASW
    10.0.0.1,G6,P10,S14

The first column names the host, every other one a switch (or group of switches). The order of the switch
columns follows from the data: a finer group is inside ONE coarser group. Some tables restart the numbering of
the finer switches in each coarser one, so that `S14` exists in P10 and again in P12. If most names of a column
recur like that, they are read as different switches, and the cluster has a note about it. If only a few do, the
table contradicts itself and is refused, with the line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path

import numpy as np

from berth import spec as yaml_spec
from berth.cluster.catalogue import UNNAMED, device_type
from berth.cluster.expand import MAX_DEVICES
from berth.cluster.model import Cluster, Machine, Tier
from berth.cluster.tiers import default_names, default_tier
from berth.errors import InputError

DEVICES_PER_HOST = 8
_RECURRING_MAJORITY = 0.5


@dataclass(frozen=True, slots=True)
class _Host:
    name: str
    switches: tuple[str, ...]
    line: int


def read_topology(
    path: str | Path, *, devices_per_host: int = DEVICES_PER_HOST, device: str = UNNAMED
) -> Cluster:
    """Read a topology CSV; every host has `devices_per_host` devices of type `device`."""
    if devices_per_host < 1:
        raise InputError(f"{devices_per_host} devices per host", hint="give at least 1")
    where = str(path)
    try:
        columns, hosts = _read(yaml_spec.read_text(path), where)
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=where) from None
    if len(hosts) * devices_per_host > MAX_DEVICES:
        what = f"{len(hosts):,} hosts of {devices_per_host:,} devices; the limit is {MAX_DEVICES:,} devices"
        raise InputError(what, where=where)
    order = _coarse_to_fine(hosts, len(columns))
    columns = [columns[column] for column in order]
    hosts = [_Host(host.name, tuple(host.switches[c] for c in order), host.line) for host in hosts]
    notes = _check_nesting(columns, hosts, where)
    hosts.sort(key=lambda host: _natural(host.switches))
    return _build(Path(path).stem, columns, hosts, devices_per_host, device, notes)


def _read(text: str, where: str) -> tuple[list[str], list[_Host]]:
    rows = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip() for name in next(rows, [])]
    if len(header) < 2:
        raise InputError(
            "is not a topology", where=f"{where}:1", hint="its first line must be: host,switch,switch..."
        )
    tiers = ["machine", *(name.lower() for name in header[1:]), "network"]
    if len(set(tiers)) < len(tiers) or not all(header):
        raise InputError(
            "has a column name that is empty, repeated, `machine` or `network`",
            where=f"{where}:1",
            hint="each switch column becomes a tier between machine and network: give it a unique name",
        )
    hosts: dict[str, _Host] = {}
    for row in rows:
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        spot = f"{where}:{rows.line_num}"
        if len(cells) != len(header) or not all(cells):
            raise InputError(f"needs {len(header)} values, none of them empty", where=spot)
        if cells[0] in hosts:
            raise InputError(f"host {cells[0]!r} is already on line {hosts[cells[0]].line}", where=spot)
        hosts[cells[0]] = _Host(cells[0], tuple(cells[1:]), rows.line_num)
    if not hosts:
        raise InputError("names no host", where=where)
    return header[1:], list(hosts.values())


def _coarse_to_fine(hosts: Sequence[_Host], count: int) -> list[int]:
    """Return the columns, coarsest first; ties follow the direction of the header."""
    pairs = ((left, right) for left in range(count) for right in range(count) if left != right)
    decided = {pair: _compare(hosts, *pair) for pair in pairs}
    fine_first = sum(decided[left, right] for left, right in decided if left < right) > 0
    direction = -1 if fine_first else 1

    def order(left: int, right: int) -> int:
        return decided[left, right] or direction * (left - right)

    return sorted(range(count), key=cmp_to_key(order))


def _compare(hosts: Sequence[_Host], left: int, right: int) -> int:
    """1 if the left column is the finer, -1 if the right one is, 0 if the data does not decide."""
    of_left, of_right = (
        _recurring_share(_parents(hosts, fine, coarse)) for fine, coarse in ((left, right), (right, left))
    )
    if of_left == of_right or min(of_left, of_right) >= _RECURRING_MAJORITY:
        return 0
    return 1 if of_left < of_right else -1


def _parents(hosts: Sequence[_Host], fine: int, coarse: int) -> dict[str, dict[str, int]]:
    """Return the coarser names of each finer name, each with its first line."""
    parents: dict[str, dict[str, int]] = {}
    for host in hosts:
        parents.setdefault(host.switches[fine], {}).setdefault(host.switches[coarse], host.line)
    return parents


def _recurring_share(parents: dict[str, dict[str, int]]) -> float:
    return sum(len(lines) > 1 for lines in parents.values()) / len(parents)


def _check_nesting(columns: Sequence[str], hosts: Sequence[_Host], where: str) -> tuple[str, ...]:
    notes = []
    for fine in range(1, len(columns)):
        parents = _parents(hosts, fine, fine - 1)
        recurring = {name: lines for name, lines in parents.items() if len(lines) > 1}
        if not recurring:
            continue
        pair = (columns[fine], columns[fine - 1])
        if _recurring_share(parents) < _RECURRING_MAJORITY:
            raise _contradiction(recurring, pair, where)
        groups = len({host.switches[: fine + 1] for host in hosts})
        notes.append(
            f"{len(recurring)} of {len(parents)} {pair[0]} names recur in several {pair[1]} groups: "
            f"read as numbered per group, {groups} groups"
        )
    return tuple(notes)


def _contradiction(recurring: dict[str, dict[str, int]], pair: tuple[str, str], where: str) -> InputError:
    second = {name: sorted(lines.values())[1] for name, lines in recurring.items()}
    name = min(second, key=second.__getitem__)
    (first, _), (other, line), *_ = sorted(recurring[name].items(), key=lambda item: item[1])
    return InputError(
        f"{pair[0]} {name!r} is in {pair[1]} {other!r} here and in {first!r} above",
        where=f"{where}:{line}",
        hint=f"a {pair[0]} group must lie inside one {pair[1]} group",
    )


def _natural(switches: tuple[str, ...]) -> tuple[tuple[str, int, str], ...]:
    """Sorts S2 before S10."""
    keys = []
    for name in switches:
        head = name.rstrip("0123456789")
        keys.append((head, int(name[len(head) :][:18] or 0), name))
    return tuple(keys)


def _build(
    name: str,
    columns: Sequence[str],
    hosts: Sequence[_Host],
    per_host: int,
    device: str,
    notes: tuple[str, ...],
) -> Cluster:
    rows, names = [np.arange(len(hosts), dtype=np.int32)], [tuple(host.name for host in hosts)]
    for fine in reversed(range(len(columns))):
        numbers: dict[tuple[str, ...], int] = {}
        row = [numbers.setdefault(host.switches[: fine + 1], len(numbers)) for host in hosts]
        rows.append(np.asarray(row, dtype=np.int32))
        names.append(tuple("-".join(way) for way in numbers))
    levels = ["machine", *(column.lower() for column in reversed(columns))]
    if len(names[-1]) > 1:  # several coarsest groups: a network tier connects them
        rows.append(np.zeros(len(hosts), dtype=np.int32))
        names.append((name,))
        levels.append("network")
    return Cluster(
        name=name,
        device_types=(device_type(device),),
        tiers=_tiers(levels),
        machines=tuple(Machine(host.name, ((0, per_host),)) for host in hosts),
        groups=np.stack(rows),
        group_names=tuple(names),
        notes=notes,
    )


def _tiers(levels: Sequence[str]) -> tuple[Tier, ...]:
    """Return tiers with default figures by position: the name of a column says nothing about its links."""
    usual = default_names(len(levels))
    defaults = [default_tier(name, position, len(levels)) for position, name in enumerate(usual)]
    return tuple(
        Tier(name, tier.bytes_per_s, tier.latency_s, tier.oversubscription)
        for name, tier in zip(levels, defaults, strict=True)
    )
