"""Checkpoints: the complete state after one step, written atomically."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.checkpoint.export import export_dense, export_table
    from berth.train.checkpoint.inspect import SavedTable, saved_table
    from berth.train.checkpoint.manifest import DamagedError, Manifest
    from berth.train.checkpoint.store import CheckpointStore
    from berth.train.checkpoint.writer import Snapshot, Writer

_HOMES = {
    "DamagedError": "manifest",
    "Manifest": "manifest",
    "Snapshot": "writer",
    "SavedTable": "inspect",
    "CheckpointStore": "store",
    "Writer": "writer",
    "export_dense": "export",
    "export_table": "export",
    "saved_table": "inspect",
}

__all__ = [
    "CheckpointStore",
    "DamagedError",
    "Manifest",
    "SavedTable",
    "Snapshot",
    "Writer",
    "export_dense",
    "export_table",
    "saved_table",
]

__getattr__ = exports(__name__, _HOMES)
