"""Properties of traces: writing and reading is the identity, and no row is ever lost on the way in."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.errors import TraceError
from berth.workload import Trace, read_trace
from berth.workload.parsing.csv_rows import CsvRows
from berth.workload.trace import BadRowCollector

pytestmark = pytest.mark.slow

# Everything UTF-8 can hold, with a weight on what CSV finds hard.
words = st.text(
    st.one_of(st.sampled_from(',"\r\n \t;'), st.characters(codec="utf-8")), min_size=1, max_size=8
)
maybe = st.none() | words


@st.composite
def traces(draw):
    names = draw(st.lists(words, min_size=1, max_size=8, unique=True))
    columns = {
        "job_id": names,
        "submit_s": draw(_each(names, st.floats(0, 1e9))),
        "num_gpu": draw(_each(names, st.integers(1, 2**31 - 1))),
        "duration_s": draw(_each(names, st.floats(1e-300, 1e10))),
        "model": draw(_each(names, maybe)),
        "user": draw(_each(names, maybe)),
        "vc": draw(_each(names, maybe)),
        "priority": draw(_each(names, st.none() | st.integers(-(2**31) + 1, 2**31 - 1))),
    }
    return Trace.from_columns(columns, source="made")


def _each(names, values):
    return st.lists(values, min_size=len(names), max_size=len(names))


@given(trace=traces(), suffix=st.sampled_from([".csv", ".csv.gz", ".csv.zst"]))
def test_a_trace_that_is_written_and_read_is_the_same(trace, suffix, tmp_path_factory):
    file = tmp_path_factory.mktemp("trace") / f"trace{suffix}"
    trace.write_csv(file)
    back = read_trace(file)
    assert back.frame.equals(trace.frame)
    assert (back.bad.total, back.notes, back.rows) == (0, (), len(trace))


fields = st.sampled_from(
    ["a", "b", "7", "0", "-1", "1.5", "x", "", "nan", "inf", "1e99", " 3 ", '"', '"4"', "é", "\x00"]
)
rows = st.lists(st.lists(fields, min_size=3, max_size=5), max_size=12)


@given(rows=rows)
def test_good_and_bad_rows_make_up_all_rows(rows, tmp_path_factory):
    numbered = [
        [f"{place}{row[0]}" if row[0] in "ab" else row[0], *row[1:]] for place, row in enumerate(rows)
    ]
    lines = ["job_id,submit_s,num_gpu,duration_s", "first,0,1,60", *(",".join(row) for row in numbered)]
    file = tmp_path_factory.mktemp("trace") / "trace.csv"
    file.write_text("\n".join(lines) + "\n", newline="")
    trace = read_trace(file)
    assert len(trace) + trace.bad.total == trace.rows
    assert len(trace.bad.first) == min(10, trace.bad.total)
    assert all(2 < row.line <= len(lines) for row in trace.bad.first)
    if not any('"' in line for line in lines):
        assert trace.rows == len(lines) - 1
        good = {line for line, text in enumerate(lines[1:], 2) if _is_job(text)}
        assert len(trace) == len({lines[line - 1].split(",")[0] for line in good})


def _is_job(text):
    """The rules for a row once more, one field at a time."""
    row = text.split(",")
    try:
        name, submit_s, gpus, duration_s = row[0], float(row[1]), float(row[2]), float(row[3])
    except (ValueError, IndexError):
        return False
    sound = len(row) == 4 and name and 0 <= submit_s <= 1e10 and 0 < duration_s <= 1e10
    return bool(sound and 0 < gpus < 2**31 and gpus == int(gpus))


@given(
    rows=st.lists(
        st.lists(words.filter(lambda word: "\x00" not in word), min_size=3, max_size=3), max_size=20
    )
)
def test_the_fast_and_the_slow_path_find_the_same_rows(rows):
    plain = [[cell.translate(str.maketrans("", "", ',"\r\n')) or "-" for cell in row] for row in rows]
    quick = _cells("".join(",".join(row) + "\n" for row in plain))
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(plain)
    careful = _cells(out.getvalue())
    assert quick == careful == [tuple(row) for row in plain]


def _cells(text):
    reader = CsvRows("made", ["a", "b", "c"], header=False, bad_rows=BadRowCollector())
    return [row for block in reader.blocks([text.encode()]) for row in block.cells.iter_rows()]


@given(
    data=st.binary(max_size=300),
    head=st.sampled_from([b"", b"job_id,submit_s,num_gpu,duration_s\n", b"\x1f\x8b", b"["]),
)
def test_whatever_the_bytes_a_file_is_read_or_refused_with_a_trace_error(data, head, tmp_path_factory):
    file = tmp_path_factory.mktemp("trace") / "trace"
    file.write_bytes(head + data)
    try:
        trace = read_trace(file)
    except TraceError:
        return
    assert len(trace) + trace.bad.total == trace.rows
