"""The simulating verbs on the command line: what they print, what they write, and how they refuse."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest

from berth.cli.main import main
from berth.cluster.load import load_cluster
from berth.simulate.sweep import run_cell
from berth.simulate.trace_source import TraceSource

KEYS = {
    "policy", "jobs", "finished", "mean_jct_s", "p50_jct_s", "p95_jct_s", "p99_jct_s", "makespan_s",
    "mean_wait_s", "p95_wait_s", "p99_wait_s", "mean_slowdown", "p95_slowdown", "fairness", "goodput",
    "gpu_utilisation", "exposed_comm_gpu_s", "mean_comm_s", "evictions", "lost_gpu_s",
    "tier_share", "cost_usd",
}  # fmt: skip
TRACE = """job_id,submit_s,num_gpu,duration_s
a,0,8,100
b,1,8,50
c,2,4,10
d,3,999,10
"""
CLUSTER = "1x1x8:V100-16"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return str(path)


@pytest.fixture
def berth(monkeypatch, capsys):
    """Runs the command line; returns (exit code, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["berth", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        return done.value.code or 0, captured.out, captured.err

    return run


def test_the_json_holds_every_promised_key_and_the_right_figures(berth, trace):
    code, out, _ = berth(
        "simulate", trace, "--cluster", CLUSTER, "--policy", "fifo", "--policy", "srtf", "--json"
    )
    results = json.loads(out)["results"]
    assert code == 0
    assert [result["policy"] for result in results] == ["fifo", "srtf"]
    assert all(set(result) >= KEYS for result in results)
    fifo = results[0]
    # a: 0-100; b: 100-150; c: 150-160
    assert (fifo["jobs"], fifo["finished"]) == (4, 3)
    assert fifo["mean_jct_s"] == pytest.approx((100 + 149 + 158) / 3)
    assert fifo["makespan_s"] == pytest.approx(160)
    assert fifo["cost_usd"] == pytest.approx(8 * 2.42 * 160 / 3600)


def test_the_table_fits_eighty_columns_marks_the_best_and_says_what_was_assumed(berth, trace):
    code, out, _ = berth("simulate", trace, "--cluster", CLUSTER, "--policy", "fifo", "--policy", "srtf")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "*" in next(line for line in out.splitlines() if line.startswith(" mean JCT"))
    assert "all 4 jobs name no model: each got one from the mix 'balanced', seed 0" in out
    assert "never schedulable, larger than the cluster: 1 job (d)" in " ".join(out.split())


@pytest.mark.parametrize("said", [["--network", "congestion=5"], ["--congestion", "5"]], ids=" ".join)
def test_congestion_can_be_given_either_way(berth, trace, said):
    asked = ["simulate", trace, "--cluster", "2x2x4:V100-16", "--policy", "fifo", "--mix", "vgg16"]
    code, out, _ = berth(*asked, *said)
    assert code == 0
    assert "congestion x5" in " ".join(out.split())


def test_many_policies_become_two_stacked_tables_of_eighty_columns(berth, trace):
    names = [f"--policy={name}" for name in ("fifo", "srtf", "srsf", "preferred", "required", "fit-first")]
    code, out, _ = berth("simulate", trace, "--cluster", CLUSTER, *names)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert sum(line.split()[:1] == ["required"] for line in out.splitlines()) == 2


def test_without_a_policy_several_known_ones_are_played(berth, trace):
    code, out, _ = berth("simulate", trace, "--cluster", CLUSTER, "--json")
    assert code == 0
    assert 3 <= len(json.loads(out)["results"]) <= 5


def test_an_eviction_that_costs_nothing_loses_nothing(berth, trace):
    srtf = ("simulate", trace, "--cluster", CLUSTER, "--policy", "srtf", "--json")
    free, dear = (json.loads(berth(*srtf, "--eviction-cost", cost)[1])["results"][0] for cost in ("0", "5m"))
    assert free["evictions"] == dear["evictions"] == 2
    assert free["lost_gpu_s"] == 0
    assert dear["lost_gpu_s"] == pytest.approx(300 * (8 + 8))


def test_what_ifs_are_said_and_change_the_cluster(berth, trace):
    run = ("simulate", trace, "--cluster", "2x1x4:V100-16", "--policy", "fifo", "--json")
    what_if = ("--add-racks", 2, "--link", "network=2x", "--device", "H100")
    before, after = (json.loads(berth(*run, *more)[1]) for more in ((), what_if))
    assert sum(note.startswith("what if:") for note in after["notes"]) == 3
    assert any(note.startswith("durations: taken on V100-16;") for note in after["notes"])
    assert after["results"][0]["makespan_s"] < before["results"][0]["makespan_s"]


MIXED = """machines:
- {count: 2, devices: {H100: 4}}
- {count: 2, devices: {V100: 8}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["simulate", "compare", "sweep", "explain"])
def test_the_reference_device_is_printed_and_in_the_json(berth, trace, tmp_path, verb):
    cluster = tmp_path / "mixed.yaml"
    cluster.write_text(MIXED)
    source = {"sweep": (), "explain": (trace, "a")}.get(verb, (trace,))
    two = ("--policy", "fifo") if verb == "explain" else ("--policy", "fifo", "--policy", "srtf")
    grid = ("--load", 0.5, "--congestion", 1, "--jobs", 4, "--seeds", 1) if verb == "sweep" else ()
    run = (verb, *source, "--cluster", cluster, *two, *grid)
    for option, name in (((), "V100-16"), (("--reference-device", "h100"), "H100")):
        code, out, _ = berth(*run, *option)
        assert code == 0
        assert f"durations: taken on {name};" in " ".join(out.split())
        assert json.loads(berth(*run, *option, "--json")[1])["reference_device"] == name
    for wrong, said in (("H1000", "did you mean"), ("cpu-core", "is not a GPU")):
        code, _, error = berth(*run, "--reference-device", wrong)
        assert code == 2
        assert "--reference-device" in error
        assert said in error


def test_the_report_names_the_reference_device(berth, trace, tmp_path):
    page = tmp_path / "report.html"
    run = ("simulate", trace, "--cluster", CLUSTER, "--policy", "fifo", "--html", page)
    assert berth(*run, "--reference-device", "T4")[0] == 0
    assert "<span>durations on</span> T4" in page.read_text()


def test_a_device_column_that_no_catalogue_knows_is_refused(berth, tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s,device\na,0,1,10,V100\nb,0,1,10,Voodoo2\n")
    code, _, error = berth("simulate", path, "--cluster", CLUSTER, "--policy", "fifo")
    assert code == 2
    assert error.startswith(f"error: {path}:3: no device type is called 'Voodoo2'\n")


@pytest.mark.parametrize(("column", "value"), [("model", "vgg17"), ("device", "V10O")])
def test_names_of_a_trace_that_nothing_has_are_reported_with_their_line(berth, tmp_path, column, value):
    path = tmp_path / "jobs.csv"
    path.write_text(
        f"job_id,submit_s,num_gpu,duration_s,{column}\na,5,2,10,\nb,9,2,10,{value}\nc,0,2,10,{value}\n"
    )
    code, _, error = berth("simulate", path, "--cluster", CLUSTER, "--policy", "fifo")
    assert code == 2
    assert error.startswith(f"error: {path}:3: no {column}")
    assert "did you mean" in error or column == "device"
    code, out, _ = berth("trace", "info", path, "--json")
    assert code == 0
    assert f"{path}:3: no {column} is called '{value}'" in json.loads(out)["notes"][-1]


@pytest.mark.parametrize("value", [0, 0.5, -1, "nan", "inf"])
@pytest.mark.parametrize("verb", ["simulate", "sweep", "network"])
def test_a_congestion_below_one_is_refused_by_one_rule(berth, trace, verb, value):
    arguments = {
        "simulate": ("simulate", trace, "--cluster", CLUSTER, "--policy", "fifo"),
        "sweep": ("sweep", "--cluster", CLUSTER, "--policy", "fifo", "--policy", "srtf"),
        "network": ("network", "vgg16", "--gpus", 8, "--cluster", CLUSTER),
    }[verb]
    code, _, error = berth(*arguments, f"--congestion={value}")
    assert code == 2
    assert "congestion" in error
    assert "1 or more" in error


@pytest.mark.parametrize(
    ("options", "jobs", "span_s"),
    [("jobs=50,arrivals=at-once", 50, 0), ("arrivals=at-once", 1000, 0), ("jobs=20,span=1d", 20, 86_400)],
)
def test_a_trace_is_generated_inline_at_once_or_over_a_span(options, jobs, span_s):
    trace = TraceSource(f"generate:{options}").trace(load_cluster("4x4x8:H100"))
    assert (len(trace), trace.span_s) == (jobs, span_s)


def test_users_of_an_inline_trace_change_nothing_else_of_it():
    cluster = load_cluster("4x4x8:H100")
    plain, shared = (TraceSource(f"generate:jobs=200{users}").trace(cluster) for users in ("", ",users=3"))
    assert set(shared.frame["user"].cast(str)) == {"user1", "user2", "user3"}
    assert shared.frame.drop("user").equals(plain.frame.drop("user", strict=False))


@pytest.mark.slow
def test_events_go_into_one_file_per_policy_and_are_not_overwritten(berth, trace, tmp_path):
    run = ("simulate", trace, "--cluster", CLUSTER, "--policy", "fifo", "--log", tmp_path / "events.parquet")
    assert berth(*run)[0] == 0
    assert (tmp_path / "events.parquet").exists()
    code, _, error = berth(*run)
    assert code == 2
    assert "exists already" in error
    assert berth(*run, "--force")[0] == 0
    assert berth(*run, "--policy", "srtf")[0] == 0
    assert {path.name for path in tmp_path.glob("events*")} == {
        "events.parquet", "events.fifo.parquet", "events.srtf.parquet",
    }  # fmt: skip


def test_an_audited_run_says_so(berth, trace):
    code, out, _ = berth("simulate", trace, "--cluster", CLUSTER, "--policy", "fifo", "--audit")
    assert code == 0
    assert "counted again: no violations" in " ".join(out.split())


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["simulate", "compare", "sweep", "explain"])
def test_the_first_run_says_that_kernels_are_compiled(berth, trace, tmp_path, monkeypatch, verb):
    monkeypatch.setattr("berth.native.cache.cache_folder", lambda: tmp_path / "empty")
    monkeypatch.setattr("berth.native.cache._locks", {})
    words = {
        "simulate": [trace, "--policy=fifo"],
        "compare": [trace, "--policy=fifo", "--policy=srtf"],
        "sweep": ["--policy=fifo", "--policy=srtf", "--load=1", "--congestion=1", "--jobs=5", "--workers=1"],
        "explain": [trace, "b"],
    }
    code, _, error = berth(verb, *words[verb], "--cluster", CLUSTER)
    assert (code, error) == (0, "compiling kernels (once, up to half a minute)\n")


@pytest.mark.parametrize("verb", ["simulate", pytest.param("plan", marks=pytest.mark.slow)])
def test_compiled_code_that_cannot_be_kept_is_reported_once(berth, trace, tmp_path, monkeypatch, verb):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("berth.native.cache._locks", {})
    monkeypatch.setattr("berth.native.cache.write_failures", [])
    monkeypatch.setattr("berth.cli.progress._noted", [])
    words = {
        "simulate": [trace, "--cluster", CLUSTER, "--policy=fifo", "--policy=srtf"],
        "plan": ["ctrdnn", "--cluster=cloud-mix", "--throughput=100k/s"],
    }
    code, _, error = berth(verb, *words[verb])
    assert (code, error.splitlines()) == (
        0,
        [
            "compiling kernels (up to half a minute)",
            f"note: compiled code can't be kept in {tmp_path}/file/berth/compiled: Not a directory; "
            "set NUMBA_CACHE_DIR to a folder that can be written",
        ],
    )


@pytest.mark.parametrize("kept", [True, False])
def test_an_interrupted_sweep_says_what_is_kept(berth, tmp_path, monkeypatch, kept):
    def interrupted(cells, workers):
        yield from map(run_cell, cells[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr("berth.simulate.sweep._results", interrupted)
    monkeypatch.setattr("berth.cli.scenario.warm_up", lambda policies: [])
    words = ["--policy=fifo", "--policy=srtf", "--load=0.7,1", "--congestion=1", "--jobs=5", "--seeds=2"]
    words += [f"--out={tmp_path / 'out'}"] if kept else []
    code, _, error = berth("sweep", "--cluster", CLUSTER, *words)
    what = "3 of 8 cells are kept: the same command goes on" if kept else "without --out no cell is kept"
    assert (code, error) == (130, f"stopped; {what}\n")
    if kept:
        monkeypatch.setattr("berth.simulate.sweep._results", lambda cells, workers: map(run_cell, cells))
        assert berth("sweep", "--cluster", CLUSTER, *words)[0] == 0
        assert len((tmp_path / "out" / "cells.jsonl").read_text().splitlines()) == 8


def test_an_interrupted_simulation_says_so(berth, trace, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("berth.cli.scenario.warm_up", lambda policies: [])
    monkeypatch.setattr("berth.simulate.run.simulate", interrupted)
    code, _, error = berth("simulate", trace, "--cluster", CLUSTER, "--policy=fifo")
    assert (code, error) == (130, "stopped\n")


MISTAKES = [
    (("simulate", "TRACE", "--policy", "fifoo"), "did you mean 'fifo'?"),
    (("simulate", "no-such-file.csv"), "no-such-file.csv"),
    (("simulate", "TRACE", "--cluster", "0x8"), "holds no devices"),
    (("simulate", "TRACE", "--cluster", "4x8:H1000"), "did you mean"),
    (("simulate", "TRACE", "--link", "netwrk=2x"), "did you mean 'network'?"),
    (("simulate", "TRACE", "--link", "network=fast"), "no factor above zero"),
    (("simulate", "TRACE", "--link", "network=0x"), "no factor above zero"),
    (("simulate", "TRACE", "--device", "H1000"), "did you mean"),
    (("simulate", "TRACE", "--add-racks", "0"), "1 or more"),
    (("simulate", "TRACE", "--cluster", "64", "--add-racks", "1"), "has no racks"),
    (("simulate", "TRACE", "--eviction-cost", "60"), "has no unit"),
    (("simulate", "TRACE", "--eviction-cost", "-60s"), "negative"),
    (("simulate", "TRACE", "--checkpoint-every", "-1m"), "negative"),
    (("simulate", "TRACE", "--network", "statc"), "did you mean 'static'?"),
    (("simulate", "TRACE", "--congestion", "0"), "--congestion is 0"),
    (("simulate", "TRACE", "--doubt", "150%"), "below 100%"),
    (("simulate", "TRACE", "--seed", "-1"), "greater than or equal to 0"),
    (("simulate", "TRACE", "--mix", "vgg99"), "mixes:"),
    (("simulate", "TRACE", "--faults", "mtbf=0s"), "above zero"),
    (("simulate", "TRACE", "--log", "/no/such/folder/x.parquet"), "no such folder"),
    (("simulate", "TRACE", "--html", "/no/such/folder/x.html"), "no such folder"),
    (("simulate", "generate:jobs=many"), "not a number"),
    (("simulate", "generate:arrivals=at-once,load=0.5"), "leave out span and load"),
    (("simulate", "generate:jobs=5,load=0.5,span=1d"), "leave out one"),
    (("simulate", "generate:span=soon"), "generate: span"),
    (("simulate", "generate:jobs=nan"), "not a whole number"),
    (("simulate", "generate:jobs=2.5"), "not a whole number"),
    (("simulate", "generate:load=nan"), "load"),
    (("simulate", "generate:lod=0.5"), "did you mean 'load'?"),
    (("simulate", "generate:load="), "has no value"),
    (("simulate", "TRACE", "--cluster", "1x1x2"), "requests 4 GPUs: none can ever start"),
    (("compare", "TRACE", "--cluster", "1x1x2"), "requests 4 GPUs: none can ever start"),
    (("compare", "TRACE", "--policy", "fifo"), "needs two policies"),
    (
        ("compare", "TRACE", "--policy", "fifo", "--policy", "srtf", "--seeds", "0"),
        "greater than or equal to 1",
    ),
    (("explain", "TRACE", "z"), "no job is called 'z'"),
    (("explain", "TRACE", "#4"), "no job is called '#4'\n  jobs by position are #0 to #3"),
    (("explain", "TRACE", "d"), "it can never start"),
    (("policies", "fifoo"), "did you mean 'fifo'?"),
    (("sweep", "--policy", "fifo"), "compares policies"),
    (("sweep", "--policy", "fifo", "--policy", "srtf", "--load", "high"), "above zero"),
    (("sweep", "--policy", "fifo", "--policy", "srtf", "--metric", "jct"), "metric"),
    (("sweep", "--policy", "fifo", "--policy", "srtf", "--out", "/dev/null/x"), "is a file, not a folder"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=lambda value: " ".join(value).replace("/", "_")[:60]
)
def test_a_mistake_is_one_message_and_exit_code_two(berth, trace, arguments, message):
    words = [trace if word == "TRACE" else word for word in arguments]
    if words[0] != "policies" and "--cluster" not in words:
        words += ["--cluster", "2x2x8:V100-16"]
    code, out, error = berth(*words)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert message in error


@pytest.mark.slow
def test_compare_says_plainly_that_there_is_no_difference(berth, tmp_path):
    path = tmp_path / "easy.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s,model\na,0,1,10,resnet50\nb,100,1,10,resnet50\n")
    run = ("compare", path, "--cluster", CLUSTER, "--policy", "fifo", "--policy", "srtf")
    code, out, _ = berth(*run)
    assert code == 0
    assert "No difference between srtf and fifo is shown." in out
    document = json.loads(berth(*run, "--json")[1])
    assert document["method"] == "resampled"
    assert {one["verdict"] for one in document["differences"]} == {"the same"}


def test_explain_shows_the_waits_and_the_places(berth, trace):
    code, out, _ = berth("explain", trace, "b", "--cluster", CLUSTER, "--policy", "fifo")
    assert code == 0
    assert "waits 1m39s" in out
    assert "fewer than 8 devices are free" in out
    assert "starts on r0-m0 (8)" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("compare", "--policy=fifo", "--policy=srtf"), ("explain", "b", "--policy=fifo")],
    ids=lambda words: words[0],
)
def test_compare_and_explain_name_the_jobs_that_can_never_start(berth, trace, words):
    verb, *rest = words
    code, out, _ = berth(verb, trace, *rest, "--cluster", CLUSTER)
    assert code == 0
    assert "never schedulable, larger than the cluster: 1 job (d)" in " ".join(out.split())


def test_explain_finds_the_job_that_waited_longest(berth, trace):
    _, out, _ = berth("explain", trace, "longest-wait", "--cluster", CLUSTER, "--policy", "fifo", "--json")
    assert json.loads(out)["job"] == "c"  # 2-150; b: 1-100


def test_explain_says_that_the_model_was_drawn(berth, trace):
    _, out, _ = berth("explain", trace, "b", "--cluster", CLUSTER, "--policy", "fifo")
    assert "all 4 jobs name no model: each got one from the mix 'balanced', seed 0" in out


def test_policies_lists_all_and_shows_one(berth):
    code, out, _ = berth("policies", "--json")
    assert code == 0
    assert {"fifo", "srtf"} <= {one["name"] for one in json.loads(out)["policies"]}
    code, out, _ = berth("policies", "fifo")
    assert code == 0
    assert out.startswith("fifo\n")


def test_a_sweep_says_that_large_jobs_are_cut_and_writes_its_page(berth, tmp_path):
    page = tmp_path / "sweep.html"
    run = ("sweep", "--policy=fifo", "--policy=srtf", "--load=0.9", "--congestion=1", "--jobs=5", "--seeds=1")
    code, out, _ = berth(
        *run, "--sizes=powers-of-two", "--workers=1", "--cluster", "1x1x2:H100", "--html", page
    )
    assert code == 0
    assert "note: jobs that ask for more are cut to 2 GPUs" in out
    assert f"wrote {page}" in out
    assert "mean JCT: srtf / fifo, mix balanced" in page.read_text()
    code, _, err = berth(*run, "--cluster", "1x1x2:H100", "--html", page)
    assert (code, "exists already" in err) == (2, True)


@pytest.mark.slow
def test_a_sweep_writes_its_cells_and_maps_and_skips_what_is_there(berth, tmp_path):
    run = (
        "sweep", "--cluster", "2x2x4:H100", "--policy", "preferred", "--policy", "required", "--load", "0.9",
        "--congestion", "1,20", "--jobs", "30", "--seeds", "2", "--workers", "1", "--out", tmp_path,
    )  # fmt: skip
    code, out, _ = berth(*run)
    assert code == 0
    assert "congestion x20" in out
    cells = (tmp_path / "cells.jsonl").read_text()
    assert len(cells.splitlines()) == 8
    assert berth(*run)[:2] == (0, out)
    assert (tmp_path / "cells.jsonl").read_text() == cells
    assert "congestion x20" in (tmp_path / "sweep.html").read_text()
    frame = pl.read_parquet(tmp_path / "runs.parquet")
    results = [json.loads(line)["result"] for line in cells.splitlines()]
    assert sorted(frame["mean_jct_s"]) == sorted(one["mean_jct_s"] for one in results)


def test_any_trace_can_be_submitted_at_once(berth, tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s\na,0,8,60\nb,1000,8,60\nc,5000,8,60\n")
    run = ("simulate", path, "--cluster", "1x1x8:H100", "--policy", "fifo", "--json")
    (spread,), (batch,) = (json.loads(berth(*run, *more)[1])["results"] for more in ((), ("--at-once",)))
    assert (spread["makespan_s"], spread["mean_jct_s"]) == (5060.0, 60.0)
    assert (batch["makespan_s"], batch["mean_jct_s"]) == (180.0, 120.0)


@pytest.mark.slow
def test_a_comparison_writes_parquet_and_a_page(berth, tmp_path):
    files = [tmp_path / name for name in ("runs.parquet", "page.html")]
    run = (
        "compare",
        "generate:jobs=60,load=1.5,durations=exponential:1h,sizes=powers-of-two",
        "--cluster",
        "1x2x4:H100",
        "--seeds",
        "6",
    )
    run = (*run, "--policy", "fifo", "--policy", "srtf", "--parquet", files[0], "--html", files[1])
    code, out, _ = berth(*run)
    assert code == 0
    assert [f"wrote {file}" in out for file in files] == [True, True]
    assert pl.read_parquet(files[0]).height == 12
    page = files[1].read_text()
    assert "srtf against fifo: mean JCT (" in page
    assert "fairness (Jain)" in page
    assert berth(*run)[0] == 2, "existing files are not overwritten"


@pytest.mark.slow
def test_jobs_that_never_finish_are_named_and_the_exit_code_says_so(berth, tmp_path):
    path = tmp_path / "turns.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s\n" + "".join(f"j{n},0,8,600\n" for n in range(4)))
    turns = "gandiva:slice=60s,eviction=60s"
    arguments = [path, "--cluster", CLUSTER, "--network", "off", "--policy"]
    code, out, _ = berth("simulate", *arguments, turns, "--policy", "fifo", "--audit", "--json")
    stuck, fine = json.loads(out)["results"]
    assert code == 1
    assert (stuck["finished"], fine["finished"]) == (0, 4)
    assert (stuck["unfinished"], fine["unfinished"]) == ([f"j{n}" for n in range(4)], [])
    assert any("4 jobs never finish" in note for note in json.loads(out)["notes"])
    code, out, _ = berth("simulate", *arguments, turns, "--policy", "fifo", "--html", tmp_path / "r.html")
    assert code == 1
    assert (tmp_path / "r.html").stat().st_size > 0
    assert "no progress" in " ".join(out.split())
    assert "*0" not in out  # a policy under which nothing finishes is the best in nothing
    code, _, err = berth("compare", *arguments, turns, "--policy", "fifo")
    assert code == 2
    assert "4 jobs never finish" in err
    code, _, err = berth("explain", path, "j0", "--cluster", CLUSTER, "--network", "off", "--policy", turns)
    assert code == 2
    assert "no progress is made" in err


@pytest.mark.slow
def test_quotas_hold_jobs_back_and_are_refused_in_one_message(berth, tmp_path):
    path = tmp_path / "vcs.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s,vc\na,0,4,100,x\nb,0,4,100,x\nc,0,8,100,x\n")
    arguments = ["simulate", path, "--cluster", CLUSTER, "--network", "off", "--policy", "fifo", "--json"]
    code, out, _ = berth(*arguments, "--quota", "x=4", "--audit")
    assert code == 0
    (result,) = json.loads(out)["results"]
    assert (result["makespan_s"], result["never_schedulable"]) == (200.0, 1)
    assert any("larger than the quota: 1 job (c)" in note for note in json.loads(out)["notes"])
    both = ["compare", *arguments[1:], "--policy", "srtf", "--quota", "x=4"]
    assert (
        "never schedulable, larger than the quota: 1 job; counted nowhere"
        in json.loads(berth(*both)[1])["notes"]
    )
    (tmp_path / "quotas.yaml").write_text("quotas:\n  x: 0\n")
    for wrong in (["--quota", "x"], ["--quota", "y=4"], ["--quotas", tmp_path / "quotas.yaml"]):
        code, _, err = berth(*arguments, *wrong)
        assert code == 2
        assert err.startswith("error: ")


def write_offers(path, **types):
    """A trace of jobs with an alternative of one step time for each group of device types; a group is one shape."""
    lines = []
    for job, groups in types.items():
        alternatives = [
            {
                "parts": [{"name": kind, "devices": {kind: count}} for kind, count in group.items()],
                "step": "1s",
            }
            for group in groups
        ]
        written = {"job_id": job, "submit_s": len(lines), "work": "100 steps", "alternatives": alternatives}
        lines.append(json.dumps(written) + "\n")
    path.write_text("".join(lines))
    return path


def test_device_types_that_the_cluster_lacks_are_named_in_the_notes(berth, tmp_path):
    path = write_offers(
        tmp_path / "jobs.jsonl",
        a=[{"V100-16": 4}, {"V100-I6": 8}],
        b=[{"V100-I6": 2}, {"V100-16": 1, "A100-4O": 1}],
        c=[{"V100-16": 99}, {"V100-I6": 2}],
    )
    arguments = (path, "--cluster", CLUSTER, "--network", "off", "--policy", "fifo")
    code, out, _ = berth("simulate", *arguments, "--json")
    assert code == 0
    document = json.loads(out)
    unfit = [note for note in document["notes"] if "left out" in note or "never" in note]
    assert f"{path}:1: no device type is called 'V100-I6', did you mean 'V100-16'?" in document["notes"]
    assert unfit == [
        "4 alternatives are left out: V100-I6, A100-4O are not in the cluster",
        "never schedulable, all alternatives ask for devices that are not in the cluster: 1 job (b); "
        "counted nowhere else",
        "never schedulable, larger than the cluster: 1 job (c); counted nowhere else",
    ]
    assert (document["results"][0]["finished"], document["results"][0]["never_schedulable"]) == (1, 2)
    code, _, err = berth("explain", path, "b", *arguments[1:])
    assert code == 2
    assert "all its alternatives ask for devices that the cluster lacks: A100-4O, V100-I6" in " ".join(
        err.split()
    )
    code, _, err = berth("explain", path, "c", *arguments[1:])
    assert code == 2
    assert "job c can never start: none of its alternatives fits the cluster" in err


@pytest.fixture
def two_types(tmp_path):
    """A cluster of two types, and a trace of two jobs with alternatives."""
    cluster = tmp_path / "two.yaml"
    cluster.write_text("racks:\n  - machines: [{count: 2, devices: {V100-16: 4}}, {devices: {T4: 4}}]\n")
    offers = write_offers(tmp_path / "jobs.jsonl", a=[{"V100-16": 4}, {"T4": 4}], b=[{"V100-16": 2}])
    return cluster, offers


def notes_of(berth, *arguments) -> list[str]:
    code, out, err = berth(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)["notes"]


STATED = "do not apply to 2 jobs with alternatives: their work and step times are stated"


def test_options_that_change_no_job_with_alternatives_are_named_with_how_many_there_are(berth, two_types):
    cluster, offers = two_types
    options = ("--cluster", cluster, "--policy", "fifo", "--estimates", "none", "--congestion", "5")
    expected = [f"--estimates none and --congestion 5 {STATED}"]
    assert notes_of(berth, "simulate", offers, *options) == expected
    assert notes_of(berth, "explain", offers, "a", *options) == expected
    linked = notes_of(berth, "simulate", offers, *options[:4], "--link", "network=2x")
    assert [note for note in linked if "--link" in note] == [f"--link {STATED.replace('do', 'does', 1)}"]


def test_notes_about_durations_and_models_count_jobs_without_alternatives_only(berth, two_types):
    cluster, offers = two_types
    with offers.open("a") as lines:
        lines.write(json.dumps({"job_id": "c", "submit_s": 9, "num_gpu": 2, "duration_s": 50}) + "\n")
    options = ("--cluster", cluster, "--policy", "fifo", "--estimates", "none")
    assert notes_of(berth, "simulate", offers, *options) == [
        "durations of 1 job without alternatives: taken on V100-16; "
        "on other devices they follow modelled iteration times",
        f"--estimates none {STATED.replace('do', 'does', 1)}",
        "1 of the 1 job without alternatives names no model: it got one from the mix 'balanced', seed 0",
        "schedulers knew no durations of 1 job without alternatives",
    ]


def test_without_a_network_a_step_takes_as_long_everywhere_as_at_the_nearest_place(berth, tmp_path):
    """Three GPUs of each machine are busy: the job gets one of each."""
    jobs = [{"job_id": f"g{row}", "submit_s": 0, "num_gpu": 3, "duration_s": 1000} for row in range(2)]
    parts = [{"name": "all", "devices": {"V100-16": 2}}]
    step = {"machine": "1s", "rack": "5s", "network": "5s"}
    offer = {"work": "100 steps", "alternatives": [{"parts": parts, "step": step}]}
    jobs.append({"job_id": "spread", "submit_s": 1, **offer})
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    ran = {}
    for network in ("static", "off"):
        options = (
            "--cluster",
            "1x2x4:V100-16",
            "--policy",
            "fit-first",
            "--network",
            network,
            "--mix",
            "resnet50",
        )
        code, out, err = berth("explain", path, "spread", *options, "--json")
        assert code == 0, err
        ran[network] = json.loads(out)["chapters"][-1]["seconds"]
    assert ran == pytest.approx({"static": 500.0, "off": 100.0})


def test_a_trace_of_absent_device_types_only_is_refused_for_that_reason(berth, tmp_path):
    path = write_offers(tmp_path / "jobs.jsonl", a=[{"V100-I6": 4}], b=[{"V100-I6": 2}])
    code, _, err = berth("simulate", path, "--cluster", CLUSTER, "--policy", "fifo")
    assert code == 2
    assert err.startswith(f"error: {path}: no job can ever start: V100-I6 is not in the cluster\n")
    assert f"{path}:1: no device type is called 'V100-I6', did you mean 'V100-16'?" in err
    path = write_offers(tmp_path / "near.jsonl", a=[{"G100": 4}], b=[{"H100": 1}])
    code, out, _ = berth("simulate", path, "--cluster", "1x1x8:H100", "--policy", "fifo", "--json")
    assert code == 0
    assert f"{path}:1: no device type is called 'G100', did you mean 'H100'?" in json.loads(out)["notes"]
    path = write_offers(tmp_path / "others.jsonl", a=[{"T4": 4}])
    code, _, err = berth("simulate", path, "--cluster", CLUSTER, "--policy", "fifo")
    assert code == 2
    assert f"{CLUSTER} has V100-16" in err


def test_a_trace_of_alternatives_that_are_all_too_large_is_refused(berth, tmp_path):
    path = write_offers(tmp_path / "jobs.jsonl", a=[{"V100-16": 99}], b=[{"V100-16": 98}, {"V100-16": 97}])
    code, _, err = berth("simulate", path, "--cluster", CLUSTER, "--policy", "fifo")
    assert code == 2
    assert err.startswith(f"error: {path}: none of its jobs fits the cluster in any alternative\n")


def test_parts_on_cores_and_a_deadline_work_on_the_command_line(berth, tmp_path):
    """Two jobs of 40 s, one with a deadline of 30 s; both need GPUs and cores."""
    cluster = tmp_path / "mix.yaml"
    cluster.write_text("racks:\n  - machines: [{count: 2, devices: {V100-16: 4, cpu-core: 16}}]\n")
    parts = [{"name": "dense", "devices": {"V100-16": 4}}, {"name": "rows", "devices": {"cpu-core": 12}}]
    jobs = [
        {
            "job_id": job,
            "submit_s": 0,
            "work": "1000 steps",
            "alternatives": [{"parts": parts, "step": "40ms"}],
        }
        | ({"deadline": "30s"} if job == "late" else {})
        for job in ("late", "other")
    ]
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    arguments = (path, "--cluster", cluster, "--network", "off", "--policy", "fifo")
    code, out, err = berth("simulate", *arguments, "--json")
    assert code == 0, err
    result = json.loads(out)["results"][0]
    assert (result["finished"], result["mean_jct_s"], result["deadlines_missed"]) == (2, 40.0, 1)
    code, out, err = berth("simulate", *arguments)
    assert code == 0, err
    assert "2 jobs on mix (8 GPUs)" in out


@pytest.mark.parametrize("shapes", ["plan", "mixed", "data-parallel"])
def test_jobs_with_alternatives_are_generated_for_a_cluster(berth, shapes):
    source = f"generate:shapes={shapes},jobs=20"
    code, out, err = berth("simulate", source, "--cluster", "cloud-mix", "--policy", "fifo", "--json")
    assert code == 0, err
    assert json.loads(out)["results"][0]["finished"] == 20
