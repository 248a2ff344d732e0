"""The trace itself: its columns, how it is written, sliced and summed up."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import numpy as np
import pytest

from berth.errors import InputError, TraceError, UnknownNameError
from berth.workload import Trace, read_trace
from berth.workload.selection import Selection, renumbered
from berth.workload.summary import summarise_trace


def trace_of(submit_s, num_gpu, duration_s, **others):
    columns = {"job_id": [f"j{i}" for i in range(len(submit_s))], "submit_s": submit_s, "num_gpu": num_gpu}
    origin = others.pop("origin", None)
    return Trace.from_columns(columns | {"duration_s": duration_s} | others, source="made", origin=origin)


@pytest.fixture
def trace():
    return trace_of(
        [0.0, 10.0, 20.0, 30.0, 90000.0],
        [1, 2, 3, 8, 64],
        [60.0, 1.5, 5.0, 7200.0, 10.0],
        vc=["a", "b", "a", None, "b"],
        model=["x", "y", "x", None, "x"],
        origin=datetime(2017, 10, 1),
    )


def test_importing_the_package_imports_no_heavy_library():
    code = "import sys, berth.workload; print([m for m in ('polars', 'numba', 'scipy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_columns_come_sorted_and_from_zero():
    made = trace_of([50.0, 20.0], [1, 2], [5.0, 6.0], origin=datetime(2020, 1, 1))
    assert made.submit_s.tolist() == [0.0, 30.0]
    assert made.num_gpu.tolist() == [2, 1]
    assert made.num_gpu.dtype == np.int32
    assert made.origin == datetime(2020, 1, 1, 0, 0, 20)
    assert made.gpu_seconds == 17.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_gpu": [1, 0]}, "a job of no GPU"),
        ({"duration_s": [1.0, float("nan")]}, "a duration that is not above zero"),
        ({"duration_s": [1.0, 0.0]}, "a duration that is not above zero"),
        ({"submit_s": [0.0, float("inf")]}, "a submission that is not a finite number"),
        ({"job_id": ["a", "a"]}, "two jobs of one name"),
        ({"job_id": ["a", ""]}, "a job without job_id"),
        ({"job_id": [], "submit_s": [], "num_gpu": [], "duration_s": []}, "no jobs"),
        ({"colour": ["red", "blue"]}, "unknown column 'colour'"),
        ({"priority": [0, 10**12]}, "'priority' must hold whole numbers of 32 bits"),
        ({"priority": [0.0, 1.5]}, "'priority' must hold whole numbers"),
        ({"num_gpu": [1.0, 2.5]}, "'num_gpu' must hold whole numbers"),
        ({"duration_s": ["1", "soon"]}, "'duration_s' must hold numbers"),
    ],
)
def test_columns_that_break_the_promises_of_a_trace_are_refused(change, says):
    columns = {"job_id": ["a", "b"], "submit_s": [0.0, 1.0], "num_gpu": [1, 1], "duration_s": [1.0, 1.0]}
    with pytest.raises(TraceError, match=says):
        Trace.from_columns(columns | change, source="made")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.xz", ".csv.zst"])
def test_a_written_trace_reads_back_the_same(trace, suffix, tmp_path):
    trace.write_csv(tmp_path / f"out{suffix}")
    back = read_trace(tmp_path / f"out{suffix}")
    assert back.frame.equals(trace.frame)
    assert (back.bad.total, back.notes) == (0, ())


def test_numbers_are_written_as_short_as_they_can_be_and_empty_columns_not_at_all(tmp_path):
    made = trace_of([0.0, 0.1], [1, 2], [5.0, 1e22], vc=["plain", 'a "b", c'])
    made.write_csv(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == (
        'job_id,submit_s,num_gpu,duration_s,vc\nj0,0,1,5,plain\nj1,0.1,2,1e+22,"a ""b"", c"\n'
    )


@pytest.mark.parametrize("suffix", [".csv.gz", ".csv.xz", ".csv.zst"])
def test_the_same_trace_gives_the_same_bytes(trace, suffix, tmp_path):
    for name in ("one", "two"):
        trace.write_csv(tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_an_unknown_suffix_and_a_missing_folder_are_refused_and_leave_nothing_behind(trace, tmp_path):
    with pytest.raises(TraceError, match="can't choose a format for"):
        trace.write_csv(tmp_path / "out.parquet")
    with pytest.raises(InputError, match="can't be written: No such file"):
        trace.write_csv(tmp_path / "nowhere" / "out.csv")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="can't be written: Not a directory"):
        trace.write_csv(tmp_path / "file" / "out.csv")


@pytest.mark.parametrize(
    ("selection", "kept"),
    [
        (Selection(), [0, 1, 2, 3, 4]),
        (Selection(since="10s"), [1, 2, 3, 4]),
        (Selection(since="2017-10-01T00:00:20"), [2, 3, 4]),
        (Selection(until="20s"), [0, 1]),
        (Selection(until="2017-10-02"), [0, 1, 2, 3]),
        (Selection(sizes="powers-of-two"), [0, 1, 3, 4]),
        (Selection(sizes="1,3-8"), [0, 2, 3]),
        (Selection(max_gpus=8), [0, 1, 2, 3]),
        (Selection(vc=("a",)), [0, 2]),
        (Selection(vc=("a", "b")), [0, 1, 2, 4]),
        (Selection(sizes="powers-of-two", limit=2), [0, 1]),
    ],
)
def test_a_selection_keeps_the_jobs_that_meet_all_its_conditions(trace, selection, kept):
    chosen = selection.apply(trace)
    assert chosen.job_ids == [f"j{index}" for index in kept]
    assert chosen.submit_s.tolist() == (trace.submit_s[kept] - trace.submit_s[kept[0]]).tolist()


def test_a_selection_says_what_it_kept_and_moves_the_origin(trace):
    chosen = Selection(since="20s", max_gpus=8).apply(trace)
    assert chosen.notes == ("selected 2 of 5 jobs: submitted since 20s; of at most 8 GPUs",)
    assert chosen.origin == datetime(2017, 10, 1, 0, 0, 20)


@pytest.mark.parametrize(
    ("selection", "error", "says"),
    [
        (Selection(since="soon"), InputError, "neither a date nor a duration"),
        (Selection(since="2017-10-01T00:00:00+02:00"), InputError, "no time zone"),
        (Selection(sizes="many"), InputError, "is not a list of sizes"),
        (Selection(vc=("c",)), UnknownNameError, "no virtual cluster is called 'c'"),
        (Selection(since="3d"), TraceError, "no job is left"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(trace, selection, error, says):
    with pytest.raises(error, match=says):
        selection.apply(trace)


def test_a_date_needs_a_trace_with_dates():
    with pytest.raises(InputError, match="the trace has no dates"):
        Selection(since="2017-10-01").apply(trace_of([0.0], [1], [1.0]))


def test_renumbered_jobs_are_named_in_order_of_time(trace):
    assert renumbered(Selection(since="20s").apply(trace)).job_ids == ["0", "1", "2"]


def test_the_summary_adds_up(trace):
    summary = summarise_trace(trace, buckets=10)
    assert sum(share.jobs for share in summary.sizes) == len(trace)
    assert sum(share.jobs for share in summary.durations) == len(trace)
    assert sum(share.gpu_s for share in summary.durations) == pytest.approx(trace.gpu_seconds)
    assert [(share.label, share.jobs) for share in summary.models] == [("x", 3), ("(none)", 1), ("y", 1)]
    assert (summary.vcs, summary.users) == (2, 0)
    assert (summary.size.least, summary.size.percentiles[1], summary.size.largest) == (1, 3, 64)


def test_the_load_is_the_gpus_busy_if_every_job_started_at_once():
    made = trace_of([0.0, 50.0, 100.0], [4, 2, 1], [25.0, 50.0, 1000.0])
    summary = summarise_trace(made, buckets=4)
    assert summary.load_gpus.tolist() == [4.0, 0.0, 2.0, 2.0]
    assert summary.peak_gpus == 4
    assert summary.mean_load_gpus == pytest.approx((100 + 100 + 1000) / 100)


def test_jobs_that_all_come_at_once_have_no_load_over_time():
    summary = summarise_trace(trace_of([0.0, 0.0], [4, 2], [25.0, 50.0]))
    assert len(summary.load_gpus) == 0
    assert summary.peak_gpus == 6


def test_many_sizes_are_shown_by_powers_of_two():
    sizes = list(range(1, 20))
    summary = summarise_trace(trace_of([0.0] * 19, sizes, [1.0] * 19))
    assert [(share.label, share.jobs) for share in summary.sizes] == [
        ("1", 1), ("2", 1), ("3-4", 2), ("5-8", 4), ("9-16", 8), ("17-32", 3),
    ]  # fmt: skip


def test_models_beyond_the_twelve_most_frequent_are_added_up():
    models = [f"m{number:02}" for number in range(15) for _ in range(20 - number)]
    count = len(models)
    trace = trace_of(range(count), [2] * count, [10.0] * count, model=models)
    shares = summarise_trace(trace).models
    assert [share.label for share in shares[:2]] == ["m00", "m01"]
    assert len(shares) == 13
    assert (shares[-1].label, shares[-1].jobs, shares[-1].gpu_s) == ("(3 others)", 8 + 7 + 6, 21 * 20.0)
