"""Checkpoints: one step of everything, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.checkpoint.manifest import DamagedError, Manifest
    from berth.train.checkpoint.shelf import Shelf
    from berth.train.checkpoint.writer import Moment, Writer

_HOMES = {
    "DamagedError": "manifest",
    "Manifest": "manifest",
    "Moment": "writer",
    "Shelf": "shelf",
    "Writer": "writer",
}

__all__ = ["DamagedError", "Manifest", "Moment", "Shelf", "Writer"]

__getattr__ = exports(__name__, _HOMES)
