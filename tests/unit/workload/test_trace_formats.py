"""Every format, in every packing, gives the jobs that its sample holds."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
import zstandard

from berth.errors import TraceError, UnknownNameError
from berth.workload import read_trace

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "traces"
PACKINGS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "bzip2": bz2.compress,
    "two xz streams": lambda data: lzma.compress(data[:100]) + lzma.compress(data[100:]),
}
# job_id, submit_s, num_gpu, duration_s, model, user, vc, priority
EXPECTED = {
    "berth.csv": (
        "berth",
        None,
        [
            ("a", 0.0, 1, 120.0, "resnet50", "ann", "north", 0),
            ("b", 30.0, 8, 3600.5, "bert-large", "bob", "south", 2),
            ("c", 30.25, 2, 60.0, None, "ann", "north", None),
        ],
        {},
    ),
    "philly.csv": (
        "philly-csv",
        datetime(2017, 10, 3, 8),
        [
            ("3", 0.0, 1, 66.0, None, None, "bbb222", None),
            ("2", 10.0, 2, 500.0, None, None, "aaa111", None),
            ("4", 3600.0, 8, 90.0, None, None, "aaa111", None),
        ],
        {},
    ),
    "cluster_job_log.json": (
        "philly-json",
        datetime(2017, 10, 3, 8, 0, 10),
        [
            ("application_1_0004", 0.0, 1, 30.0, None, None, "bbb222", None),
            ("application_1_0001", 20.0, 3, 600.0, None, "u1", "aaa111", None),
        ],
        {"attempts: the job never started": 1, "end_time: the job had not ended": 1},
    ),
    "helios.csv": (
        "helios",
        datetime(2020, 5, 1, 10),
        [
            ("501", 0.0, 4, 100.0, None, "uAAAA", "vcOne", None),
            ("503", 120.0, 1, 9.0, None, "uBBBB", "vcTwo", None),
        ],
        {"gpu_num: asks for no GPU": 1},
    ),
    "pai_task_table.csv": (
        "alibaba-2020",
        None,
        [
            ("job-y", 0.0, 1, 60.0, None, None, None, None),
            ("job-x", 110.0, 2, 590.0, None, None, None, None),
        ],
        {"end_time: the task had not ended": 1, "plan_gpu: asks for no GPU": 1},
    ),
    "openb.csv": (
        "alibaba-2023",
        None,
        [
            ("pod-1", 0.0, 1, 590.0, None, None, None, None),
            ("pod-2", 50.0, 1, 250.0, None, None, None, None),
            ("pod-5", 80.0, 8, 100.0, None, None, None, None),
        ],
        {"num_gpu: asks for no GPU": 1, "scheduled_time: the pod never started": 1},
    ),
    "tiresias.csv": (
        "tiresias",
        None,
        [
            ("0", 0.0, 1, 160.0, "vgg19", None, None, None),
            ("1", 30.0, 8, 150.0, "alexnet", None, None, None),
        ],
        {},
    ),
    "muri.csv": (
        "tiresias",
        None,
        [
            ("0", 0.0, 1, 2000.0, "dqn", None, None, 1),
            ("1", 3.5, 8, 2500.0, "vgg16", None, None, 0),
        ],
        {},
    ),
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("sample", EXPECTED)
def test_every_format_is_detected_by_content_and_read_in_every_compression(sample, packing, tmp_path):
    kind, origin, jobs, bad = EXPECTED[sample]
    file = tmp_path / "nothing-in-the-name"
    file.write_bytes(PACKINGS[packing]((SAMPLES / sample).read_bytes()))
    trace = read_trace(file)
    assert (trace.format, trace.origin) == (kind, origin)
    assert trace.frame.drop("device", "name", "estimate_s", "preemptible").rows() == jobs
    assert trace.bad.counts == bad


def test_the_devices_of_durations_are_read_where_a_format_has_them(tmp_path):
    assert read_trace(SAMPLES / "pai_task_table.csv").frame["device"].to_list() == ["T4", None]
    assert read_trace(SAMPLES / "helios.csv").frame["device"].to_list() == [None, None]
    trace = read_trace(SAMPLES / "berth.csv")
    named = replace(trace, frame=trace.frame.with_columns(device=pl.Series(["T4", None, "H100"])))
    named.write_csv(tmp_path / "named.csv")
    assert read_trace(tmp_path / "named.csv").frame["device"].to_list() == ["T4", None, "H100"]


@pytest.mark.parametrize("sample", EXPECTED)
def test_windows_line_ends_and_a_byte_order_mark_change_nothing(sample, tmp_path):
    data = (SAMPLES / sample).read_bytes()
    file = tmp_path / "windows"
    file.write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
    assert read_trace(file).frame.equals(read_trace(SAMPLES / sample).frame)


NOTES = {
    "berth.csv": "column berth does not use: team",
    "philly.csv": "1 blank line skipped",
    "cluster_job_log.json": "run time: from the first attempt's start to the last attempt's end",
    "pai_task_table.csv": "parts of GPUs rounded up to whole ones: 1 job",
    "openb.csv": "parts of GPUs rounded up to whole ones: 1 job",
    "tiresias.csv": "times taken as seconds (median of one iteration: 0.95)",
    "muri.csv": "times were in milliseconds (median of one iteration: 325): divided by 1000",
}


@pytest.mark.parametrize("sample", NOTES)
def test_what_was_assumed_or_changed_is_said(sample):
    assert NOTES[sample] in read_trace(SAMPLES / sample).notes


def test_rows_that_were_sorted_are_said_to_be():
    assert any("sorted" in note for note in read_trace(SAMPLES / "philly.csv").notes)


def test_the_alibaba_task_table_is_read_with_a_header_too(tmp_path):
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    file = tmp_path / "with-header.csv"
    file.write_text(header + (SAMPLES / "pai_task_table.csv").read_text())
    assert read_trace(file).frame.equals(read_trace(SAMPLES / "pai_task_table.csv").frame)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ((SAMPLES / "pollux.csv").read_text(), "Pollux workload: it has no durations"),
        ((SAMPLES / "deepshare.json").read_text(), "DeepShare job list: it has samples to train"),
        ("j1,i1,u1,Terminated,10.0,20.0\n", "it has no GPU counts"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn1,1,1,8,V100\n", "it lists machines, not jobs"),
        ("job_id,submit_s,num_gpu\na,0,1\n", "looks like berth's plain CSV, but has no column duration_s"),
        (
            "job_id,submit_s,num_gpus,duration_s\na,0,1,9\n",
            "rename num_gpus to num_gpu; its columns: job_id, submit_s, num_gpus, duration_s",
        ),
        (
            "job_id,submit_s,num_gpus,duration\na,0,1,9\n",
            "looks like berth's plain CSV, but has no column num_gpu, duration_s\n"
            "  rename num_gpus to num_gpu, duration to duration_s;",
        ),
        ("PAR1\n", "is a Parquet file\n  berth reads CSV, JSON and JSON lines"),
        ("colour,taste\nred,sweet\n", "is not a trace format that berth knows; it begins 'colour,taste'"),
        ('{"a": 1}', "is not a trace format that berth knows"),
    ],
)
def test_a_file_without_what_a_trace_needs_is_refused_by_name(text, says, tmp_path):
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    assert says in str(caught.value)
    assert caught.value.where.startswith(str(file))
    assert caught.value.hint


def test_negative_submissions_count_from_the_first(tmp_path):
    file = tmp_path / "jobs.csv"
    file.write_text("job_id,submit_s,num_gpu,duration_s\na,-5,1,9\nb,-1,1,9\nc,2.5,1,9\n")
    trace = read_trace(file, strict=True)
    assert trace.submit_s.tolist() == [0.0, 4.0, 7.5]


def test_a_format_may_be_named_and_must_then_fit():
    assert read_trace(SAMPLES / "helios.csv", format="helios").format == "helios"
    with pytest.raises(TraceError, match="has no column 'job_name', as the Alibaba PAI 2020 task table has"):
        read_trace(SAMPLES / "helios.csv", format="alibaba-2020")
    with pytest.raises(UnknownNameError, match="did you mean 'helios'"):
        read_trace(SAMPLES / "helios.csv", format="helius")


def test_a_dash_reads_standard_input(monkeypatch):
    packed = lzma.compress((SAMPLES / "berth.csv").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed)))
    trace = read_trace("-")
    assert (trace.source, len(trace)) == ("<stdin>", 3)


def test_progress_counts_the_bytes_of_the_file():
    seen = []
    read_trace(SAMPLES / "berth.csv", progress=lambda done, total: seen.append((done, total)))
    size = (SAMPLES / "berth.csv").stat().st_size
    assert seen[-1] == (size, size)


def test_estimates_and_preemptible_are_read_and_checked(tmp_path):
    file = tmp_path / "jobs.csv"
    rows = ["job_id,submit_s,num_gpu,duration_s,name,estimate_s,preemptible", "a,0,1,9,x,8,0", "b,1,1,9,,,"]
    file.write_text("\n".join([*rows, "c,2,1,9,,0,1", "d,3,1,9,,5,2"]) + "\n")
    trace = read_trace(file)
    stated = trace.frame.select("job_id", "name", "estimate_s", "preemptible").rows()
    assert stated == [("a", "x", 8.0, 0), ("b", None, None, None)]
    assert set(trace.bad.counts) == {"estimate_s: is not above zero", "preemptible: is neither 0 nor 1"}
