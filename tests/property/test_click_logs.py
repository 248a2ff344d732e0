"""Click logs against a naive reader, and any cut of a stream against the whole."""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.train.data.batch import Share
from berth.train.data.files import FileStream

pytestmark = pytest.mark.slow

good_numbers = st.one_of(st.just(""), st.integers(-(10**17), 10**17).map(str))
good_ids = st.one_of(st.just(""), st.text("0123456789abcdefABCDEF", min_size=1, max_size=8))
odd = st.sampled_from(["", "-", "--1", "1.5", "x", "123456789", "g", " 1", "+1", "1e3", "\r", "é"])
labels = st.sampled_from(["0", "1"])


@st.composite
def lines(draw):
    """Mostly good lines; some with an odd field, some with a field too many or too few."""
    fields = [draw(labels), *draw(st.lists(good_numbers, min_size=13, max_size=13))]
    fields += draw(st.lists(good_ids, min_size=26, max_size=26))
    if draw(st.integers(0, 3)) == 0:
        fields[draw(st.integers(0, 39))] = draw(odd)
    if draw(st.integers(0, 7)) == 0:
        fields = fields[: draw(st.integers(0, 39))] if draw(st.booleans()) else [*fields, ""]
    return "\t".join(fields)


def naive(line: str):
    """(label, dense, keys), or None if the line is bad."""
    fields = line.removesuffix("\r").split("\t")
    if len(fields) != 40 or fields[0] not in ("0", "1"):
        return None
    if not all(re.fullmatch(r"-?[0-9]{1,18}|", field) for field in fields[1:14]):
        return None
    if not all(re.fullmatch(r"[0-9a-fA-F]{0,8}", field) for field in fields[14:]):
        return None
    dense = [
        math.copysign(math.log1p(abs(int(field))), int(field)) if field else 0.0 for field in fields[1:14]
    ]
    keys = [
        ((slot + 1) << 56) + (int(field, 16) + 1 if field else 0) for slot, field in enumerate(fields[14:])
    ]
    return int(fields[0]), dense, keys


@settings(max_examples=60)
@given(st.lists(lines(), min_size=1, max_size=12), st.booleans())
def test_rows_are_those_of_a_naive_reader(written, ended):
    expected = [naive(line) for line in written]
    if not ended and not written[-1]:
        expected = expected[:-1]  # a file that ends with a line has no other line after it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tsv"
        path.write_bytes(("\n".join(written) + ("\n" if ended else "")).encode())
        good = [row for row in expected if row is not None]
        if not good:
            return
        stream = FileStream(path, window=100)
        (batch,) = stream.batches(100, 0, Share(), 0)
    order = np.argsort(np.random.default_rng([0, 0]).permutation(len(good)))  # the window's shuffle undone
    assert batch.labels[order].tolist() == [row[0] for row in good]
    assert batch.inputs["slots"][order, :, 0].tolist() == [row[2] for row in good]
    np.testing.assert_allclose(batch.inputs["dense"][order], [row[1] for row in good], rtol=1e-6)
    bad = [number + 1 for number, row in enumerate(expected) if row is None]
    assert stream.bad_rows == len(bad)
    assert [int(text.split(":")[1]) for text in stream.first_bad] == bad[:20]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    window=st.integers(1, 50),
    batch=st.integers(1, 30),
    cut=st.integers(0, 12),
    workers=st.integers(1, 3),
    torn=st.integers(0, 30),
)
def test_a_stream_cut_anywhere_goes_on_as_the_whole(sizes, window, batch, cut, workers, torn):
    with tempfile.TemporaryDirectory() as folder:
        number = itertools.count()
        for file, size in enumerate(sizes):
            rows = ["\t".join(["1", *[""] * 13, f"{next(number):x}", *[""] * 25]) for _ in range(size)]
            rows.insert(min(torn, len(rows)), "torn")
            (Path(folder) / f"{file}.tsv").write_text("\n".join(rows) + "\n")
        shares = [Share(worker, workers) for worker in range(workers)]

        def taken(share, start, position=None):
            stream = FileStream(folder, window=window, epochs=None)
            if position is not None:
                stream.seek(position)
            batches = stream.batches(batch, start, share, 7)
            return [next(batches).inputs["slots"] for _ in range(6)]

        whole = FileStream(folder, window=window, epochs=None)
        running = whole.batches(batch, 0, Share(), 7)
        given_ = [next(running).inputs["slots"] for _ in range(cut + 6)][cut:]
        position = whole.position(cut)
        for share in shares:
            expected = [rows[share.worker :: workers] for rows in given_]
            for found in (taken(share, cut, position), taken(share, cut)):
                assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
