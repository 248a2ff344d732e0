"""Rows and files that can't be used: counted or refused, always with their place."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re

import pytest
import zstandard

from berth.errors import TraceError
from berth.workload import read_trace

HEADER = "job_id,submit_s,num_gpu,duration_s,user\n"
GOOD = "ok,0,1,60,ann\n"


def write(folder, data):
    file = folder / "trace.csv"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    return file


@pytest.mark.parametrize(
    ("row", "cause", "column", "value"),
    [
        ("a,x,1,60,bob", "submit_s: is not a number", 3, "x"),
        ("a,,1,60,bob", "submit_s: is missing", 3, ""),
        ("a,-1e300,1,60,bob", "submit_s: is implausibly large", 3, "-1e300"),
        ("a,nan,1,60,bob", "submit_s: is not a finite number", 3, "nan"),
        ("a,1e300,1,60,bob", "submit_s: is implausibly large", 3, "1e300"),
        ("a,5,0,60,bob", "num_gpu: asks for no GPU", 5, "0"),
        ("a,5,-2,60,bob", "num_gpu: is negative", 5, "-2"),
        ("a,5,1.5,60,bob", "num_gpu: is not a whole number", 5, "1.5"),
        ("a,5,3000000000,60,bob", "num_gpu: is implausibly large", 5, "3000000000"),
        ("a,5,2,0,bob", "duration_s: is not above zero", 7, "0"),
        ("a,5,2,-3,bob", "duration_s: is not above zero", 7, "-3"),
        ("a,5,2,inf,bob", "duration_s: is not a finite number", 7, "inf"),
        ("a,5,2,1_000,bob", "duration_s: is not a number", 7, "1_000"),
        (",5,2,60,bob", "job_id: is missing", 1, ""),
        ("ok,5,2,60,bob", "job_id: was used before", None, "ok"),
        ("a,5,2,60", "too few fields", None, "a,5,2,60"),
        ("a,5,2,60,bob,more", "too many fields", None, "a,5,2,60,bob,more"),
        ('"a,5,2,60,bob', "the quotes are broken", None, '"a,5,2,60,bob'),
        ('"a""b",5,zz,60,bob', "num_gpu: is not a number", 10, "zz"),
        ('"a\nb",5,zz,60,bob', "num_gpu: is not a number", 6, "zz"),
    ],
)
def test_a_bad_row_is_counted_by_cause_with_its_place_and_the_good_ones_are_read(
    row, cause, column, value, tmp_path
):
    file = write(tmp_path, HEADER + GOOD + row + "\n" + "last,9,1,60,bob\n")
    trace = read_trace(file)
    assert trace.job_ids == ["ok", "last"]
    assert trace.bad.counts == {cause: 1}
    assert trace.rows == 3
    (bad,) = trace.bad.first
    assert (bad.line, bad.column, bad.value) == (3 + row.count("\n"), column, value)


def test_a_row_that_is_not_utf8_is_bad_and_its_neighbours_are_not(tmp_path):
    file = write(tmp_path, (HEADER + GOOD).encode() + b"a\xff,1,1,5,u\n" + "é,2,1,5,u\n".encode())
    trace = read_trace(file)
    assert trace.job_ids == ["ok", "é"]
    assert trace.bad.counts == {"is not text (UTF-8)": 1}


def test_a_row_with_several_faults_is_counted_once(tmp_path):
    trace = read_trace(write(tmp_path, HEADER + GOOD + "a,x,y,z,\n"))
    assert trace.bad.total == 1


def test_lines_are_exact_among_blank_lines_and_bad_ones(tmp_path):
    text = "\n  \n" + HEADER + "\n" + GOOD + "short\n\n\nb,1,zero,5,u\n"
    trace = read_trace(write(tmp_path, text))
    assert [(row.line, row.reason) for row in trace.bad.first] == [
        (6, "too few fields"),
        (9, "is not a number"),
    ]


def test_only_the_first_bad_rows_are_kept_but_all_are_counted(tmp_path):
    rows = "".join(f"b{i},1,x,5,u\n" for i in range(1000))
    trace = read_trace(write(tmp_path, HEADER + GOOD + rows))
    assert trace.bad.total == 1000
    assert [row.line for row in trace.bad.first] == list(range(3, 13))


def test_a_stray_quote_does_not_swallow_the_rows_behind_it(tmp_path):
    rows = "".join(f"j{i},{i},1,5,u\n" for i in range(200))
    trace = read_trace(write(tmp_path, HEADER + '"oops,0,1,5,u\n' + rows + 'k"x,500,1,5,u\n'))
    assert len(trace) == 201
    assert trace.bad.counts == {"the quotes are broken": 1}


def test_times_are_counted_from_the_first_submission_and_that_is_said(tmp_path):
    trace = read_trace(write(tmp_path, HEADER + "a,500,1,60,u\nb,510.5,1,60,u\n"))
    assert trace.submit_s.tolist() == [0.0, 10.5]
    assert trace.notes == ("the first submission was at 500 s: times are counted from there",)


def test_blanks_around_numbers_do_not_matter(tmp_path):
    trace = read_trace(write(tmp_path, "job_id, submit_s, num_gpu, duration_s\na, 0, 2, 60\n"))
    assert trace.frame.row(0)[:4] == ("a", 0.0, 2, 60.0)


def test_strict_names_the_first_bad_row_and_counts_them_all(tmp_path):
    file = write(tmp_path, HEADER + GOOD + "a,1,x,5,u\nb,1,x,5,u\nc,1,1,0,u\n")
    with pytest.raises(TraceError) as caught:
        read_trace(file, strict=True)
    assert caught.value.where == f"{file}:3:5"
    assert str(caught.value).splitlines()[:2] == [
        f"{file}:3:5: num_gpu 'x': is not a number",
        "3 of 4 rows can't be used:",
    ]
    assert "2 x num_gpu: is not a number" in str(caught.value)


def test_strict_reads_a_clean_trace(tmp_path):
    assert len(read_trace(write(tmp_path, HEADER + GOOD), strict=True)) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\n \n\n", "is empty"),
        (HEADER.encode(), "has a header and no rows"),
        ((HEADER + "a,x,1,5,u\n").encode(), "no row is left"),
        (bytes(range(256)) * 20, "is binary, not text"),
        (os.urandom(0) + b"\x00\x01\x02", "is binary, not text"),
        (b"PK\x03\x04rest", "is a zip archive"),
        (b"x" * 257 + b"ustar" + b"\0" * 100, "is a tar archive"),
        (lzma.compress((HEADER + GOOD * 500).encode())[:-20], "is damaged: xz"),
        (gzip.compress((HEADER + GOOD).encode(), mtime=0)[:-3], "is damaged: gzip"),
        (zstandard.ZstdCompressor().compress((HEADER + GOOD * 500).encode())[:-4], "is damaged: zstd"),
        (b"\xfd7zXZ\x00garbage that is not xz", "is damaged: xz"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"job_id,submit_s,num_gpu,duration_s,num_gpu\na,0,1,5,1\n", "has two columns 'num_gpu'"),
        (b"[]", "is not a trace format that berth knows"),
        (b'[{"attempts": [], "submitted_time": "2017-10-03 08:00:00"', "is not JSON"),
        (b'[{"attempts": [], "submitted_time": "2017-10-03 08:00:00"}', "the list is not closed"),
        (b'["attempts" "submitted_time"' + b"[" * 100_000, "nested too deeply"),
        (b'[{"attempts": [], "submitted_time": ' + b"1" * 5000 + b"}]", "Exceeds the limit (4300 digits)"),
    ],
)
def test_a_file_that_is_not_a_trace_gives_one_clear_error(data, says, tmp_path):
    file = write(tmp_path, data)
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    assert says in str(caught.value)
    assert caught.value.where.startswith(str(file))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b" []", "is an empty list"),
        (b'{"attempts": 1}', "is not a JSON list"),
        (b'[{"attempts": [], "user": "\xff"}]', "is not text (UTF-8)"),
    ],
)
def test_a_file_that_is_said_to_be_json_and_is_none(data, says, tmp_path):
    with pytest.raises(TraceError, match=re.escape(says)):
        read_trace(write(tmp_path, data), format="philly-json")


def test_blank_lines_among_quoted_rows_are_skipped(tmp_path):
    file = write(tmp_path, (HEADER + '"a",0,1,60,"ann, bob"\n\n\n' + GOOD).encode())
    trace = read_trace(file, strict=True)
    assert trace.job_ids == ["a", "ok"]
    assert trace.frame["user"].to_list() == ["ann, bob", "ann"]
    assert "2 blank lines skipped" in trace.notes


@pytest.mark.slow
def test_lines_are_whole_wherever_a_block_ends(tmp_path, monkeypatch):
    rows = "".join(f"job{row},{row},1,60,user{row}\n" for row in range(200))
    whole = read_trace(write(tmp_path, (HEADER + rows).encode())).frame
    monkeypatch.setattr("berth.workload.parsing.csv_rows._BLOCK_BYTES", 100)
    monkeypatch.setattr("berth.workload.parsing.stream._PIECE", 37)
    monkeypatch.setattr("berth.workload.parsing.stream._HEAD", 64)
    assert read_trace(write(tmp_path, (HEADER + rows).encode())).frame.equals(whole)
    monkeypatch.setattr("berth.workload.parsing.csv_rows._LONGEST_LINE", 1000)
    with pytest.raises(TraceError, match="a line of more than"):
        read_trace(write(tmp_path, (HEADER + "x" * 5000).encode()))


def test_a_directory_and_a_missing_file_are_said_to_be(tmp_path):
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("stamp", "cause"),
    [
        ("2017-13-01 00:00:00", "timestamp: is not a date"),
        ("yesterday", "timestamp: is not a date"),
        ("0001-01-01 00:00:00", "timestamp: is not between 1970 and 2099"),
        ("9999-12-31 23:59:59", "timestamp: is not between 1970 and 2099"),
        ("", "timestamp: is missing"),
    ],
)
def test_absurd_dates_are_bad(stamp, cause, tmp_path):
    text = f"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-03 08:00:00,5,1,5,v\n{stamp},5,1,5,v\n"
    assert read_trace(write(tmp_path, text)).bad.counts == {cause: 1}


def _job(**changes):
    run = {
        "start_time": "2017-10-03 08:00:00",
        "end_time": "2017-10-03 09:00:00",
        "detail": [{"ip": "m", "gpus": ["g"]}],
    }
    job = {
        "jobid": "bad",
        "submitted_time": "2017-10-03 08:00:00",
        "attempts": [run | changes.pop("run", {})],
    }
    return job | changes


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        ("a job", "is not a job"),
        (_job(jobid=None), "jobid: is missing"),
        (_job(jobid="good"), "job_id: was used before"),
        (_job(submitted_time="None"), "submitted_time: is missing"),
        (_job(submitted_time="soon"), "submitted_time: is not a date"),
        (_job(submitted_time="0201-01-01 00:00:00"), "submitted_time: is not between 1970 and 2099"),
        (_job(submitted_time=17), "submitted_time: is not a date"),
        (_job(attempts=None), "attempts: is not a list of attempts"),
        (_job(attempts=[3]), "attempts: is not a list of attempts"),
        (_job(run={"start_time": None}), "start_time: the start was not recorded"),
        (_job(run={"end_time": "2017-10-03 08:00:00"}), "end_time: the run time is not above zero"),
        (_job(run={"detail": []}), "detail: asks for no GPU"),
        (_job(run={"detail": [{"ip": "m"}]}), "detail: is not a list of machines and their GPUs"),
        (_job(run={"detail": 5}), "detail: is not a list of machines and their GPUs"),
    ],
)
def test_a_philly_job_that_can_not_be_used_is_counted_at_its_line(job, cause, tmp_path):
    good = json.dumps(_job(jobid="good"))
    trace = read_trace(write(tmp_path, f"[{good},\n  {json.dumps(job)}\n]"))
    assert trace.job_ids == ["good"]
    assert trace.bad.counts == {cause: 1}
    assert trace.bad.first[0].line == 2


def test_a_philly_log_larger_than_what_is_read_at_once_is_read_whole(tmp_path):
    jobs = [_job(jobid=f"j{i}", note="x" * 1000) for i in range(4000)]
    trace = read_trace(write(tmp_path, json.dumps(jobs)))
    assert trace.job_ids == [f"j{i}" for i in range(4000)]


def test_a_fault_in_the_middle_of_a_philly_log_is_placed(tmp_path):
    lines = [json.dumps(_job(jobid=f"j{i}", note="x" * 1000)) for i in range(4000)]
    lines[2000] = lines[2000].replace(":", ";", 1)
    file = write(tmp_path, "[" + ",\n".join(lines) + "]")
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    assert caught.value.where == f"{file}:2001:9"
