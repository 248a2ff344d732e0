"""The models of the zoo and the modules that build them, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from berth.errors import UnknownNameError
from berth.extras import require

if TYPE_CHECKING:
    from berth.zoo.layered import LayeredModel


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One model of the zoo."""

    name: str
    about: str
    layers: int
    batch: int  # examples per batch at which it is profiled
    module: str
    options: dict[str, Any] = field(default_factory=dict)
    reads_clicks: bool = False  # 26 slots and 13 numbers: built-in clicks and click logs
    multiplies_rows: bool = False  # with each other: they need larger initial values
    several_labels: bool = False  # one for each task: reads files with several labels


_ENTRIES = (
    ZooEntry("ctrdnn", "click-through rate of 26 hashed slots", 16, 4096, "ctrdnn", reads_clicks=True),
    ZooEntry(
        "ctrdnn-8", "the same, a tower of two layers", 8, 4096, "ctrdnn", {"layers": 8}, reads_clicks=True
    ),
    ZooEntry("ctrdnn-12", "the same, a tower of six", 12, 4096, "ctrdnn", {"layers": 12}, reads_clicks=True),
    ZooEntry(
        "ctrdnn-20", "the same, a tower of fourteen", 20, 4096, "ctrdnn", {"layers": 20}, reads_clicks=True
    ),
    ZooEntry(
        "dlrm", "dot products of slots under a tower", 10, 4096, "dlrm",
        reads_clicks=True, multiplies_rows=True,
    ),
    ZooEntry("dcn-v2", "cross layers under a tower", 11, 4096, "dcn_v2", reads_clicks=True),
    ZooEntry(
        "deepfm", "a factorisation machine beside a tower", 10, 4096, "deepfm",
        reads_clicks=True, multiplies_rows=True,
    ),
    ZooEntry("wide-deep", "crossed slots in a linear model beside a tower", 10, 4096, "wide_deep", reads_clicks=True),
    ZooEntry("mmoe", "clicks and conversions by four shared experts", 9, 4096, "mmoe", several_labels=True),
    ZooEntry("matchnet", "matches users to items: two towers", 16, 4096, "matchnet"),
    ZooEntry("2emb", "two embedding tables under one shallow tower", 10, 4096, "two_emb"),
    ZooEntry(
        "nce", "word vectors by noise-contrastive estimation", 5, 4096, "nce", multiplies_rows=True
    ),
    ZooEntry("transformer", "a small GPT: five blocks over 64 tokens", 14, 32, "transformer"),
    ZooEntry("cnn", "a ResNet-18 for 32x32 images", 12, 32, "cnn"),
)  # fmt: skip


def zoo() -> dict[str, ZooEntry]:
    """Return every model by name."""
    return {entry.name: entry for entry in _ENTRIES}


def make_model(name: str, seed: int = 0, **options: Any) -> LayeredModel:
    """Return a model of the zoo with fresh weights; equal seeds give equal weights."""
    entry = zoo().get(name.strip().lower())
    if entry is None:
        raise UnknownNameError("model of the zoo", name, zoo())
    require("torch", f"the model {entry.name}")
    family = import_module(f"berth.zoo.{entry.module}")
    model: LayeredModel = family.make_model(seed, **(entry.options | options))
    model.name = entry.name
    return model
