"""Whether a checkpoint is of the same run."""

from __future__ import annotations

from typing import Any

from berth.errors import InputError
from berth.train.data.columns import NUMBER_IDS

_SHUFFLED = "an earlier version of berth, which shuffled files in another order"
_EARLIER = {  # by what a description of data lacks
    ("shuffled",): _SHUFFLED,
    ("shuffled", "columns"): _SHUFFLED,
    ("columns",): "Criteo's columns, or of an earlier version of berth, which did not record columns",
}


def json_value(value: Any) -> Any:
    """Return a value as it reads after a round trip through JSON."""
    if isinstance(value, dict):
        return {str(key): json_value(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [json_value(part) for part in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def check_same_run(saved: dict[str, Any], current: dict[str, Any], where: str) -> None:
    """Raise for a checkpoint of a different run, naming the differences."""
    current = {**current, "data": _as_recorded(saved.get("data"), current["data"])}
    different = [name for name in current if saved.get(name) != current[name]]
    if not different:
        return
    for lacking, origin in _EARLIER.items() if different == ["data"] else ():
        if saved.get("data") == _without(current["data"], *lacking):
            raise InputError(
                f"holds checkpoints of {origin}: this version can't resume them for these files",
                where=where,
                hint="resume with the version that wrote them, use another folder, or --fresh to delete them",
            )
    shown = "; ".join(_difference(name, saved.get(name), current[name]) for name in different)
    raise InputError(
        f"holds checkpoints of a different run ({shown})",
        where=where,
        hint="use the same options to resume, another folder, or --fresh to delete them",
    )


def _difference(name: str, saved: Any, current: Any) -> str:
    """Return a difference between two runs: both values if they are short, else the first part that differs."""
    if max(len(str(saved)), len(str(current))) < 60:
        return f"{name}: {saved} there, {current} here"
    if isinstance(saved, dict) and isinstance(current, dict) and saved.keys() == current.keys():
        part = next(key for key in current if saved[key] != current[key])
        return f"{name}, {_difference(part, saved[part], current[part])}"
    return f"{name} differ{'s' if not name.endswith('s') else ''}"


def _as_recorded(saved: Any, current: Any) -> Any:
    """Return the data without the types of ids if the checkpoint, of an earlier version, does not record them."""
    before, now = (data.get("columns") if isinstance(data, dict) else None for data in (saved, current))
    if not before or not isinstance(before, dict) or not isinstance(now, dict) or NUMBER_IDS in before:
        return current
    return {**current, "columns": _without(now, NUMBER_IDS) or now}


def _without(data: Any, *names: str) -> dict[str, Any] | None:
    """Return a description without these parts, or None if it does not have them."""
    if not isinstance(data, dict) or not data.keys() >= set(names):
        return None
    return {name: value for name, value in data.items() if name not in names}
