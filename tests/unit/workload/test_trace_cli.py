"""`berth trace info` and `berth trace convert`, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from berth.cli.main import main
from berth.workload import read_trace

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "traces"


@pytest.fixture
def berth(monkeypatch, capsys):
    """Runs the command line; gives exit code, standard output and standard error."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["berth", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_info_fits_eighty_columns_and_shows_every_part(berth):
    code, out, _ = berth("trace", "info", SAMPLES / "philly.csv")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines()[1:])
    for part in (
        "3 jobs",
        "2 virtual clusters",
        "Distribution",
        "Jobs by size",
        "Jobs by duration",
        "Load",
        "note: ",
    ):
        assert part in out


def test_control_characters_of_a_trace_are_printed_escaped(berth, tmp_path):
    path = tmp_path / "jobs.csv"
    ids = ("a\x1b]0;owned\x07", "b\x9b31m")
    rows = "".join(f"{name},{at},1,60,\x1b[31mx\n" for at, name in enumerate(ids))
    path.write_text("job_id,submit_s,num_gpu,duration_s,model\n" + rows)
    for line in (
        ("trace", "info", path),
        ("explain", path, "#0", "--cluster", "1x1x2", "--network", "off"),
        ("simulate", path, "--cluster", "1x1x2", "--policy", "fifo"),
    ):
        code, out, err = berth(*line)
        assert "\\x1b" in out + err, line
        assert [one for one in out + err if not one.isprintable() and one != "\n"] == [], line
        assert code == (2 if line[0] == "simulate" else 0), err


def test_info_lists_the_bad_rows_with_their_position(berth):
    _, out, _ = berth("trace", "info", SAMPLES / "openb.csv")
    assert "2 of 5 rows left out" in out
    assert f"{SAMPLES / 'openb.csv'}:4:18: num_gpu '0': asks for no GPU" in out


def test_info_as_json_has_the_same_figures(berth):
    _, out, _ = berth("trace", "info", SAMPLES / "berth.csv", "--json", "--cluster", "2x8")
    data = json.loads(out)
    assert (data["jobs"], data["users"], data["format"]) == (3, 2, "berth")
    assert data["gpu_hours"] == pytest.approx((120 + 8 * 3600.5 + 120) / 3600)
    assert data["cluster"]["gpus"] == 16
    assert data["cluster"]["load"] == pytest.approx(data["gpu_hours"] * 3600 / 30.25 / 16)


def test_info_counts_jobs_that_are_larger_than_the_cluster(berth):
    _, out, _ = berth("trace", "info", SAMPLES / "berth.csv", "--cluster", "1x4")
    assert "larger than 1x4: 1 job" in out


def test_strict_refuses_with_one_message_and_exit_code_2(berth):
    code, out, err = berth("trace", "info", SAMPLES / "helios.csv", "--strict")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {SAMPLES / 'helios.csv'}:3:17: gpu_num '0': asks for no GPU")


def test_convert_writes_the_slice_and_says_what_it_did(berth, tmp_path):
    out_file = tmp_path / "out.csv.xz"
    code, out, _ = berth(
        "trace", "convert", SAMPLES / "philly.csv", out_file, "--since", "2017-10-03T08:00:05", "--renumber"
    )
    assert code == 0
    assert f"wrote {out_file}: 2 jobs" in out.replace("\n", "")
    assert "selected 2 of 3 jobs: submitted since" in out
    assert [row[:4] for row in read_trace(out_file).frame.rows()] == [
        ("0", 0.0, 2, 500.0),
        ("1", 3590.0, 8, 90.0),
    ]


def test_convert_overwrites_only_when_forced(berth, tmp_path):
    out_file = tmp_path / "out.csv"
    out_file.write_text("precious")
    code, _, err = berth("trace", "convert", SAMPLES / "berth.csv", out_file)
    assert code == 2
    assert "exists already" in err
    assert out_file.read_text() == "precious"
    assert berth("trace", "convert", SAMPLES / "berth.csv", out_file, "--force")[0] == 0
    assert len(read_trace(out_file)) == 3


def test_convert_as_json_names_what_was_written(berth, tmp_path):
    _, out, _ = berth("trace", "convert", SAMPLES / "openb.csv", tmp_path / "out.csv", "--json", "--limit", 1)
    data = json.loads(out)
    assert (data["jobs"], data["rows"], data["bad"]["total"]) == (1, 5, 2)
    assert data["written"] == str(tmp_path / "out.csv")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "rows", "jobs"),
    [
        ("philly/philly.csv.xz", 82_247, 82_247),
        ("philly/philly480.csv.xz", 480, 480),
        ("philly/philly1w.csv.xz", 12_751, 12_751),
        ("muri/trace1.csv", 1_494, 1_494),
        ("tiresias/60_job.csv", 60, 60),
        ("alibaba-gpu-2023/openb_pod_list_default.csv", 8_152, 6_203),
    ],
)
def test_the_public_traces_have_as_many_rows_as_their_authors_say(shared_traces, file, rows, jobs):
    trace = read_trace(shared_traces / file)
    assert (trace.rows, len(trace), trace.bad.total) == (rows, jobs, rows - jobs)


@pytest.mark.slow
@pytest.mark.shared
def test_known_slices_of_philly_come_out_of_the_whole(shared_traces, berth, tmp_path):
    whole, large = shared_traces / "philly/philly.csv.xz", ["--sizes", "powers-of-two", "--max-gpus", "64"]
    berth("trace", "convert", whole, tmp_path / "all.csv", "--since", "2017-10-01", *large)
    assert len(read_trace(tmp_path / "all.csv")) == 76_573
    week = ["--since", "2017-10-09", "--until", "2017-10-16", "--renumber"]
    berth("trace", "convert", whole, tmp_path / "week.csv", *week, *large)
    known = read_trace(shared_traces / "philly/philly1w.csv.xz")
    week_jobs = read_trace(tmp_path / "week.csv")
    assert week_jobs.submit_s.tolist() == known.submit_s.tolist()
    # Jobs of the same second stand in another order there.
    columns = ["submit_s", "num_gpu", "duration_s", "vc"]
    assert week_jobs.frame.select(columns).sort(columns).equals(known.frame.select(columns).sort(columns))


def job(name, submit_s, *steps):
    """A line of a job with an alternative for each step time."""
    alternatives = [
        {"parts": [{"name": "all", "devices": {"V100-16": at + 1}}], "step": step}
        for at, step in enumerate(steps)
    ]
    written = {"job_id": name, "submit_s": submit_s, "work": "1e6 examples", "batch": 128, "deadline": "6h"}
    return json.dumps(written | {"alternatives": alternatives})


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.jsonl.zst"])
def test_convert_writes_jobs_with_alternatives_as_json_lines(berth, tmp_path, name):
    plain = '{"job_id": "p", "submit_s": 3, "num_gpu": 2, "duration_s": 60.5, "user": "ada"}'
    path, out = tmp_path / "jobs.jsonl", tmp_path / name
    written = [job("b", 0, "40ms", {"near": "21ms", "network": "0.03s"}), plain, job("a", 7, "0.1s")]
    path.write_text("\n".join(written) + "\n")
    code, said, _ = berth("trace", "convert", path, out)
    assert code == 0
    assert "3 jobs" in said
    before, after = read_trace(path), read_trace(out, strict=True)
    assert len(before.offers) == 2
    assert after.offers == before.offers
    assert after.frame.equals(before.frame)


def test_renumbered_jobs_keep_their_alternatives(berth, tmp_path):
    path, out = tmp_path / "jobs.jsonl", tmp_path / "out.jsonl"
    path.write_text("\n".join([job("1", 0, "40ms"), job("0", 7, "0.1s", "0.06s")]) + "\n")
    assert berth("trace", "convert", path, out, "--renumber")[0] == 0
    before, after = read_trace(path), read_trace(out, strict=True)
    assert after.job_ids == ["0", "1"]
    assert [after.offers[name] for name in ("0", "1")] == [before.offers[name] for name in ("1", "0")]


def test_convert_of_alternatives_to_csv_is_refused_and_names_the_suffixes(berth, tmp_path):
    path, out = tmp_path / "jobs.jsonl", tmp_path / "out.csv"
    path.write_text(job("b", 0, "40ms") + "\n")
    code, _, err = berth("trace", "convert", path, out)
    assert code == 2
    assert "end the name in .jsonl" in err
    assert not out.exists()


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_generate_writes_json_lines_where_the_name_says_so(berth, tmp_path, name):
    asked = ("--jobs", "20", "--cluster", "2x2x8", "--seed", "3")
    for out in (tmp_path / name, tmp_path / "out.csv"):
        assert berth("trace", "generate", out, *asked)[0] == 0
    lines, plain = read_trace(tmp_path / name, strict=True), read_trace(tmp_path / "out.csv", strict=True)
    assert (lines.format, plain.format) == ("jsonl", "berth")
    assert lines.frame.equals(plain.frame)


@pytest.mark.parametrize("verb", ["generate", "convert"])
def test_a_suffix_that_names_no_format_is_refused_with_all_that_do(berth, tmp_path, verb):
    path, out = tmp_path / "jobs.jsonl", tmp_path / "out.json"
    path.write_text('{"job_id": "p", "submit_s": 3, "num_gpu": 2, "duration_s": 60.5}\n')
    code, _, err = berth("trace", verb, *([path] if verb == "convert" else []), out)
    assert code == 2
    assert f"{out}: can't choose a format for 'out.json'" in err
    assert "end the name in .csv, .csv.gz, .csv.xz, .csv.zst, .jsonl, .jsonl.gz" in " ".join(err.split())
    assert not out.exists()
