"""The history of a job, from the journal: its attempts, its evictions and what they cost, its step times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

from berth.cluster.model import Cluster
from berth.live.job import seat_from_list
from berth.live.lifecycle import AttemptTrack, JobTrack
from berth.live.records import Record
from berth.live.setup import Setup, setup_from_dict
from berth.live.store import Store
from berth.schedule.reasons import CODES

_END = ("code", "codes", "stopped", "lost", "done", "cause", "detail")
_SHOWN = (*_END, "token", "priority", "waited", "saves", "by", "shape")


class Setups:
    """The setup at each time: machines and tiers are numbered differently in each."""

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
            self._known[seq] = setup_from_dict(self._store.record(seq).body)
        return self._known[seq]


def history(job: str, store: Store, setups: Setups) -> dict[str, Any]:
    """Return events in order, attempts with their places and ends, and step times as reported and by tier."""
    found = store.job_records(job)
    records = [(record, setups.at_record(seq)) for seq, record in found]
    steps = [
        {"time": time, "tier": setups.at_time(time).tiers[tier], "count": count, "seconds": seconds}
        for time, tier, count, seconds in store.steps_of(job)
    ]
    return {
        "job": job,
        "events": [_event(seq, *one) for (seq, _), one in zip(found, records, strict=True)],
        "attempts": _attempts(records),
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
    body = record.body
    row = {"seq": seq, "time": record.time, "kind": record.kind}
    row |= {name: body[name] for name in _SHOWN if body.get(name) is not None}
    if "reason" in body:
        row["reason"] = CODES[int(body["reason"])]
    return row | (placement(body, setup.cluster) if "seats" in body else {})


def placement(body: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Return the tier of a placement, and its devices by machine."""
    places: dict[str, int] = {}
    for seat in map(seat_from_list, body["seats"]):
        name = cluster.machines[seat.machine].name
        places[name] = places.get(name, 0) + len(seat.devices)
    return {"tier": cluster.tiers[int(body["tier"])].name, "places": places}


def _attempts(records: Sequence[tuple[Record, Setup]]) -> list[dict[str, Any]]:
    """One row for each attempt, with what leaving its place cost: device-seconds until the job ran again.

    Work that was done twice is not in the cost.
    """
    job = JobTrack()
    setups: dict[str | None, Setup] = {}
    for record, setup in records:
        job.apply(record.kind, record.time, record.body)
        setups.setdefault(record.body.get("token"), setup)
    rows = [
        _attempt(number, one, setups[one.start["token"]])
        for number, one in enumerate(job.attempts.values(), 1)
    ]
    for row, following in pairwise(rows):
        if "left" in row and "began" in following:
            row["cost_device_s"] = (following["began"] - row["left"]) * sum(row["places"].values())
    return rows


def _attempt(number: int, attempt: AttemptTrack, setup: Setup) -> dict[str, Any]:
    start, left, end = attempt.start, attempt.left, attempt.end
    row = {"token": start["token"], "number": number, "placed": attempt.placed_at}
    row |= placement(start, setup.cluster) | {"reason": CODES[int(start["reason"])]}
    row |= {"shape": start["shape"]} if "shape" in start else {}
    if left is not None:
        row |= {"left": attempt.left_at, "left_for": CODES[int(left["reason"])]}
        row |= {} if "token" in left else {"by": left.get("by", [])}  # an eviction, not a move
    if attempt.began_at is not None:
        row["began"] = attempt.began_at
    if end is not None:
        row |= {"ended": attempt.ended_at} | {name: end[name] for name in _END if name in end}
    return row
