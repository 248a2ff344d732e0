"""Sources of batches: built-in clicks, click-log files, a model's own examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.data.batch import Batch, BatchSource, Share
    from berth.train.data.clicks import ClickStream

_HOMES = {"Batch": "batch", "Share": "batch", "BatchSource": "batch", "ClickStream": "clicks"}

__all__ = ["Batch", "BatchSource", "ClickStream", "Share"]

__getattr__ = exports(__name__, _HOMES)
