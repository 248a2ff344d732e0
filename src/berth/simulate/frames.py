"""Results as a data frame: one row per run, one column per figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl


def runs_frame(runs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> pl.DataFrame:
    """Return the frame of (what was run, its summary) pairs.

    Shares by tier become columns of their own (`tier_share_rack`), lists of ids their number.
    """
    return pl.DataFrame([{**about, **_flat(summary)} for about, summary in runs], infer_schema_length=None)


def _flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary without nested values."""
    flat: dict[str, Any] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{key}": share for key, share in value.items()}
        else:
            flat[name] = len(value) if isinstance(value, list | tuple) else value
    return flat
