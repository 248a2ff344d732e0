"""A job's story out of the journal: attempts, evictions and by whom, what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from berth.live.job import seat_of
from berth.live.records import Record
from berth.live.setup import Setup
from berth.schedule.reasons import CODES


def history(
    job: str,
    records: Sequence[tuple[int, Record]],
    setup: Setup,
    steps: Sequence[tuple[float, int, int, float]] = (),
) -> dict[str, Any]:
    """Events in order, attempts with their places and ends, step times by tier."""
    events = [_event(seq, record, setup) for seq, record in records]
    attempts = _attempts(records, setup)
    _reckon(attempts)
    return {
        "job": job,
        "events": events,
        "attempts": attempts,
        "steps": [
            {"time": time, "tier": setup.tiers[tier], "count": count, "seconds": seconds}
            for time, tier, count, seconds in steps
            if tier < len(setup.tiers)
        ],
    }


def _event(seq: int, record: Record, setup: Setup) -> dict[str, Any]:
    told: dict[str, Any] = {"seq": seq, "time": record.time, "kind": record.kind}
    body = record.body
    for name in ("token", "code", "codes", "stopped", "done", "lost", "priority", "waited", "saves", "by"):
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
    machines = setup.cluster.machines
    for seat in map(seat_of, body["seats"]):
        name = machines[seat.machine].name if seat.machine < len(machines) else f"machine {seat.machine}"
        found[name] = found.get(name, 0) + len(seat.devices)
    return found


def _attempts(records: Sequence[tuple[int, Record]], setup: Setup) -> list[dict[str, Any]]:
    """One row for each attempt."""
    found: dict[str, dict[str, Any]] = {}
    last: str | None = None
    for _, record in records:
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
            row |= {name: body[name] for name in ("code", "codes", "stopped", "lost", "done") if name in body}
    return list(found.values())


def _reckon(attempts: list[dict[str, Any]]) -> None:
    """What leaving a place cost: device-seconds until the job ran again. Work done twice is not in it."""
    for one, following in pairwise(attempts):
        if "left" in one and "began" in following:
            away_s = following["began"] - one["left"]
            one["cost_device_s"] = away_s * sum(one["places"].values())
