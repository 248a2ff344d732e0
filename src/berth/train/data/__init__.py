"""Where batches come from: built-in clicks, files of click logs, a model's own examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.train.data.batch import Batch, Share, Source
    from berth.train.data.clicks import ClickStream

_HOMES = {"Batch": "batch", "Share": "batch", "Source": "batch", "ClickStream": "clicks"}

__all__ = ["Batch", "ClickStream", "Share", "Source"]

__getattr__ = exports(__name__, _HOMES)
