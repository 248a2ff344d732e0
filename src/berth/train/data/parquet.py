"""Click logs in Parquet: a label, columns of numbers (dense features) and columns of ids (slots).

The label is the column called label, click or target, else the first. Text columns are slots, and so are whole
numbers in columns whose name begins with C or says slot, id or cat; all other numbers are dense features.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from berth.errors import InputError
from berth.train.data.rows import SLOT_SHIFT, BadRow, Floats, Ints, Rows, slot_bases

_BLOCK = 1 << 16
_LABELS = ("label", "click", "clicked", "target", "y")
_SLOT_NAME = re.compile(r"^c\d+$|slot|cat|(^|_)id($|_|\d)", re.IGNORECASE)
_NO_LABEL = "the label is neither 0 nor 1"
_UNBOUND = "one of the features is infinite, or too large for a float"
_MASK = (1 << (SLOT_SHIFT - 1)) - 1


def parquet_rows(path: Path, offset: int = 0) -> Iterator[Rows]:
    """Yield the rows of a file from a row on."""
    try:
        scan = pl.scan_parquet(path)
        schema = scan.collect_schema()
        label, dense, slots = _roles(dict(schema), str(path))
        while True:
            frame = scan.slice(offset, _BLOCK).collect()
            if not len(frame):
                return
            yield _rows(frame, label, dense, slots, offset)
            offset += len(frame)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"can't be read as Parquet: {error}", where=str(path)) from None


def _roles(schema: dict[str, pl.DataType], where: str) -> tuple[str, list[str], list[str]]:
    names = list(schema)
    label = next((name for name in names if name.lower() in _LABELS), names[0] if names else "")
    dense, slots = [], []
    for name in names:
        kind = schema[name]
        if name == label:
            continue
        if kind in (pl.String, pl.Categorical) or (kind.is_integer() and _SLOT_NAME.search(name)):
            slots.append(name)
        elif kind.is_numeric() or kind == pl.Boolean:
            dense.append(name)
        else:
            raise InputError(f"column {name!r} has type {kind}: expected numbers or ids", where=where)
    if not schema or not (schema[label].is_numeric() or schema[label] == pl.Boolean):
        raise InputError("has no label column", where=where, hint="name it `label`; values 0 or 1")
    return label, dense, slots


def _rows(frame: pl.DataFrame, label: str, dense: list[str], slots: list[str], offset: int) -> Rows:
    labels, features, keys = _labels(frame[label]), _features(frame, dense), _keys(frame, slots)
    labelled, finite = (labels == 0) | (labels == 1), np.isfinite(features).all(axis=1)
    good = labelled & finite
    bad = [
        BadRow(offset + int(row) + 1, _UNBOUND if labelled[row] else _NO_LABEL)
        for row in np.flatnonzero(~good)
    ]
    numbers = np.flatnonzero(good) + offset + 1
    if bad:
        keys, features, labels = keys[good], features[good], labels[good]
    names = (tuple(slots), tuple(dense))
    return Rows(keys, _signed_log(features), labels.astype(np.int64), numbers, numbers, bad, names)


def _labels(column: pl.Series) -> NDArray[Any]:
    """Return the labels, -1 if missing."""
    if column.dtype.is_integer() and not column.null_count():
        return column.to_numpy()
    return column.cast(pl.Float64).fill_null(-1).fill_nan(-1).to_numpy()


def _features(frame: pl.DataFrame, names: list[str]) -> Floats:
    if not names:
        return np.empty((len(frame), 0), np.float32)
    features: Floats = frame.select(_feature(frame[name]) for name in names).to_numpy(order="c")
    return features


def _feature(column: pl.Series) -> pl.Expr:
    """Return a column as float32, 0 if missing."""
    number = pl.col(column.name).cast(pl.Float32)
    if column.null_count():
        number = number.fill_null(0)
    return number.fill_nan(0) if column.dtype.is_float() else number


def _signed_log(values: Floats) -> Floats:
    return np.copysign(np.log1p(np.abs(values)), values)


def _keys(frame: pl.DataFrame, slots: list[str]) -> Ints:
    """Return keys: integers and hexadecimal text below 2**32 unchanged, other text hashed; missing ids share a key."""
    if not slots:
        return np.empty((len(frame), 0), np.int64)
    schema = frame.schema  # recomputed on every access
    if all(schema[name].is_integer() and not frame[name].null_count() for name in slots):
        return _plain_keys(frame, slots)
    ids = frame.select(_id(name, schema[name]) for name in slots)
    for name in slots:
        if ids[name].null_count() != frame[name].null_count():
            ids = ids.with_columns(_with_hashes(frame[name].cast(pl.String), ids[name]))
    bases = zip(slots, slot_bases(len(slots)).tolist(), strict=True)
    keys: Ints = ids.select((pl.col(name) + (base + 1)).fill_null(base) for name, base in bases).to_numpy(
        order="c"
    )
    return keys


def _plain_keys(frame: pl.DataFrame, slots: list[str]) -> Ints:
    """Return the keys of integer columns without missing values, in one pass."""
    numbers = frame.select(pl.col(slots).cast(pl.Int64, wrap_numerical=True))
    ids: Ints = numbers.to_numpy(order="c", writable=True)
    ids &= _MASK
    ids += slot_bases(len(slots)) + 1
    return ids


def _id(name: str, kind: pl.DataType) -> pl.Expr:
    if kind.is_integer():
        return pl.col(name).cast(pl.Int64, wrap_numerical=True) & _MASK
    found = pl.col(name).cast(pl.String).str.to_integer(base=16, strict=False, dtype=pl.Int64)
    return pl.when(found.is_between(0, (1 << 32) - 1)).then(found).alias(name)


def _with_hashes(text: pl.Series, ids: pl.Series) -> pl.Series:
    """Return ids with hashes for text that is not hexadecimal."""
    words = text.filter(ids.is_null() & text.is_not_null()).unique()
    numbers = pl.Series([_number(word) for word in words], dtype=pl.Int64)
    hashed = text.replace_strict(words, numbers, default=None, return_dtype=pl.Int64)
    return ids.zip_with(ids.is_not_null(), hashed)


def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) & _MASK
