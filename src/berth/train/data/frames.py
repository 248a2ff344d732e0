"""Data frames as rows: labels, keys, lists of keys, dense features and weights by the roles of columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from berth.train.data.columns import Layout
from berth.train.data.rows import BadRow, Examples, Floats, Ints, Ragged, Rows, id_mask, slot_bases

_HEXADECIMAL = (1 << 32) - 1  # ids of click logs have eight digits
_LARGEST = float(np.finfo(np.float32).max)
Flags = NDArray[np.bool_]


def frame_rows(
    frame: pl.DataFrame, layout: Layout, ends: Ints, lines: Ints, wrong: dict[int, str] | None = None
) -> Rows:
    """Return the rows of a frame; `ends` and `lines` are the positions after each of its rows.

    `wrong` has reasons for which rows are bad whatever their values.
    """
    wrong = wrong or {}
    labels = np.stack([_labels(frame[name]) for name in layout.labels], axis=1)
    features, weights = _features(frame, layout.dense_columns), _weights(frame, layout.weight)
    labelled = ((labels == 0) | (labels == 1)).all(axis=1)
    finite = np.isfinite(features).all(axis=1) & _are_numbers(frame, layout.dense_columns)
    weighted = np.isfinite(weights) & (weights >= 0) if weights is not None else np.ones(len(frame), np.bool_)
    good = labelled & finite & weighted
    good[list(wrong)] = False
    bad = list(_bad_rows(frame, layout, lines, good, wrong))
    examples = Examples(
        _keys(frame, layout),
        _signed_log(features) if layout.scale == "log" else features,
        np.where(labelled[:, None], labels, 0).astype(np.int64),
        weights,
        tuple(_lists(frame, layout)),
    )
    if bad:
        examples, ends, lines = examples.take(np.flatnonzero(good)), ends[good], lines[good]
    if len(layout.labels) == 1:
        one = examples.labels[:, 0]
        examples = Examples(examples.keys, examples.dense, one, examples.weights, examples.lists)
    return Rows(examples, ends, lines, bad, len(frame))


def _bad_rows(
    frame: pl.DataFrame, layout: Layout, lines: Ints, good: Flags, wrong: dict[int, str]
) -> Iterator[BadRow]:
    for row in np.flatnonzero(~good).tolist():
        yield BadRow(int(lines[row]), wrong.get(row) or _reason(frame.row(row, named=True), layout))


def _reason(row: dict[str, Any], layout: Layout) -> str:
    """Return what is wrong with a row."""
    for name in layout.labels:
        if _number(row[name]) not in (0.0, 1.0):
            shown = "nothing" if row[name] is None else row[name]
            return f"column {name!r}: a label is 0 or 1, got {shown}"
    for name in layout.dense_columns:
        if row[name] is not None and np.isnan(_number(row[name])):
            return f"column {name!r}: {row[name]!r} is not a number"
        if row[name] is not None and abs(_number(row[name])) > _LARGEST:
            return f"column {name!r}: {row[name]} is infinite, or too large for a float"
    return f"column {layout.weight!r}: a weight is at least 0, got {row[layout.weight or '']}"


def _number(value: Any) -> float:
    try:
        return float("nan") if value is None else float(value)
    except ValueError:
        return float("nan")


def _labels(column: pl.Series) -> NDArray[Any]:
    """Return the labels, -1 if missing."""
    return column.cast(pl.Float64, strict=False).fill_null(-1).fill_nan(-1).to_numpy()


def _weights(frame: pl.DataFrame, name: str | None) -> Floats | None:
    if name is None:
        return None
    return frame[name].cast(pl.Float32, strict=False).fill_null(float("nan")).to_numpy()


def _features(frame: pl.DataFrame, names: list[str]) -> Floats:
    if not names:
        return np.empty((len(frame), 0), np.float32)
    features: Floats = frame.select(_feature(frame[name]) for name in names).to_numpy(order="c")
    return features


def _feature(column: pl.Series) -> pl.Expr:
    """Return a column as float32, 0 if missing."""
    number = pl.col(column.name).cast(pl.Float32, strict=False)
    if column.null_count() or column.dtype == pl.String:
        number = number.fill_null(0)
    return number


def _are_numbers(frame: pl.DataFrame, names: list[str]) -> Flags:
    """Return the rows in which every feature that is text is a number."""
    good = np.ones(len(frame), np.bool_)
    for name in names:
        if frame[name].dtype == pl.String:
            text = frame[name]
            good &= ~(text.cast(pl.Float32, strict=False).is_null() & text.is_not_null()).to_numpy()
    return good


def _signed_log(values: Floats) -> Floats:
    return np.copysign(np.log1p(np.abs(values)), values)


def _keys(frame: pl.DataFrame, layout: Layout) -> Ints:
    """Return keys: integers and hexadecimal text below 2**32 unchanged, other text hashed; missing ids share a key."""
    slots = layout.slot_columns
    if not slots:
        return np.empty((len(frame), 0), np.int64)
    schema, mask = frame.schema, id_mask(layout.slot_count)  # the schema is recomputed on every access
    bases = slot_bases(layout.slot_count)[: len(slots)]
    if all(schema[name].is_integer() and not frame[name].null_count() for name in slots):
        return _plain_keys(frame, slots, mask) + bases
    ids = pl.DataFrame([_ids(frame[name], mask).alias(name) for name in slots])
    numbered = zip(slots, bases.tolist(), strict=True)
    keys: Ints = ids.select((pl.col(name) + (base + 1)).fill_null(base) for name, base in numbered).to_numpy(
        order="c"
    )
    return keys


def _plain_keys(frame: pl.DataFrame, slots: list[str], mask: int) -> Ints:
    """Return 1 + the ids of integer columns without missing values, in one pass."""
    numbers = frame.select(pl.col(slots).cast(pl.Int64, wrap_numerical=True))
    ids: Ints = numbers.to_numpy(order="c", writable=True)
    ids &= mask
    ids += 1
    return ids


def _ids(column: pl.Series, mask: int) -> pl.Series:
    """Return the ids of a column, null where they are missing."""
    if column.dtype.is_integer():
        return column.to_frame().select(pl.first().cast(pl.Int64, wrap_numerical=True) & mask).to_series()
    text = column.cast(pl.String)
    found = text.str.to_integer(base=16, strict=False, dtype=pl.Int64)
    ids = found.set(~found.is_between(0, _HEXADECIMAL), None)
    if ids.null_count() == text.null_count():
        return ids
    words = text.filter(ids.is_null() & text.is_not_null()).unique()
    numbers = pl.Series([_hash(word) & mask for word in words], dtype=pl.Int64)
    hashed = text.replace_strict(words, numbers, default=None, return_dtype=pl.Int64)
    return ids.zip_with(ids.is_not_null(), hashed)


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())


def _lists(frame: pl.DataFrame, layout: Layout) -> Iterator[Ragged]:
    """Yield the keys of multi-valued slots; missing lists are empty, and so are missing ids within a list left out."""
    first = len(layout.slot_columns)
    bases, mask = slot_bases(layout.slot_count), id_mask(layout.slot_count)
    for number, name in enumerate(layout.multi):
        column = frame[name]
        if column.dtype == pl.String:
            column = column.replace("", None).str.split(layout.separator)
        column = column.list.drop_nulls()
        if layout.max_ids is not None:
            column = column.list.head(layout.max_ids)
        counts = column.list.len().fill_null(0).to_numpy().astype(np.int64)
        ids = _ids(column.filter(counts > 0).explode(), mask).to_numpy()
        yield Ragged(ids.astype(np.int64) + (int(bases[first + number]) + 1), np.append(0, np.cumsum(counts)))
