"""Statistics of resident tables: those of all shards, and how even they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from berth.train.tables import shard_skew
from berth.train.tables.statistics import table_totals


def add_up_shards(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals of each table, and rows and bytes of each owner, from what every worker reported.

    Tables on servers are the same in all reports.
    """
    reported = [worker["shards"] for worker in workers]
    names = list(dict.fromkeys(name for one in reported for name in one["tables"]))
    tables = {
        name: _total([one["tables"][name] for one in reported if name in one["tables"]]) for name in names
    }
    owners = [
        {
            "rank": rank,
            "stage": worker["stage"],
            "rows": sum(table["rows"] for table in one["tables"].values()),
            "memory_bytes": sum(table["memory_bytes"] for table in one["tables"].values()),
            "device_bytes": sum(cache["bytes"] for cache in one.get("device_cache", {}).values()),
            "exchanged_bytes": one["exchanged_bytes"],
        }
        for rank, (worker, one) in enumerate(zip(workers, reported, strict=True))
        if one["tables"]
    ]
    moved = sum(owner["exchanged_bytes"] for owner in owners)
    weights = {
        name: (one["counts"]["pulled"] + one["counts"]["pushed"]) * one["bytes_per_row"]
        for name, one in tables.items()
    }
    for name, one in tables.items():
        one["moved_bytes"] = round(moved * weights[name] / (sum(weights.values()) or 1))
    tables = {**reported[0].get("served_tables", {}), **tables}
    found: dict[str, Any] = {"tables": tables, "owners": owners}
    if "servers" not in reported[0]:  # else it is theirs
        found["skew"] = shard_skew([owner["rows"] for owner in owners])
    caches = [one["device_cache"] for one in reported if one.get("device_cache")]
    return found | ({"device_cache": _caches(caches)} if caches else {})


def _total(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals of one table."""
    flat = [
        {name: value for name, value in {**one, **one["counts"]}.items() if name != "counts"}
        for one in shards
    ]
    return table_totals(flat)


def _caches(ranks: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the totals of rows in device memory, by table."""
    found: dict[str, dict[str, Any]] = {}
    for caches in ranks:
        for name, facts in caches.items():
            total = found.setdefault(name, dict.fromkeys(facts, 0))
            for what, value in facts.items():
                total[what] += value
    for total in found.values():
        used = total["hits"] + total["misses"]
        total["hit_rate"] = total["hits"] / used if used else 0.0
    return found
