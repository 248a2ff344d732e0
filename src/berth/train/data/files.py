"""Click-log files as a stream of batches, in name order.

Rows are shuffled within windows of fixed size, window k of epoch e by (seed, k, e); the last window of an epoch ends
with it. So every epoch has every row once, and batch n is a function of files, seed and n. The start of each window
is recorded, so that a resumed run need not read everything again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from berth.errors import InputError
from berth.train.data import criteo
from berth.train.data.batch import Batch, Share
from berth.train.data.columns import ColumnRoles, Layout, resolve
from berth.train.data.rows import BadRow, Examples, Ints, Rows, join_examples

_PACKED = (".gz", ".xz", ".zst")
_TEXT = (".tsv", ".txt", ".csv", "")
_SHOWN = 20
_LEAST_READABLE, _ENOUGH = 0.1, 10_000  # share of rows that must be readable, judged from this many rows on


@dataclass(frozen=True, slots=True)
class WindowStart:
    """Start of a window in the files."""

    epoch: int = 0
    file: int = 0
    offset: int = 0
    line: int = 0
    bad: int = 0  # unreadable rows before it; in later epochs: of the first
    window: int = 0  # index within the epoch


class FileStream:
    """Parquet, text with a header, and Criteo TSV (text plain or compressed): one file, or a folder of files.

    `columns` are the roles of columns: a YAML file, YAML text in braces, a dictionary, or the layout of other files.
    Text has a header line with them, and is in Criteo's format without them; with the layout of Criteo's files it is
    either.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        columns: str | Path | Mapping[str, Any] | Layout | None = None,
        window: int = 1 << 16,
        epochs: int | None = 1,
        strict: bool = False,
        shuffled: bool = True,
    ) -> None:
        self.files = click_files(Path(path))
        self.columns = columns
        self._roles = columns if columns is None or isinstance(columns, Layout) else ColumnRoles.read(columns)
        self.layout = self._layout(self.files[0])
        self.window = window
        self.epochs = epochs
        self.strict = strict
        self.shuffled = shuffled
        self.bad_rows = 0  # each row once, however many epochs read it
        self.first_bad: list[str] = []
        self.first_pass: int | None = None  # rows of an epoch, once known
        self._window_starts: dict[int, WindowStart] = {
            0: WindowStart()
        }  # by the window's first row in the run
        self._batch = 0
        self._checked = {self.files[0]}

    def describe(self) -> Mapping[str, Any]:
        """Return names and sizes of the files, and how they are shuffled."""
        files = [[path.name, path.stat().st_size] for path in self.files]
        same = {"kind": "files", "files": files, "window": self.window, "shuffled": "within an epoch"}
        return same if self.layout == criteo.LAYOUT else {**same, "columns": self.layout.to_json()}

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        """Yield batches from this step on; the last may be smaller, and empty for some workers."""
        self._batch = batch
        known = max(row for row in self._window_starts if row <= step * batch)
        self.bad_rows = self._window_starts[known].bad  # not counted twice
        parts: list[Examples] = []  # of a batch that spans windows
        have = 0  # its rows so far, over all workers
        for row, mark, rows in self._windows(known):
            at = max(0, step * batch - row)
            if at >= len(rows):
                continue
            order = self._order(len(rows), [seed, mark.window, mark.epoch])
            while at < len(order):
                ours = slice((share.worker - have) % share.workers, batch - have, share.workers)
                parts.append(rows.take(order[at : at + batch - have][ours]))
                at, have = at + batch - have, have + min(batch - have, len(order) - at)
                if have == batch:
                    yield self._as_batch(join_examples(parts), have)
                    parts, have = [], 0
        if parts:
            yield self._as_batch(join_examples(parts), have)

    def _order(self, rows: int, seeds: list[int]) -> Ints:
        return np.random.default_rng(seeds).permutation(rows) if self.shuffled else np.arange(rows)

    def position(self, step: int) -> Mapping[str, Any]:
        """Return the start of the window of this step; if nothing was read, where `seek` went."""
        starts = list(self._window_starts)
        found = max(row for row in starts if not self._batch or row <= step * self._batch)
        for old in [row for row in list(self._window_starts) if row < found]:
            del self._window_starts[old]
        return {"row": found, "first_pass": self.first_pass, **asdict(self._window_starts[found])}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Restore a `position`."""
        values = dict(position)
        row, self.first_pass = values.pop("row"), values.pop("first_pass")
        mark = WindowStart(**values)
        self._window_starts = {row: mark}
        self.bad_rows = mark.bad

    def _windows(self, row: int) -> Iterator[tuple[int, WindowStart, Examples]]:
        """Yield (first row, start, rows) of windows, from one with a recorded start; rows are valid until the next."""
        parts: list[Examples] = []
        count, mark = 0, self._window_starts[row]
        for rows, ends in self._rows(mark):
            if ends.epoch != mark.epoch:  # the last window of an epoch ends with it
                if count:
                    yield row, mark, join_examples(parts)
                row, mark = row + count, WindowStart(ends.epoch, ends.file, bad=ends.bad)
                parts, count = [], 0
                self._window_starts[row] = mark
                self.first_pass = self.first_pass or row
            at = 0
            while at < len(rows):
                taken = min(self.window - count, len(rows) - at)
                parts.append(rows.examples.part(at, at + taken))
                at, count = at + taken, count + taken
                if count == self.window:
                    yield row, mark, join_examples(parts)
                    row, mark = row + count, ends.mark(at, mark.window + 1)
                    parts, count = [], 0
                    self._window_starts[row] = mark
        if count:
            yield row, mark, join_examples(parts)

    def _rows(self, mark: WindowStart) -> Iterator[tuple[Rows, _BlockEnds]]:
        """Yield blocks of rows from a window start on, with the positions of their rows."""
        epoch, first, offset, line = mark.epoch, mark.file, mark.offset, mark.line
        good, bad = 0, 0
        while self.epochs is None or epoch < self.epochs:
            found = 0
            for number in range(first, len(self.files)):
                for rows in self._read(self.files[number], offset, line):
                    before = self.bad_rows
                    self._name_bad(self.files[number], rows.bad)
                    if epoch == 0:  # later epochs read the same rows
                        self.bad_rows += len(rows.bad)
                    found, good, bad = found + len(rows), good + len(rows), bad + len(rows.bad)
                    self._check_readable(good, bad)
                    yield rows, _BlockEnds(rows, epoch, number, before)
                offset = line = 0
            if not found and not mark.offset and not mark.file:
                raise self._nothing_readable()
            epoch, first = epoch + 1, 0

    def _read(self, path: Path, offset: int, line: int) -> Iterator[Rows]:
        if path not in self._checked:
            self._check(path)
        if path.suffix == ".parquet":
            from berth.train.data.parquet import parquet_rows

            return parquet_rows(path, self.layout, offset)
        if self._has_header(path):
            from berth.train.data.delimited import text_rows

            return text_rows(path, self.layout, offset, line)
        return criteo.criteo_rows(path, offset, line)

    def _check(self, path: Path) -> None:
        found = self._layout(path)
        if found != self.layout:  # slots are identified by position
            raise InputError(
                "has different columns than earlier files, or in another order",
                where=str(path),
                hint=f"expected {', '.join(self.layout.columns)}",
            )
        self.layout.check_ids(found.number_ids, str(path), str(self.files[0]))
        self._checked.add(path)

    def _layout(self, path: Path) -> Layout:
        """Return the columns of a file that are read; ids in Criteo's columns are the same as numbers and as text."""
        found = self._resolved(path)
        return criteo.LAYOUT if found == criteo.LAYOUT else found

    def _resolved(self, path: Path) -> Layout:
        if path.suffix == ".parquet":
            from berth.train.data.parquet import parquet_schema

            return resolve(parquet_schema(path), str(path), self._roles)
        if self._has_header(path):
            from berth.train.data.delimited import text_schema

            schema, maybe_numbers = text_schema(path)
            return resolve(schema, str(path), self._roles, maybe_numbers=maybe_numbers)
        return criteo.LAYOUT

    def _has_header(self, path: Path) -> bool:
        """Return whether the first line of a text file names its columns."""
        if self._roles != criteo.LAYOUT:
            return self._roles is not None
        from berth.train.data.delimited import header

        return criteo.LAYOUT.labels[0].encode() in header(path)

    def _as_batch(self, rows: Examples, whole: int) -> Batch:
        weights = None if rows.weights is None else torch.from_numpy(rows.weights)
        return Batch(
            batch_inputs(rows, self.layout), torch.from_numpy(rows.labels), len(rows), whole, weights
        )

    def _nothing_readable(self) -> InputError:
        """Return the error of data without examples, with the first row that could not be read."""
        if not self.first_bad:
            return InputError("has no rows", where=str(self.files[0]))
        return self._unreadable(f"has no readable row; the first of {self.bad_rows:,}")

    def _check_readable(self, good: int, bad: int) -> None:
        """Raise if nearly all of many rows are bad: then a column has another role than its data."""
        if good + bad >= _ENOUGH and good < _LEAST_READABLE * (good + bad):
            raise self._unreadable(f"only {good:,} of {good + bad:,} rows can be read; the first bad one")

    def _unreadable(self, what: str) -> InputError:
        hint = "fix the values, or give the columns other roles: --columns"
        if self._roles is None and self.files[0].suffix != ".parquet":
            hint = (
                "without --columns text is read in Criteo's format; if its first line names the columns: "
                "--columns '{}'"
            )
        return InputError(f"{what} is {self.first_bad[0]}", where=str(self.files[0]), hint=hint)

    def _name_bad(self, path: Path, bad: list[BadRow]) -> None:
        for row in bad:
            place = f"{path}:{row.row}"
            if self.strict:
                raise InputError(
                    row.reason, where=place, hint="without --strict such rows are counted and skipped"
                )
            text = f"{place}: {row.reason}"
            if len(self.first_bad) < _SHOWN and text not in self.first_bad:
                self.first_bad.append(text)


@dataclass(frozen=True, slots=True)
class _BlockEnds:
    rows: Rows
    epoch: int
    file: int
    bad: int  # before this block

    def mark(self, row: int, window: int) -> WindowStart:
        """Return the start of a window that begins at `row` (> 0) of the block."""
        offset, line = int(self.rows.ends[row - 1]), int(self.rows.lines[row - 1])
        before = sum(bad.row <= line for bad in self.rows.bad) if self.epoch == 0 else 0
        return WindowStart(self.epoch, self.file, offset, line, self.bad + before, window)


def click_files(path: Path) -> list[Path]:
    """Return the file, or the click logs of a folder in name order."""
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.is_file() and _is_known(file))
        if not found:
            raise InputError(
                "has no click logs", where=str(path), hint="*.tsv, *.txt (.gz, .xz, .zst), *.parquet"
            )
        return found
    if not path.is_file():
        raise InputError("no such file or folder", where=str(path))
    return [path]


def _is_known(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    suffix = path.with_suffix("").suffix if path.suffix in _PACKED else path.suffix
    return suffix == ".parquet" or suffix in _TEXT


def batch_inputs(rows: Examples, layout: Layout) -> dict[str, Tensor]:
    """Return the inputs of a model: slots (batch, slots, 1), features, and padded lists (batch, longest)."""
    inputs: dict[str, Tensor] = {}
    for groups, array in ((layout.slots, rows.keys), (layout.dense, rows.dense)):
        at = 0
        for name, columns in groups.items():
            part = np.ascontiguousarray(array[:, at : at + len(columns)])
            inputs[name] = (
                torch.from_numpy(part)[:, :, None] if groups is layout.slots else torch.from_numpy(part)
            )
            at += len(columns)
    for name, lists in zip(layout.multi, rows.lists, strict=True):
        inputs[name] = torch.from_numpy(lists.padded())
    return inputs
