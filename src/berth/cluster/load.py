"""Loads a cluster by name: `160`, `20x8`, `4x20x8:H100`, a preset, a YAML file, a topology CSV.

A shape counts from the outside in: `4x20x8` is four racks of twenty machines of eight devices, and every
further number in front is one more tier. Without a device type its devices are unnamed GPUs, whose memory,
speed and price are unknown. A single number is a pool: one tier, on which any two devices are as near to each
other as inside one machine; it is for questions in which only the number of devices matters.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from berth import spec as yaml_spec
from berth.cluster.catalogue import UNNAMED, device_type
from berth.cluster.expand import MAX_DEVICES, SpecText, expand
from berth.cluster.model import Cluster, Machine
from berth.cluster.spec import ClusterSpec
from berth.cluster.tiers import POOL
from berth.cluster.topology_csv import DEVICES_PER_HOST, read_topology
from berth.errors import InputError, SpecError, UnknownNameError

_SHAPE = re.compile(r"[\dx]*\d[\dx]*", re.IGNORECASE)
_SHAPE_HINT = "write it like 20x8 (machines x devices) or 4x20x8:H100 (racks x machines x devices)"
_PER_HOST = re.compile(r"(?:(\d{1,6})x)?(.+)", re.IGNORECASE)
_MAX_TIERS = 12


def load_cluster(text: str) -> Cluster:
    """Return the cluster that `text` names: a shape, a preset or a file."""
    head, colon, device = text.partition(":")
    if _SHAPE.fullmatch(head):
        return _from_shape(text, head, device if colon else UNNAMED)
    if text in preset_names():
        return _preset(text)
    if _exists(text):
        return load_file(text)
    if _looks_like_path(head):
        return load_file(head, device)
    error = UnknownNameError("cluster preset", text, preset_names())
    error.hint = f"{error.hint}\n  or give a shape (4x20x8) or a file (cluster.yaml)"
    raise error


def load_file(path: str, device: str = "") -> Cluster:
    """Return a cluster from a YAML file or a topology CSV; `device` (`4xH100`) is for CSV files only."""
    if Path(path).suffix.lower() == ".csv":
        per_host, name = _per_host(device)
        return read_topology(path, devices_per_host=per_host, device=name)
    if device:
        raise InputError(
            f"{path}:{device}: a YAML file names its devices itself", hint=f"leave out `:{device}`"
        )
    text = yaml_spec.read_text(path)
    if not text.strip():
        raise SpecError("is empty", where=path, hint="it needs one of `machines:`, `racks:` or `groups:`")
    return expand(yaml_spec.parse(text, ClusterSpec, path), Path(path).stem, SpecText(text, path))


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of the shipped clusters."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _preset_folder().iterdir()))


def presets() -> dict[str, str]:
    """Return the name and one-line description of each preset."""
    return {name: _preset_spec(name)[0].description or "" for name in preset_names()}


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long, or not a valid file name
        return False


def _looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or Path(text).suffix.lower() in (".yaml", ".yml", ".csv", ".json")


def _preset_folder() -> Any:
    return resources.files("berth.cluster").joinpath("data/presets")


def _preset_spec(name: str) -> tuple[ClusterSpec, SpecText]:
    source = SpecText(_preset_folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")
    return yaml_spec.parse(source.text, ClusterSpec, source.name), source


def _preset(name: str) -> Cluster:
    spec, source = _preset_spec(name)
    return expand(spec, name, source)


def _from_shape(text: str, shape: str, device: str) -> Cluster:
    counts = _counts(text, shape)
    if not device:
        raise InputError(f"{text!r} names no device after the colon", hint=_SHAPE_HINT)
    if len(counts) == 1:
        return _pool(text, counts[0], device)
    below: dict[str, Any] = {
        "machines": [{"count": counts[-2], "devices": {device_type(device).name: counts[-1]}}]
    }
    for level, count in enumerate(reversed(counts[:-2])):
        below = {"racks" if level == 0 else "groups": [{"count": count, **below}]}
    return expand(ClusterSpec.model_validate(below), text)


def _counts(text: str, shape: str) -> list[int]:
    parts = shape.lower().split("x")
    if not all(parts):
        raise InputError(f"{text!r} has an x with no number beside it", hint=_SHAPE_HINT)
    if len(parts) > _MAX_TIERS or max(len(part) for part in parts) > 18:
        raise InputError(f"{text!r:.80} has too many levels or digits", hint=_SHAPE_HINT)
    counts = [int(part) for part in parts]
    if min(counts) < 1:
        raise InputError(f"{text!r} has a zero in it, so it holds no devices", hint=_SHAPE_HINT)
    total = 1
    for count in counts:
        total *= count
    if total > MAX_DEVICES:
        raise InputError(f"{text!r} is {total:,} devices; the limit is {MAX_DEVICES:,}", hint=_SHAPE_HINT)
    return counts


def _pool(name: str, count: int, device: str) -> Cluster:
    machine = Machine("pool", ((0, count),))
    return Cluster(
        name=name,
        device_types=(device_type(device),),
        tiers=(POOL,),
        machines=(machine,),
        groups=np.zeros((1, 1), dtype=np.int32),
        group_names=(("pool",),),
    )


def _per_host(text: str) -> tuple[int, str]:
    if not text:
        return DEVICES_PER_HOST, UNNAMED
    if text.isdecimal():
        return int(text[:9]), UNNAMED
    match = _PER_HOST.fullmatch(text)
    count, device = match.groups() if match else (None, text)
    return int(count or DEVICES_PER_HOST), device_type(device).name
