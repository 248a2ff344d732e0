"""Batches are functions of the data, the seed and the step; rows that can't be read are counted and named."""

from __future__ import annotations

import gzip
import itertools
import lzma
import re
from random import Random

import numpy as np
import polars as pl
import pytest
import torch
import zstandard

from berth.errors import InputError
from berth.train.data.batch import Share
from berth.train.data.clicks import VOCABULARIES, ClickStream
from berth.train.data.criteo import criteo_rows
from berth.train.data.files import FileStream, click_files
from berth.train.data.prefetch import Prefetcher
from berth.train.data.rows import slot_bases
from berth.train.metrics import auc

PACKERS = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def line(number: int) -> str:
    dense = [str(number * 7 % 50 - 2) if column % 5 else "" for column in range(13)]
    ids = [f"{number * 31 + slot:x}" if slot % 7 else "" for slot in range(26)]
    return "\t".join([str(int(number % 3 == 0)), *dense, *ids])


def write(path, numbers, *, insert: dict[int, str] | None = None) -> None:
    lines = [line(number) for number in numbers]
    for at, text in (insert or {}).items():
        lines.insert(at, text)
    path.write_text("\n".join(lines) + "\n")


def taken(source, batch=10, step=0, share=Share(), seed=0, most=1000):  # noqa: B008
    return list(itertools.islice(source.batches(batch, step, share, seed), most))


def same(left, right) -> bool:
    pairs = zip(left, right, strict=True)
    return all(
        torch.equal(a.labels, b.labels)
        and torch.equal(a.inputs["slots"], b.inputs["slots"])
        and torch.equal(a.inputs["dense"], b.inputs["dense"])
        for a, b in pairs
    )


def rows_of(batches) -> set[tuple[int, ...]]:
    return {tuple(row) for batch in batches for row in batch.inputs["slots"].flatten(1).tolist()}


class TestClicks:
    def test_a_batch_depends_on_seed_and_step_alone(self):
        late = taken(ClickStream(4), step=7, most=1)
        assert same(late, taken(ClickStream(4), most=8)[7:])
        assert not same(late, taken(ClickStream(5), step=7, most=1))

    @pytest.mark.parametrize("workers", [2, 3])
    def test_workers_share_a_batch_row_by_row(self, workers):
        (whole,) = taken(ClickStream(), most=1)
        for worker in range(workers):
            (part,) = taken(ClickStream(), share=Share(worker, workers), most=1)
            assert torch.equal(part.inputs["slots"], whole.inputs["slots"][worker::workers])
            assert torch.equal(part.labels, whole.labels[worker::workers])

    @pytest.mark.slow
    def test_ids_follow_the_law_of_zipf(self):
        keys = ClickStream().draw(0, 100_000)[0]
        slot = 9
        values = int(VOCABULARIES[slot])
        law = np.arange(1, values + 1) ** -1.1
        found = np.bincount(keys[:, slot] & 0xFFFFFFFF, minlength=values + 1)[1:] / len(keys)
        assert np.abs(found - law / law.sum()).max() < 0.005
        assert (keys >> 32 == np.arange(26)).all()

    def test_no_score_beats_the_true_probabilities(self):
        stream = ClickStream()
        _, dense, probabilities, labels = stream.draw(0, 1 << 16)
        assert auc(probabilities, labels) == pytest.approx(stream.best_auc(), abs=0.005)
        assert stream.best_auc() == pytest.approx(0.803, abs=0.002)
        assert auc(dense[:, 1], labels) < 0.6


class TestFiles:
    def test_packed_and_plain_files_give_the_same_batches(self, tmp_path):
        write(tmp_path / "a.tsv", range(100))
        text = (tmp_path / "a.tsv").read_bytes()
        (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(text))
        (tmp_path / "a.tsv.xz").write_bytes(lzma.compress(text))
        (tmp_path / "a.tsv.zst").write_bytes(zstandard.compress(text[:999]) + zstandard.compress(text[999:]))
        (tmp_path / "b.tsv").write_bytes(text.replace(b"\n", b"\r\n"))
        plain = taken(FileStream(tmp_path / "a.tsv"))
        assert sum(batch.examples for batch in plain) == 100
        for name in ("a.tsv.gz", "a.tsv.xz", "a.tsv.zst", "b.tsv"):
            assert same(plain, taken(FileStream(tmp_path / name)))

    def test_values_are_what_the_line_says(self, tmp_path):
        dense = ["3", "", "-1", *["0"] * 10]
        (tmp_path / "a.tsv").write_text("\t".join(["1", *dense, "ff", "", *["FFFFFFFF"] * 24]) + "\n")
        (batch,) = taken(FileStream(tmp_path / "a.tsv"))
        assert batch.labels.tolist() == [1]
        assert batch.inputs["dense"][0, :3].tolist() == pytest.approx([np.log1p(3), 0, -np.log1p(1)])
        keys = batch.inputs["slots"][0, :, 0]
        assert keys[:3].tolist() == [(1 << 56) + 256, 2 << 56, (3 << 56) + 2**32]
        assert len(set(keys.tolist())) == 26

    def test_every_row_comes_once_an_epoch_and_windows_are_shuffled_by_the_seed(self, tmp_path):
        write(tmp_path / "a.tsv", range(60))
        write(tmp_path / "b.tsv", range(60, 95))
        one, other = (taken(FileStream(tmp_path, window=40), seed=seed) for seed in (0, 1))
        assert [batch.examples for batch in one] == [10] * 9 + [5]
        assert rows_of(one) == rows_of(other)
        assert len(rows_of(one)) == 95
        assert not same(one, other)
        assert rows_of(one[:4]) == rows_of(other[:4])  # windows keep the order of the files

    @pytest.mark.parametrize("step", [1, 4, 7, 13, 30])
    @pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.tsv.zst", "a.parquet"])
    def test_a_run_goes_on_from_any_step_without_reading_all_again(self, tmp_path, name, step):
        write(tmp_path / "a.tsv", range(97), insert={3: "torn", 50: "torn"})
        text = (tmp_path / "a.tsv").read_bytes()
        if name == "a.tsv.gz":
            (tmp_path / name).write_bytes(gzip.compress(text))
        if name == "a.tsv.zst":
            (tmp_path / name).write_bytes(zstandard.compress(text))
        if name == "a.parquet":
            write_parquet(tmp_path / name, 97)
        whole = FileStream(tmp_path / name, window=32, epochs=None)
        batches = whole.batches(10, 0, Share(), 0)
        first = [next(batches) for _ in range(step)]
        position = whole.position(step)
        rest = [next(batches) for _ in range(10)]
        fresh = FileStream(tmp_path / name, window=32, epochs=None)
        fresh.seek(position)
        assert same(rest, taken(fresh, step=step, most=10))
        assert same(
            [*first, *rest], taken(FileStream(tmp_path / name, window=32, epochs=None), most=step + 10)
        )
        assert 0 <= step * 10 - position["row"] < 32
        assert position["epoch"] == step * 10 // 97
        assert (fresh.bad_rows, fresh.bad_rows == 0) == (whole.bad_rows, name == "a.parquet")
        assert fresh.bad_rows == (0 if name == "a.parquet" else 2)

    def test_a_resumed_run_that_has_read_nothing_keeps_its_position(self, tmp_path):
        """Another worker has trained all that was left."""
        write(tmp_path / "a.tsv", range(97))
        whole = FileStream(tmp_path, window=32)
        taken(whole)
        position = whole.position(8)
        assert position["row"] == 64
        resumed = FileStream(tmp_path, window=32)
        resumed.seek(position)
        assert resumed.position(10) == position

    def test_workers_share_a_batch_of_files_row_by_row(self, tmp_path):
        write(tmp_path / "a.tsv", range(30))
        (whole, *_) = taken(FileStream(tmp_path))
        (part, *_) = taken(FileStream(tmp_path), share=Share(1, 3))
        assert torch.equal(part.inputs["slots"], whole.inputs["slots"][1::3])

    def test_of_a_last_batch_smaller_than_the_workers_some_get_nothing(self, tmp_path):
        write(tmp_path / "a.tsv", range(32))
        reported = [taken(FileStream(tmp_path), share=Share(worker, 3)) for worker in range(3)]
        assert [[batch.examples for batch in batches] for batches in reported] == [
            [4, 4, 4, 1],
            [3, 3, 3, 1],
            [3, 3, 3, 0],
        ]
        assert {tuple(batch.whole for batch in batches) for batches in reported} == {(10, 10, 10, 2)}
        assert sum(batch.part(3) for batch in (batches[-1] for batches in reported)) == 1.0

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "has 1 column, not 40"),
            (line(1) + "\t", "has 41 columns, not 40"),
            (line(1).rsplit("\t", 1)[0], "has 39 columns, not 40"),
            ("2" + line(1)[1:], "label is neither 0 nor 1: '2'"),
            ("-1" + line(1)[1:], "label is neither 0 nor 1: '-1'"),
            (line(1)[1:], "label is neither 0 nor 1: ''"),
            ("0\tx" + line(1)[2:], "I1 is not an integer: 'x{}'".format(line(1).split("\t")[1])),
            ("0\t1.5" + line(1)[2:], "I1 is not an integer: '1.5{}'".format(line(1).split("\t")[1])),
            (
                line(1) + "g",
                "C26 is not hexadecimal of at most 8 digits: '{}g'".format(line(1).split("\t")[-1]),
            ),
            (
                line(1) + "1" * 50,
                "C26 is not hexadecimal of at most 8 digits: '{}...'".format(
                    (line(1).split("\t")[-1] + "1" * 50)[:40]
                ),
            ),
        ],
    )
    def test_a_bad_line_is_counted_and_named(self, tmp_path, text, reason):
        path = tmp_path / "a.tsv"
        write(path, range(20), insert={5: text})
        stream = FileStream(path)
        batches = taken(stream)
        assert sum(batch.examples for batch in batches) == 20
        assert stream.bad_rows == 1
        assert stream.first_bad == [f"{path}:6: {reason}"]
        with pytest.raises(InputError, match=re.escape(reason)) as error:
            taken(FileStream(path, strict=True))
        assert error.value.where == f"{path}:6"

    def test_every_damaged_line_has_a_reason(self, tmp_path):
        random, path = Random(3), tmp_path / "a.tsv"
        lines = []
        for number in range(3000):
            damaged = list(line(number))
            for _ in range(random.randint(1, 3)):
                damaged[random.randrange(len(damaged))] = random.choice("\t\r -1aGx.\0é9f")
            lines.append("".join(damaged))
        path.write_text("".join(f"{text}\n" for text in lines), newline="")
        reasons = [bad.reason for rows in criteo_rows(path) for bad in rows.bad]
        assert len(reasons) > 1000
        shape = r"has \d+ columns?, not 40|(label|I\d+|C\d+) is (neither 0 nor 1|not .+): .+"
        assert not [reason for reason in reasons if not re.fullmatch(shape, reason)]

    def test_the_reason_of_a_bad_line_is_the_same_before_a_carriage_return(self, tmp_path):
        path = tmp_path / "a.tsv"
        lines = [line(1), "0\tx" + line(1)[2:], line(1) + "123456789", line(2)[:-1]]
        path.write_bytes("".join(f"{text}\r\n" for text in lines).encode())
        stream = FileStream(path)
        assert sum(batch.examples for batch in taken(stream)) == 2
        assert [text.split(": ")[1] for text in stream.first_bad] == [
            "I1 is not an integer",
            "C26 is not hexadecimal of at most 8 digits",
        ]

    def test_data_are_described_by_their_names_and_sizes(self, tmp_path):
        write(tmp_path / "a.tsv", range(3))
        size = (tmp_path / "a.tsv").stat().st_size
        assert FileStream(tmp_path, window=8).describe() == {
            "kind": "files",
            "files": [["a.tsv", size]],
            "window": 8,
            "shuffled": "within an epoch",
        }

    def test_a_bad_line_read_in_two_passes_is_counted_and_named_once(self, tmp_path):
        path = tmp_path / "a.tsv"
        write(path, range(20), insert={5: "torn"})
        stream = FileStream(path, epochs=2)
        assert sum(batch.examples for batch in taken(stream)) == 40
        assert (stream.bad_rows, len(stream.first_bad)) == (1, 1)
        taken(stream)  # from the beginning
        assert stream.bad_rows == 1

    def test_bad_lines_are_counted_once_by_runs_that_are_resumed_again_and_again(self, tmp_path):
        write(tmp_path / "a.tsv", range(40), insert={3: "torn", 30: "torn"})
        write(tmp_path / "b.tsv", range(40), insert={0: "torn", 20: "torn", 39: "torn"})
        position = FileStream(tmp_path, window=16).position(0)
        counts = []
        for step in range(0, 26, 2):  # three passes and more
            stream = FileStream(tmp_path, window=16, epochs=None)
            stream.seek(position)
            taken(stream, step=step, most=2)
            position = stream.position(step + 2)
            counts.append(position["bad"])
        assert counts == sorted(counts)
        assert (stream.bad_rows, position["bad"], position["epoch"]) == (5, 5, 3)

    def test_many_bad_lines_are_all_counted(self, tmp_path):
        path = tmp_path / "a.tsv"
        path.write_text("nothing\n" * 1000 + line(1) + "\n")
        stream = FileStream(path)
        assert [batch.examples for batch in taken(stream)] == [1]
        assert (stream.bad_rows, len(stream.first_bad)) == (1000, 20)

    def test_a_file_without_a_good_row_is_refused(self, tmp_path):
        (tmp_path / "a.tsv").write_text("nothing\n")
        with pytest.raises(
            InputError, match=r"has no readable row; the first of 1 is .*a\.tsv:1: "
        ) as refused:
            taken(FileStream(tmp_path, epochs=None))
        assert "--columns '{}'" in str(refused.value)

    @pytest.mark.parametrize(("bad", "passes"), [(19_000, 1), (90, None)], ids=["one pass", "many passes"])
    def test_a_file_of_which_nearly_all_rows_are_bad_is_refused(self, tmp_path, bad, passes):
        path = tmp_path / "a.tsv"
        path.write_text(line(1) + "\n" + "nothing\n" * bad)
        with pytest.raises(
            InputError, match=r"only \d+ of 1\d,\d+ rows can be read; the first bad one is .*:2: "
        ):
            taken(FileStream(path, epochs=passes))

    @pytest.mark.parametrize("packer", PACKERS)
    @pytest.mark.parametrize("spoil", ["torn", "altered", "another"])
    def test_a_packed_file_that_is_damaged_is_refused_by_name(self, tmp_path, packer, spoil):
        packed = bytearray(PACKERS[packer](("\n".join(line(n) for n in range(99)) + "\n").encode()))
        packed[200] ^= 0xFF if spoil == "altered" else 0
        damaged = {"torn": packed[:-50], "altered": packed, "another": b"not packed at all\n" * 9}[spoil]
        path = tmp_path / f"a.tsv.{packer}"
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="can't be read beyond line") as error:
            taken(FileStream(path))
        assert error.value.where == str(path)

    def test_a_line_longer_than_a_block_is_one_bad_line(self, tmp_path):
        path = tmp_path / "a.tsv"
        path.write_text("x" * 3_000_000 + "\n" + line(1))  # nor does the last line end
        stream = FileStream(path)
        assert [batch.examples for batch in taken(stream)] == [1]
        assert stream.bad_rows == 1

    @pytest.mark.parametrize("name", ["missing.tsv", "empty"])
    def test_what_is_not_there_is_said(self, tmp_path, name):
        (tmp_path / "empty").mkdir()
        with pytest.raises(InputError):
            click_files(tmp_path / name)


def write_parquet(path, rows: int, labels=None) -> None:
    frame = pl.DataFrame(
        {
            "label": labels or [number % 2 for number in range(rows)],
            "I1": [float(number) for number in range(rows)],
            "I2": [number if number % 4 else None for number in range(rows)],
            "C1": [f"{number:08x}" for number in range(rows)],
            "city": [f"town {number % 9}" if number % 5 else None for number in range(rows)],
            "C2": [number * 10 for number in range(rows)],
        }
    )
    frame.write_parquet(path)


class TestParquet:
    def test_columns_take_their_roles_by_type_and_name(self, tmp_path):
        write_parquet(tmp_path / "a.parquet", 12)
        (batch,) = taken(FileStream(tmp_path, window=100), batch=12)
        assert batch.inputs["slots"].shape == (12, 3, 1)
        assert batch.inputs["dense"].shape == (12, 2)
        order = np.argsort(batch.inputs["dense"][:, 0].numpy())
        first = batch.inputs["slots"][order, 0, 0]
        assert (first - (1 << 56)).tolist() == list(range(1, 13))
        towns = batch.inputs["slots"][order, 1, 0].tolist()
        assert towns[0] == towns[5] == 2 << 56  # missing
        assert towns[2] == towns[11]
        assert len(set(towns)) == 9

    def test_a_row_without_a_label_is_counted_and_named(self, tmp_path):
        write_parquet(tmp_path / "a.parquet", 4, labels=[0, None, 1, 7])
        stream = FileStream(tmp_path)
        assert sum(batch.examples for batch in taken(stream)) == 2
        places = [f"{tmp_path / 'a.parquet'}:{row}: column 'label': a label is 0 or 1, got" for row in (2, 4)]
        assert stream.first_bad == [f"{places[0]} nothing", f"{places[1]} 7"]

    @pytest.mark.parametrize(("name", "shapes"), [("C1", ((4, 1, 1), (4, 0))), ("I1", ((4, 0, 1), (4, 1)))])
    def test_a_log_may_have_no_features_or_no_slots(self, tmp_path, name, shapes):
        pl.DataFrame({"label": [0, 1, 1, 0], name: [5, 6, 7, 8]}).write_parquet(tmp_path / "a.parquet")
        (batch,) = taken(FileStream(tmp_path))
        assert (batch.inputs["slots"].shape, batch.inputs["dense"].shape) == shapes
        assert sorted(batch.labels.tolist()) == [0, 0, 1, 1]

    def test_a_row_with_a_feature_that_is_not_finite_is_counted_and_named(self, tmp_path):
        values = [1.0, np.inf, np.nan, -1e300, 5.0]
        frame = pl.DataFrame({"label": [0, 1, 1, 0, 1], "C1": range(5), "x": values})
        frame.write_parquet(tmp_path / "a.parquet")
        stream = FileStream(tmp_path)
        (batch,) = taken(stream)
        assert sorted(batch.inputs["dense"].flatten().tolist()) == pytest.approx([np.log(2), np.log(6)])
        assert stream.bad_rows == 3
        assert stream.first_bad[0].endswith(":2: column 'x': inf is infinite, or too large for a float")
        assert stream.first_bad[1].endswith(":3: column 'x': nan is not a number")
        frame[2:].write_parquet(tmp_path / "a.parquet")
        with pytest.raises(InputError, match="nan is not a number"):
            taken(FileStream(tmp_path, strict=True))

    def test_names_of_files_are_not_patterns(self, tmp_path):
        for name, first in (("day[1].parquet", 100), ("day1.parquet", 200), ("day*.parquet", 300)):
            ids = range(first, first + 3)
            pl.DataFrame({"label": [0, 1, 0], "C1": ids, "x": ids}).write_parquet(tmp_path / name)
        for path, expected in (
            (tmp_path / "day[1].parquet", {100, 101, 102}),
            (tmp_path / "day*.parquet", {300, 301, 302}),
            (tmp_path, {*range(100, 103), *range(200, 203), *range(300, 303)}),
        ):
            (batch,) = taken(FileStream(path))
            ids = (batch.inputs["slots"].flatten().numpy() - slot_bases(1)[0] - 1).tolist()
            assert len(ids) == len(expected)
            assert set(ids) == expected

    @pytest.mark.parametrize("names", [["C2", "C1", "x"], ["C1", "x"], ["C1", "C2"], ["C1", "C2", "y"]])
    def test_files_of_one_folder_have_the_same_columns(self, tmp_path, names):
        columns = {"C1": [1, 2], "C2": [3, 4], "x": [0.5, 1.5], "y": [2.5, 3.5]}
        for number, wanted in enumerate((["C1", "C2", "x"], names)):
            frame = pl.DataFrame({"label": [0, 1], **{name: columns[name] for name in wanted}})
            frame.write_parquet(tmp_path / f"{number}.parquet")
        with pytest.raises(InputError, match="has different columns than earlier files") as error:
            taken(FileStream(tmp_path))
        assert error.value.where == str(tmp_path / "1.parquet")
        assert "C1, C2, x" in error.value.hint

    @pytest.mark.parametrize(
        ("columns", "reason"),
        [
            ({"label": [0, 1], "when": [[1.5], [2.5]]}, "column 'when' has type List"),
            ({"words": ["a", "b"], "x": [1.0, 2.0]}, "has no label column"),
        ],
    )
    def test_a_column_of_no_use_is_refused_by_name(self, tmp_path, columns, reason):
        pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
        with pytest.raises(InputError, match=reason):
            taken(FileStream(tmp_path))

    def test_something_else_is_refused_by_name(self, tmp_path):
        (tmp_path / "a.parquet").write_text("not parquet")
        with pytest.raises(InputError, match="can't be read as Parquet"):
            taken(FileStream(tmp_path))


class TestAhead:
    def test_items_come_in_order_and_errors_where_they_happened(self):
        def items():
            yield from range(5)
            raise ValueError("here")

        ahead = Prefetcher(items())
        assert [next(ahead) for _ in range(5)] == list(range(5))
        for _ in range(2):
            with pytest.raises(ValueError, match="here"):
                next(ahead)

    def test_who_asks_again_after_the_end_does_not_wait(self):
        ahead = Prefetcher(iter("ab"))
        assert [next(ahead, "end") for _ in range(4)] == ["a", "b", "end", "end"]

    def test_it_can_be_left_early(self):
        ahead = Prefetcher(itertools.count())
        assert next(ahead) == 0
        ahead.close()
        assert not ahead._thread.is_alive()
