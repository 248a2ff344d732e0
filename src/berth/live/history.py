"""A job's story out of the journal: attempts, evictions and by whom, what they cost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

from berth.live.job import seat_of
from berth.live.records import Record
from berth.live.setup import Setup, setup_of
from berth.live.store import Store
from berth.schedule.reasons import CODES

Placed = tuple[int, Record, Setup]  # a record with its number and what its numbers mean


class Setups:
    """Which setup held when: each numbers machines and tiers anew."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._numbers, self._times = map(list, zip(*store.opened(), strict=True))
        self._known: dict[int, Setup] = {}

    def at_record(self, seq: int) -> Setup:
        """The one under which a record was written."""
        return self._setup(self._numbers[bisect_right(self._numbers, seq) - 1])

    def at_time(self, time: float) -> Setup:
        """The one under which something was measured."""
        return self._setup(self._numbers[max(0, bisect_right(self._times, time) - 1)])

    def _setup(self, seq: int) -> Setup:
        if seq not in self._known:
            self._known[seq] = setup_of(self._store.record(seq).body)
        return self._known[seq]


def history(job: str, store: Store, setups: Setups) -> dict[str, Any]:
    """Events in order, attempts with their places and ends, step times as they came and by tier."""
    records = [(seq, record, setups.at_record(seq)) for seq, record in store.job_records(job)]
    attempts = _attempts(records)
    _reckon(attempts)
    steps = [
        {"time": time, "tier": setups.at_time(time).tiers[tier], "count": count, "seconds": seconds}
        for time, tier, count, seconds in store.steps_of(job)
    ]
    return {
        "job": job,
        "events": [_event(*one) for one in records],
        "attempts": attempts,
        "steps": steps,
        "steps_by_tier": _by_tier(steps),
    }


def _by_tier(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps of all attempts at each tier, and their mean. A row of `steps` counts from its attempt's beginning."""
    found: dict[str, tuple[int, float]] = {}  # how many, and how long they took in all
    for row, following in zip_longest(steps, steps[1:]):
        if following and following["tier"] == row["tier"] and following["count"] > row["count"]:
            continue
        count, total_s = found.get(row["tier"], (0, 0.0))
        found[row["tier"]] = count + row["count"], total_s + row["count"] * row["seconds"]
    return [
        {"tier": tier, "count": count, "seconds": total_s / count} for tier, (count, total_s) in found.items()
    ]


def _event(seq: int, record: Record, setup: Setup) -> dict[str, Any]:
    told: dict[str, Any] = {"seq": seq, "time": record.time, "kind": record.kind}
    body = record.body
    for name in (
        "token",
        "code",
        "codes",
        "stopped",
        "done",
        "lost",
        "cause",
        "detail",
        "priority",
        "waited",
        "saves",
        "by",
    ):
        if body.get(name) is not None:
            told[name] = body[name]
    if "reason" in body:
        told["reason"] = CODES[int(body["reason"])]
    if "seats" in body:
        told["tier"], told["places"] = setup.tiers[int(body["tier"])], _places(body, setup)
    return told


def _places(body: dict[str, Any], setup: Setup) -> dict[str, int]:
    """Devices by machine."""
    found: dict[str, int] = {}
    for seat in map(seat_of, body["seats"]):
        name = setup.cluster.machines[seat.machine].name
        found[name] = found.get(name, 0) + len(seat.devices)
    return found


def _attempts(records: Sequence[Placed]) -> list[dict[str, Any]]:
    """One row for each attempt."""
    found: dict[str, dict[str, Any]] = {}
    last: str | None = None
    for _, record, setup in records:
        body = record.body
        if record.kind in ("start", "move"):
            if record.kind == "move" and last is not None:
                found[last] |= {"left": record.time, "left_for": CODES[int(body["reason"])]}
            last = body["token"]
            found[last] = {
                "token": last,
                "number": len(found) + 1,
                "placed": record.time,
                "tier": setup.tiers[int(body["tier"])],
                "places": _places(body, setup),
                "reason": CODES[int(body["reason"])],
            }
        elif record.kind == "evict" and last is not None:
            found[last] |= {
                "left": record.time,
                "left_for": CODES[int(body["reason"])],
                "by": body.get("by", []),
            }
        elif record.kind in ("started", "exited") and body["token"] in found:
            row = found[body["token"]]
            row["began" if record.kind == "started" else "ended"] = record.time
            row |= {
                name: body[name]
                for name in ("code", "codes", "stopped", "lost", "done", "cause", "detail")
                if name in body
            }
    return list(found.values())


def _reckon(attempts: list[dict[str, Any]]) -> None:
    """What leaving a place cost: device-seconds until the job ran again. Work done twice is not in it."""
    for one, following in pairwise(attempts):
        if "left" in one and "began" in following:
            away_s = following["began"] - one["left"]
            one["cost_device_s"] = away_s * sum(one["places"].values())
