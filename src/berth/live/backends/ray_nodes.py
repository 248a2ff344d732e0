"""Ray's nodes as machines: names, devices and tiers from the nodes' labels and resources.

A node with GPUs is a machine. Its label `machine` is its name (else its host name is), and the labels `rack`, `pod`,
`zone` and `region` are its tiers. A node without a label is a group of its own at that tier.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from berth.cluster.catalogue import UNNAMED
from berth.cluster.model import Cluster, Machine
from berth.cluster.tiers import default_tier
from berth.errors import InputError
from berth.live.backends.device_names import device_named

# nearest first; Ray's own label is used where berth's is missing
TIERS = {
    "rack": ("rack",),
    "pod": ("pod",),
    "zone": ("zone", "ray.io/availability-zone"),
    "region": ("region", "ray.io/availability-region"),
}
_TYPE_LABEL, _TYPE_RESOURCE = "ray.io/accelerator-type", "accelerator_type:"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What does not change about a machine, as reported by its node."""

    name: str
    devices: int
    kind: str = UNNAMED
    cores: int | None = None
    tiers: tuple[str | None, ...] = (None,) * len(TIERS)

    def plain(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Node:
    """A live node."""

    id: str
    address: str
    facts: NodeFacts
    draining: bool
    free: float  # GPUs
    held: Mapping[str, float]  # GPUs by the name of the placement group

    def external(self, ours: Iterable[str]) -> int:
        """Return the number of GPUs held outside these placement groups."""
        own = sum(self.held.get(token, 0.0) for token in ours)
        return max(0, min(self.facts.devices, math.ceil(self.facts.devices - self.free - own - 1e-6)))


def facts_of(plain: Mapping[str, Any]) -> NodeFacts:
    """Return facts from JSON."""
    return NodeFacts(**{**plain, "tiers": tuple(plain["tiers"])})


def node_of(report: Mapping[str, Any]) -> Node:
    """Return a node from Ray's report."""
    labels, resources = report["labels"], report["resources"]
    cores = int(resources.get("CPU", 0))
    facts = NodeFacts(
        name=labels.get("machine") or report["host"],
        devices=int(resources.get("GPU", 0)),
        kind=_kind(labels, resources),
        cores=cores or None,
        tiers=tuple(next(filter(None, map(labels.get, keys)), None) for keys in TIERS.values()),
    )
    return Node(report["id"], report["address"], facts, report["draining"], report["free"], report["held"])


def _kind(labels: Mapping[str, str], resources: Mapping[str, float]) -> str:
    named = [key.removeprefix(_TYPE_RESOURCE) for key in resources if key.startswith(_TYPE_RESOURCE)]
    return device_named(labels.get(_TYPE_LABEL) or (named[0] if named else UNNAMED)).name


def cluster_of(machines: Iterable[NodeFacts], name: str = "ray") -> Cluster:
    """Return the cluster made of these machines."""
    facts = sorted(machines, key=lambda one: (tuple(map(_natural, reversed(one.tiers))), _natural(one.name)))
    if not facts:
        raise InputError(
            "no node of the Ray cluster has GPUs", hint="ray start --num-gpus N, on each machine"
        )
    duplicates = {one.name for one in facts if sum(one.name == other.name for other in facts) > 1}
    if duplicates:
        what = f"two nodes of the Ray cluster have the name {min(duplicates)!r}"
        raise InputError(what, hint="give each its own: ray start --labels machine=NAME")
    types = list(dict.fromkeys(one.kind for one in facts))
    levels = [level for level in range(len(TIERS)) if any(one.tiers[level] for one in facts)]
    names = ("machine", *(list(TIERS)[level] for level in levels), "network")
    rows = _groups(facts, levels)
    top = [0] * len(facts)
    return Cluster(
        name=name,
        device_types=tuple(device_named(kind) for kind in types),
        tiers=tuple(default_tier(tier, at, len(names)) for at, tier in enumerate(names)),
        machines=tuple(
            Machine(one.name, ((types.index(one.kind), one.devices),), one.cores) for one in facts
        ),
        groups=np.array([range(len(facts)), *(numbers for numbers, _ in rows), top], dtype=np.int32),
        group_names=(tuple(one.name for one in facts), *(named for _, named in rows), (name,)),
    )


def _groups(facts: list[NodeFacts], levels: list[int]) -> list[tuple[list[int], tuple[str, ...]]]:
    """At each level the group of each machine, and the names of the groups.

    Racks of the same name in different zones are different racks.
    """
    rows = []
    paths: list[tuple[str | None, ...]] = [(one.name,) for one in facts]
    for level in levels:
        paths = [
            one.tiers[level:] if one.tiers[level] else (f"{path[0]} alone", *one.tiers[level + 1 :])
            for one, path in zip(facts, paths, strict=True)
        ]
        known = list(dict.fromkeys(paths))
        short = [path[0] for path in known]
        names = (
            str(path[0]) if short.count(path[0]) == 1 else "/".join(filter(None, reversed(path)))
            for path in known
        )
        rows.append(([known.index(path) for path in paths], tuple(names)))
    return rows


def _natural(text: str | None) -> list[tuple[int, str]]:
    """A sort key with m2 before m10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", text or "")]
