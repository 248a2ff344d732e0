"""Measured iteration times: they override the formula where they apply and correct it nearby.

A table is CSV with the columns `model,gpus,machines,seconds` and, if known, `racks`, `tier` (the nearest that
held the job, by name) and `placement` (devices per machine, such as 4+4). For a job and a placement:

1. Rows that match the placement in every filled column give their own seconds. Rows with more columns
   filled win; several runs give their median.
2. Else the row of the same model and number of GPUs with the nearest spread corrects the formula:
   formula(here) * measured(there) / formula(there); again more columns win, and runs give their median.
3. Else the formula alone applies: a measurement at 8 GPUs does not predict 64.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

from berth.cluster.model import Cluster
from berth.errors import InputError, UnknownNameError
from berth.network.fabric import Fabric
from berth.network.iteration import formula_s
from berth.network.placement import Placement
from berth.network.spread import Spread, realise
from berth.network.traffic import Traffic
from berth.spec import read_text

_REQUIRED = ("model", "gpus", "machines", "seconds")
_OPTIONAL = ("racks", "tier", "placement")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; None: the column is empty."""

    model: str
    gpus: int
    machines: int
    seconds: float
    racks: int | None = None
    tier: str | None = None
    placement: tuple[int, ...] | None = None  # devices per machine, largest first

    @property
    def detail(self) -> int:
        """How many of the optional columns it fills."""
        return sum(value is not None for value in (self.racks, self.tier, self.placement))

    def describes(self, placement: Placement, fabric: Fabric) -> bool:
        """Whether the placement matches this row in every filled column."""
        groups = placement.groups(fabric.cluster)
        return (
            (self.gpus, self.machines) == (placement.devices, len(placement.machines))
            and self.racks in (None, groups[1] if len(groups) > 1 else 1)
            and self.tier in (None, fabric.cluster.tiers[groups.index(1)].name)
            and self.placement in (None, tuple(sorted(placement.counts.tolist(), reverse=True)))
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements of one model."""

    rows: tuple[Row, ...]

    def seconds(
        self, traffic: Traffic, placement: Placement, fabric: Fabric, modelled_s: float
    ) -> tuple[float, Literal["formula", "scaled", "measured"]]:
        """The iteration's seconds, and where they are from."""
        fitting = [row for row in self.rows if row.describes(placement, fabric)]
        if fitting:
            detail = max(row.detail for row in fitting)
            return median(row.seconds for row in fitting if row.detail == detail), "measured"
        ratio = self._nearest_ratio(traffic, placement, fabric)
        return (modelled_s, "formula") if ratio is None else (modelled_s * ratio, "scaled")

    def _nearest_ratio(self, traffic: Traffic, placement: Placement, fabric: Fabric) -> float | None:
        """Measured over modelled, at the nearest spread of as many GPUs that this cluster can hold."""
        groups = placement.groups(fabric.cluster)
        same = [(row, _spread_of(row, fabric)) for row in self.rows if row.gpus == placement.devices]
        held = [(row, spread) for row, spread in same if spread is not None]
        ratios: dict[tuple[tuple[int, float], int], list[float]] = {}
        for row, spread in held:
            there = _placement_of(row, spread, fabric)
            modelled_s = formula_s(traffic, there, fabric) if there is not None else 0.0
            if modelled_s > 0:
                ratios.setdefault((_distance(spread, groups), -row.detail), []).append(
                    row.seconds / modelled_s
                )
        return median(ratios[min(ratios)]) if ratios else None


def read_measured(path: str | Path, cluster: Cluster | None = None) -> dict[str, Measured]:
    """The measurements of every model in a CSV file; the tiers they name must be those of the cluster."""
    rows: dict[str, list[Row]] = {}
    try:
        for row in _rows(read_text(path), str(path), cluster):
            rows.setdefault(row.model, []).append(row)
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=str(path)) from None
    if not rows:
        raise InputError(
            "holds no measurements", where=str(path), hint="it has a header, but no row below it"
        )
    return {model: Measured(tuple(measured)) for model, measured in rows.items()}


def _rows(text: str, where: str, cluster: Cluster | None) -> Iterator[Row]:
    lines = csv.reader(text.splitlines())
    header = _header(next(lines, []), where)
    for cells in lines:
        if any(cell.strip() for cell in cells):
            row = _row(header, cells, f"{where}:{lines.line_num}")
            if cluster is not None and row.tier is not None:
                _check_tier(row.tier, cluster, f"{where}:{lines.line_num}")
            yield row


def _header(cells: list[str], where: str) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    missing = [name for name in _REQUIRED if name not in names]
    unknown = [name for name in names if name not in _REQUIRED + _OPTIONAL]
    if missing or unknown or len(set(names)) < len(names):
        what = f"lacks the column {missing[0]!r}" if missing else "has an unknown column or one twice"
        hint = f"columns: {','.join(_REQUIRED)} and, if known, {','.join(_OPTIONAL)}"
        raise InputError(
            what + (f": {unknown[0]!r}" if unknown and not missing else ""), where=f"{where}:1", hint=hint
        )
    return names


def _row(header: list[str], cells: list[str], where: str) -> Row:
    if len(cells) != len(header):
        raise InputError(f"has {len(cells)} cells, the header {len(header)}", where=where)
    value = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    if not value["model"]:
        raise InputError("model is empty", where=where)
    row = Row(
        model=value["model"],
        gpus=_cell("gpus", value["gpus"], _whole, where),
        machines=_cell("machines", value["machines"], _whole, where),
        seconds=_cell("seconds", value["seconds"], _positive, where),
        racks=_cell("racks", value["racks"], _whole, where) if value.get("racks") else None,
        tier=value.get("tier") or None,
        placement=_cell("placement", value["placement"], _counts, where) if value.get("placement") else None,
    )
    _check_row(row, where)
    return row


def _check_row(row: Row, where: str) -> None:
    if row.machines > row.gpus:
        raise InputError(f"{row.gpus} GPUs can't be on {row.machines} machines", where=where)
    if row.racks is not None and row.racks > row.machines:
        raise InputError(f"{row.machines} machines can't be in {row.racks} racks", where=where)
    if row.placement is not None and (len(row.placement), sum(row.placement)) != (row.machines, row.gpus):
        shown = "+".join(map(str, row.placement))
        raise InputError(
            f"placement {shown} is {sum(row.placement)} GPUs on {len(row.placement)} machines, "
            f"not {row.gpus} on {row.machines}",
            where=where,
        )


def _check_tier(name: str, cluster: Cluster, where: str) -> None:
    known = [tier.name for tier in cluster.tiers]
    if name not in known:
        raise UnknownNameError(f"tier of cluster {cluster.name!r}", name, known, where=where)


def _cell(name: str, text: str, read: Callable[[str], T], where: str) -> T:
    try:
        return read(text)
    except ValueError:
        hint = "placement is written like 4+4" if name == "placement" else None
        raise InputError(f"{name} can't be {text!r}", where=where, hint=hint) from None


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError
    return value


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted((_whole(part) for part in text.split("+")), reverse=True))


def _distance(spread: Spread, groups: tuple[int, ...]) -> tuple[int, float]:
    """How unlike two spreads are: tiers apart first, then the ratio of the numbers of machines."""
    return abs(spread.tier - groups.index(1)), abs(math.log(spread.groups[0] / groups[0]))


def _spread_of(row: Row, fabric: Fabric) -> Spread | None:
    """What a row says of the spread, the rest as near as can be; None: not on this cluster."""
    tiers = [tier.name for tier in fabric.cluster.tiers]
    racks = row.racks or 1
    tier = tiers.index(row.tier) if row.tier in tiers else (2 if racks > 1 else 1 if row.machines > 1 else 0)
    between = [racks if level == 1 and row.racks else 2 for level in range(1, tier)]
    groups = (row.machines, *between, *([1] * (len(tiers) - max(tier, 1))))
    return Spread(row.gpus, groups) if len(groups) == len(tiers) and 1 in groups else None


def _placement_of(row: Row, spread: Spread, fabric: Fabric) -> Placement | None:
    """A placement on this cluster like the measured one; None if it does not fit the cluster."""
    even = realise(fabric.cluster, spread)
    if even is None or row.placement is None:
        return even
    sizes = fabric.cluster.sizes
    largest_first = sorted(even.machines.tolist(), key=lambda machine: (-sizes[machine], machine))
    counts = dict(zip(largest_first, row.placement, strict=True))
    fits = all(count <= sizes[machine] for machine, count in counts.items())
    return Placement.of_counts(counts) if fits else None
