"""Checkpoints: one step of everything, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.checkpoint.export import export_dense, export_table
    from berth.train.checkpoint.manifest import DamagedError, Manifest
    from berth.train.checkpoint.saved import SavedTable, saved_table
    from berth.train.checkpoint.shelf import Shelf
    from berth.train.checkpoint.writer import Moment, Writer

_HOMES = {
    "DamagedError": "manifest",
    "Manifest": "manifest",
    "Moment": "writer",
    "SavedTable": "saved",
    "Shelf": "shelf",
    "Writer": "writer",
    "export_dense": "export",
    "export_table": "export",
    "saved_table": "saved",
}

__all__ = [
    "DamagedError",
    "Manifest",
    "Moment",
    "SavedTable",
    "Shelf",
    "Writer",
    "export_dense",
    "export_table",
    "saved_table",
]

__getattr__ = exports(__name__, _HOMES)
