"""`berth plan` on the command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import functools
import json
import math
import re
import sys

import pytest

from berth import units as quantities
from berth.cli.main import main
from berth.plan.check_file import check_plan
from berth.plan.infeasible import highest_throughput
from berth.plan.request import PlanRequest, build_problem

PROBLEM = {
    "batch": 100, "throughput": 50, "epochs": 1, "samples": 36000, "fixed_usd_per_hour": 0.5,
    "types": [{"name": "cpu", "usd_per_hour": 1.0, "limit": 80}, {"name": "gpu", "usd_per_hour": 4.0}],
    "layers": [
        {"name": "emb", "oct": [2, 2], "odt": [1, 4], "alpha": [0.9, 0.9], "beta": [0.9, 0.9], "cross": 0.1},
        {"name": "fc", "kind": "fc", "oct": [20, 2], "odt": [0, 0], "alpha": [0.95, 0.95], "beta": [0.9, 0.9]},
    ],
}  # fmt: skip
ASKED = ("ctrdnn", "--cluster", "cloud-mix")
QUICK = ("nce", "--cluster", "cloud-mix")  # two layers: found in a tenth of the time


@pytest.fixture
def berth(monkeypatch, capsys):
    """Runs the command line; returns (exit code, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["berth", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = capsys.readouterr()
        return done.value.code or 0, out, err

    return run


@pytest.fixture
def problem(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(PROBLEM, indent=1))
    return path


def test_a_plan_for_people_fits_80_columns_and_names_the_choice(berth):
    code, out, _ = berth("plan", *ASKED, "--throughput", "3M/s")
    assert code == 0
    assert widest(out) <= 80
    for word in (
        "▶ exact",
        "cpu-only",
        "gpu-only",
        "heuristic",
        "Why",
        "is the bottleneck",
        "No plan in the plan space below costs less",
        "note: plan space: the layers are cut into stages anywhere",
        "sync, batch 65,536 in",
        "1,000,000,000 rows",
        "Rented",
        "readers",
        "coordinator",
        "per billion examples",
        "within the uncertainty of the devices' times",
        "measured: cpu-core",
        "modelled: T4",
    ):
        assert word in out


@pytest.mark.slow
def test_options_may_precede_the_model(berth):
    code, out, _ = berth("plan", "--throughput", "100k/s", "--cluster", "cloud-mix", "nce", "--json")
    assert code == 0
    assert json.loads(out)["feasible"] is True


@pytest.mark.slow
def test_json_of_a_model_says_all_that_is_printed(berth):
    _, out, _ = berth("plan", *ASKED, "--throughput", "100k/s", "--json")
    found = json.loads(out)
    assert {
        "feasible",
        "assignment",
        "stages",
        "cost_usd",
        "lower_bound_usd",
        "candidates",
        "why",
        "notes",
        "mode",
        "batch",
        "rows",
        "rented",
        "stage_reasons",
        "throughput_range",
        "simulated_throughput",
        "margin",
    } <= set(found)
    assert sum(one["chosen"] for one in found["candidates"]) == 1
    assert (found["mode"], found["batch"], found["rows"]) == ("sync", 65536, 1e9)
    assert sum(pool["usd_per_hour"] for pool in found["rented"]) == pytest.approx(found["usd_per_hour"])
    assert found["usd_per_billion"] == pytest.approx(found["cost_usd"])
    assert len(found["stage_reasons"]) == len(found["stages"])


WORLD = (
    ("--mode", "async", "--batch-per-replica", "2k", "--staleness", "100"),
    ("--batch", "128k", "--micro", "2,8", "--rows", "2e8", "--tables", "servers,disk"),
    ("--batch-per-replica", "4096", "--batch", "1M"),
    ("--whole-machines", "--bandwidth", "1GB/s"),
)


@pytest.mark.slow
@pytest.mark.parametrize("options", WORLD)
def test_the_ways_to_train_are_options_and_their_plans_check_out(berth, tmp_path, options):
    path = tmp_path / "plan.yaml"
    code, out, err = berth("plan", *ASKED, "--throughput", "1M/s", *options, "--out", path)
    assert code == 0, err
    assert widest(out.replace(str(path), "plan.yaml")) <= 80
    code, out, err = berth("plan", "check", path)
    assert code == 0, err
    assert "note:" not in out


@pytest.mark.slow
def test_the_options_reach_the_problem(berth):
    _, out, _ = berth("plan", *ASKED, "--throughput", "1M/s", *WORLD[1], "--json")
    found = json.loads(out)
    assert (found["batch"], found["rows"]) == (128_000, 2e8)
    assert found["micro_batches"] in (2, 8)
    assert {stage.get("tables") for stage in found["stages"]} <= {"servers", "disk", None}
    _, out, _ = berth("plan", *ASKED, "--throughput", "1M/s", *WORLD[0], "--json")
    found = json.loads(out)
    assert (found["mode"], found["batch"], found["micro_batches"]) == ("async", 2000, 1)
    assert all(stage["replicas"] <= 101 for stage in found["stages"])


@pytest.mark.slow
def test_machines_that_are_rented_whole_are_paid_whole(berth):
    _, out, _ = berth("plan", *ASKED, "--throughput", "1M/s", "--whole-machines", "--json")
    pools = [pool for pool in json.loads(out)["rented"] if pool["machines"]]
    assert pools
    assert all(pool["machines"] == int(pool["machines"]) for pool in pools)


def test_a_bare_problem_is_answered_with_the_promised_keys(berth, problem):
    code, out, _ = berth("plan", "--problem", problem, "--method", "exact", "--json")
    assert code == 0
    assert list(json.loads(out)) == [
        "feasible", "assignment", "stages", "micro_batches", "readers", "throughput", "cost_usd", "lower_bound_usd",
        "method", "evaluations", "cpu_s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "method", ["brute", "genetic", "greedy", "random", "cpu-only", "gpu-only", "heuristic"]
)
def test_every_method_answers_a_bare_problem_and_none_beats_exact(berth, problem, method):
    best = json.loads(berth("plan", "--problem", problem, "--json")[1])
    code, out, _ = berth("plan", "--problem", problem, "--method", method, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["method"] == method
    assert found["cost_usd"] >= best["cost_usd"] * (1 - 1e-9)


def test_an_infeasible_problem_is_an_answer_in_json_and_an_error_for_people(berth, problem):
    code, out, _ = berth("plan", "--problem", problem, "--throughput", "1e12", "--json")
    assert code == 0
    assert json.loads(out)["feasible"] is False
    code, out, err = berth("plan", "--problem", problem, "--throughput", "1e12")
    assert (code, out) == (2, "")
    assert err.startswith("error: no plan holds")


@pytest.mark.slow
@pytest.mark.parametrize("tables", ["machine", "servers", "disk"])
def test_tables_that_no_memory_holds_are_the_reason_and_not_the_batch(berth, tables):
    code, _, err = berth("plan", *ASKED, "--throughput", "100k/s", "--rows", "1e30", "--tables", tables)
    assert code == 2
    assert re.search("the tables are too large for the memory of any number of devices: [1-9]", err)
    assert "--batch" not in err


def test_the_problems_own_figures_hold_unless_an_option_changes_them(berth, problem):
    plain = json.loads(berth("plan", "--problem", problem, "--json")[1])
    twice = json.loads(berth("plan", "--problem", problem, "--epochs", "2", "--json")[1])
    fixed = json.loads(berth("plan", "--problem", problem, "--fixed", "$100/h", "--json")[1])
    assert twice["cost_usd"] == pytest.approx(2 * plain["cost_usd"])
    assert fixed["cost_usd"] > plain["cost_usd"]


@pytest.mark.slow
def test_a_deadline_is_a_throughput(berth):
    _, out, _ = berth("plan", *ASKED, "--deadline", "500s", "--examples", "1e9", "--json")
    assert json.loads(out)["throughput"] >= 2e6


@pytest.mark.slow
def test_the_files_are_written_and_check_out(berth, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = (
        "--out",
        "plan.yaml",
        "--html",
        "p.html",
        "--certificate",
        "proof.json",
        "--job-profile",
        "job.yaml",
    )
    code, out, _ = berth("plan", *QUICK, "--throughput", "100k/s", *files)
    assert code == 0
    assert "wrote plan.yaml" in out
    assert berth("plan", "check", "plan.yaml")[0] == 0
    assert berth("plan", "check", "proof.json")[0] == 0
    page = (tmp_path / "p.html").read_text()
    assert "Content-Security-Policy" in page
    assert "<h2>In short</h2>" in page
    assert page.index("<li>Rent ") < page.index("Candidates")
    assert "http" not in page.split("<script>")[0].replace("http-equiv", "")
    code, _, err = berth("plan", *QUICK, "--throughput", "100k/s", "--out", "plan.yaml")
    assert code == 2
    assert "exists already" in err


@pytest.mark.slow
def test_a_broken_plan_is_one_message_with_its_line_and_exit_code_2(berth, tmp_path):
    path = tmp_path / "plan.yaml"
    berth("plan", *ASKED, "--throughput", "3M/s", "--out", path)
    path.write_text(path.read_text().replace("replicas: ", "replicas: 9"))
    code, out, err = berth("plan", "check", path)
    assert (code, out) == (2, "")
    assert f"{path}:" in err
    code, out, _ = berth("plan", "check", path, "--json")
    assert code == 2
    assert json.loads(out)["holds"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "line"),
    [("model: nce", "model: nec", 2), ("cluster: cloud-mix", "cluster: cloud-mx", 3)],
)
def test_an_unknown_name_in_a_plan_is_named_with_its_line(berth, tmp_path, before, after, line):
    path = tmp_path / "plan.yaml"
    berth("plan", *QUICK, "--throughput", "100k/s", "--out", path)
    path.write_text(path.read_text().replace(before, after))
    code, _, err = berth("plan", "check", path)
    assert code == 2
    assert re.match(
        rf"error: {re.escape(str(path))}:{line}:\d+: no .* is called '{after.split()[1]}'", err
    ), err


@pytest.mark.slow
def test_a_planned_model_is_known_by_its_file_to_the_other_verbs(berth, tmp_path):
    job = tmp_path / "job.yaml"
    assert berth("plan", *ASKED, "--throughput", "4M/s", "--job-profile", job)[0] == 0
    code, out, _ = berth("models", job)
    assert code == 0
    assert "ctrdnn-planned" in out
    code, out, _ = berth("network", job, "--gpus", "6", "--cluster", "4x8:V100-16", "--json")
    assert code == 0
    assert "ctrdnn-planned" in out


@pytest.mark.slow
def test_a_planned_model_is_a_job_of_a_trace(berth, tmp_path):
    job, trace = tmp_path / "job.yaml", tmp_path / "jobs.csv"
    berth("plan", *ASKED, "--throughput", "4M/s", "--job-profile", job)
    trace.write_text(f"job_id,submit_s,num_gpu,duration_s,model\na,0,6,100,{job}\nb,0,12,100,{job}\n")
    code, out, err = berth("simulate", trace, "--cluster", "1x4x8:V100-16", "--policy", "fifo", "--json")
    assert code == 0, err
    assert json.loads(out)["results"][0]["finished"] == 2


@pytest.mark.slow
def test_another_truth_judges_the_formulas_plan_and_what_is_found_from_there(berth, tmp_path):
    path = tmp_path / "plan.yaml"
    page = tmp_path / "plan.html"
    arguments = ("--throughput", "1M/s", "--objective", "simulate", "--budget", "60", "--out", path, "--json")
    code, out, err = berth("plan", *ASKED, *arguments, "--html", page)
    assert code == 0, err
    assert "Evaluated by --objective" in page.read_text()
    found = json.loads(out)["objective"]
    assert found["best"]["holds"]
    assert found["best"]["cost_usd"] <= found["start"]["cost_usd"] * (1 + 1e-9)
    assert "modelled" in found["best"]["note"]
    rate = quantities.format_rate(found["best"]["throughput"])
    assert f"# by the objective that was asked for: {rate}, " in path.read_text()
    assert berth("plan", "check", path)[0] == 0


@functools.cache
def near_the_top() -> str:
    """The highest throughput that the formula has a plan for, rounded down: the simulation is a little slower."""
    highest = highest_throughput(build_problem(PlanRequest(1.0, model=ASKED[0], cluster=ASKED[2])))
    step = 10 ** (math.floor(math.log10(highest)) - 2)
    return f"{math.floor(highest / step) * step / 1e6:.3g}M/s"


SEARCHED = ("--objective", "simulate", "--method", "greedy", "--budget", "8")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), SEARCHED], ids=["formula", "searched"])
def test_a_plan_that_the_simulation_refutes_is_an_error_with_its_rate_and_writes_nothing(
    berth, tmp_path, options
):
    files = [
        word
        for name in ("out", "html", "certificate", "job-profile")
        for word in (f"--{name}", tmp_path / name)
    ]
    code, out, err = berth("plan", *ASKED, "--throughput", near_the_top(), *options, *files)
    assert (code, out) == (2, "")
    assert re.search(
        rf"no plan found holds {near_the_top()} in the event simulation: .* reaches [\d.]+M/s", err
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), SEARCHED], ids=["formula", "searched"])
def test_a_refuted_plan_in_json_is_not_feasible_and_says_the_rate(berth, tmp_path, options):
    code, out, err = berth(
        "plan", *ASKED, "--throughput", near_the_top(), *options, "--out", tmp_path / "plan.yaml", "--json"
    )
    assert code == 2
    assert f"no plan found holds {near_the_top()}" in err
    found = json.loads(out)
    assert not found["feasible"]
    assert found["stages"] == []
    assert "in the event simulation" in found["reason"]
    assert 1e7 < found["simulated_throughput"] < 20.5e6
    assert ("objective" in found) == bool(options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_event_simulation_of_the_plan_is_printed(berth):
    code, out, _ = berth("plan", *ASKED, "--throughput", "3M/s")
    assert code == 0
    said = re.search(r"^event simulation: ([\d.]+)M/s", out, re.MULTILINE)
    assert float(said[1]) >= 3
    found = json.loads(berth("plan", *ASKED, "--throughput", "3M/s", "--json")[1])
    assert found["simulated_throughput"] >= 3e6
    assert found["margin"] >= 0


@pytest.mark.slow
def test_every_method_is_compared_on_the_problem_itself(berth, problem):
    arguments = ("plan", "--problem", problem, "--compare", "--budget", "60")
    code, out, err = berth(*arguments)
    assert code == 0, err
    assert widest(out) <= 80
    for name in ("exact", "berth-lstm", "reinforce-lstm", "static-servers", "genetic"):
        assert name in out
    found = json.loads(berth(*arguments, "--json")[1])
    compared = {one["method"]: one for one in found["compare"]}
    assert compared["exact"]["cost_usd"] == pytest.approx(found["cost_usd"])
    costs = [one["cost_usd"] for one in compared.values() if one["cost_usd"] is not None]
    assert min(costs) >= found["cost_usd"] * (1 - 1e-9)


@pytest.mark.slow
def test_methods_are_compared_with_the_margin_of_the_plan(berth):
    asked = ("plan", "cnn", "--cluster", "cloud-mix", "--throughput", "30k/s", "--compare", "--budget", "1")
    found = json.loads(berth(*asked, "--json")[1])
    assert found["margin"] > 0
    exact = next(one for one in found["compare"] if one["method"] == "exact")
    assert exact["cost_usd"] == pytest.approx(found["cost_usd"])


def widest(out):
    # a path is as long as it is
    return max(len(line) for line in out.splitlines() if not line.startswith("wrote "))


@pytest.mark.slow
def test_the_frontier_is_drawn_within_80_columns(berth, tmp_path):
    code, out, _ = berth(
        "plan", "frontier", "nce", "--devices", "cpu,T4", "--html", tmp_path / "f.html", "--limit", "6"
    )
    assert code == 0
    assert widest(out) <= 80
    assert "●" in out
    assert (tmp_path / "f.html").read_text().count("<figure") == 1


@pytest.mark.slow
def test_the_frontier_rises_in_json(berth):
    _, out, _ = berth("plan", "frontier", *ASKED, "--json")
    plans = json.loads(out)["plans"]
    for key in ("throughput", "cost_usd"):
        values = [plan[key] for plan in plans]
        assert values == sorted(values)
    assert len(plans) > 5


@pytest.mark.slow
def test_the_comparison_of_methods_states_its_conditions(berth, tmp_path):
    arguments = (
        "--quick",
        "--only",
        "models",
        "--methods",
        "greedy,random",
        "--budget",
        "50",
        "--html",
        tmp_path / "b.html",
    )
    code, out, _ = berth("plan", "bench", *arguments)
    assert code == 0
    assert widest(out) <= 80
    assert "optimum" in out
    assert "measured" in out
    assert "modelled" in out
    assert "berth-lstm and berth-rnn: pretrained" in " ".join(out.split())
    assert (tmp_path / "b.html").exists()


@pytest.mark.slow
def test_no_method_is_cheaper_than_the_optimum_in_the_comparison(berth):
    arguments = (
        "--quick",
        "--only",
        "types",
        "--methods",
        "greedy,gpu-only,random",
        "--budget",
        "64",
        "--json",
    )
    results = json.loads(berth("plan", "bench", *arguments)[1])["results"]
    best = {one["case"]: one["cost_usd"] for one in results if one["method"] == "exact"}
    assert all(
        one["cost_usd"] >= best[one["case"]] * (1 - 1e-9) for one in results if one["cost_usd"] is not None
    )
    assert {one["types"] for one in results} == {2, 8, 32}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*ASKED], "no throughput is given"),
        (["ctrdn", "--cluster", "cloud-mix", "--throughput", "1k"], "did you mean 'ctrdnn'?"),
        ([*ASKED, "--throughput", "1k", "--pin", "embd=cpu"], "did you mean 'embedding'?"),
        ([*ASKED, "--throughput", "1k", "--pin", "emb=V101"], "did you mean 'V100-16'?"),
        ([*ASKED, "--throughput", "0"], "--throughput is 0"),
        ([*ASKED, "--throughput", "nan"], "is not a rate"),
        ([*ASKED, "--throughput", "-5"], "--throughput -5: can't be negative"),
        ([*ASKED, "--throughput", "1k", "--deadline", "1h"], "contradict"),
        ([*ASKED, "--throughput", "1k", "--examples", "0"], "--examples is 0"),
        ([*ASKED, "--throughput", "1k", "--fixed", "1.5"], "has no unit"),
        ([*ASKED, "--throughput", "1k", "--method", "exat"], "did you mean 'exact'?"),
        ([*ASKED, "--throughput", "1k", "--budget", "0"], "'--budget': should be greater than or equal to 1"),
        ([*ASKED, "--throughput", "1k", "--seed", "-1"], "--seed"),
        ([*ASKED, "--throughput", "1k", "--bandwidth", "0"], "--bandwidth is 0"),
        ([*ASKED, "--throughput", "1k", "--within", "x"], "--within"),
        ([*ASKED, "--throughput", "1k", "--mode", "asinc"], "did you mean 'async'?"),
        (
            [*ASKED, "--throughput", "1k", "--mode", "async", "--batch", "5"],
            "--batch has no meaning with --mode async",
        ),
        ([*ASKED, "--throughput", "1k", "--mode", "async", "--micro", "5"], "--micro has no meaning"),
        ([*ASKED, "--throughput", "1k", "--staleness", "5"], "--staleness has no meaning with --mode sync"),
        ([*ASKED, "--throughput", "1k", "--mode", "async", "--staleness", "-1"], "--staleness"),
        ([*ASKED, "--throughput", "1k", "--batch", "0"], "--batch is 0"),
        ([*ASKED, "--throughput", "1k", "--batch", "1.5"], "--batch 1.5: a whole number is expected"),
        ([*ASKED, "--throughput", "1k", "--batch", "many"], "--batch: 'many' is not a number"),
        ([*ASKED, "--throughput", "1k", "--rows", "-1"], "--rows -1: can't be negative"),
        ([*ASKED, "--throughput", "1k", "--tables", "server"], "did you mean 'servers'?"),
        ([*ASKED, "--throughput", "1k", "--tables", ","], "--tables names nothing"),
        ([*ASKED, "--throughput", "1k", "--micro", "1,x"], "--micro: 'x' is not a number"),
        ([*ASKED, "--throughput", "1k", "--micro", ","], "--micro names no number"),
        (
            [*ASKED, "--throughput", "9M", "--batch-per-replica", "1M", "--batch", "1M"],
            "no batch up to 1,000,000 gives",
        ),
        ([*ASKED, "--max-usd", "5", "--batch-per-replica", "512"], "--batch-per-replica needs a throughput"),
        (["frontier", *ASKED, "--batch-per-replica", "512"], "--batch-per-replica needs a throughput"),
        ([*ASKED, "--max-usd", "5", "--compare"], "--compare needs a throughput"),
        ([*ASKED, "--throughput", "1k", "--objective", "simulat"], "did you mean 'simulate'?"),
        (
            ["ctrdnn", "--cluster", "none", "--max-usd", "5", "--objective", "simulate"],
            "works with the closed formula",
        ),
        ([*ASKED, "--max-usd", "nan"], "--max-usd is nan"),
        ([*ASKED, "--max-usd", "0.001"], "the cheapest costs"),
        ([*ASKED, "--max-usd", "5", "--method", "greedy"], "only exact finds"),
        ([*ASKED, "--throughput", "1G"], "the highest throughput with a plan:"),
        pytest.param(
            [*ASKED, "--throughput", "1k", "--method", "greedy", "--certificate", "c.json"],
            "no proof",
            marks=pytest.mark.slow,
        ),
        (["ctrdnn", "--throughput", "1k"], "no device is given"),
        (["ctrdnn", "--cluster", "lab", "--throughput", "1k"], "the price of RTX-4090 is not known"),
        (["--problem", "none.json"], "no such file"),
        (["--throughput", "1k"], "no model is given"),
        (["check", "none.yaml"], "no such file"),
        (["bench", "--methods", "exat"], "did you mean 'exact'?"),
        (["bench", "--only", "layer"], "did you mean 'layers'?"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(berth, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = berth("plan", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--throughput", "1e30"], "throughput is 1e+30"),
        (["--fixed", "$-5/h"], "fixed"),
        (["--examples", "1e30"], "samples is 1e+30"),
        (
            ["--rows", "5", "--mode", "async"],
            "everything itself, so --mode and --rows can't change it",
        ),
        (["--whole-machines"], "so --whole-machines can't change it"),
        (["--tables", "servers"], "so --tables can't change it"),
    ],
)
def test_figures_that_change_a_bare_problem_are_checked_as_its_own(berth, problem, arguments, said):
    code, out, err = berth("plan", "--problem", problem, *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_a_frontier_of_nothing_is_one_message(berth, tmp_path):
    path = tmp_path / "p.json"
    layers = [PROBLEM["layers"][0] | {"allowed": ["cpu"]}, PROBLEM["layers"][1]]
    path.write_text(json.dumps(PROBLEM | {"layers": layers}))
    code, out, err = berth("plan", "frontier", "--problem", path, "--forbid", "cpu")
    assert (code, out) == (2, "")
    assert "no plan is feasible" in err


FOLDER = object()


@pytest.mark.parametrize("arguments", [["--problem"], ["check"], [*ASKED[1:], "--throughput", "1k"]])
@pytest.mark.parametrize(
    ("content", "where", "said"),
    [
        (b'{"batch": 1,\n "samples": ]}', ":2:", ""),
        (b"stages: [1,\nmodel: }", ":", ""),
        (b"", ":", ""),
        (b"model: \xff", ":1: ", "is not text"),
        (b"\x00\x00", ":", "is binary"),
        (FOLDER, ": ", "is a folder"),
    ],
    ids=["half a JSON", "half a YAML", "empty", "not UTF-8", "binary", "folder"],
)
def test_a_file_that_can_not_be_read_is_named_with_its_line(berth, tmp_path, arguments, content, where, said):
    path = tmp_path / ("slip.json" if arguments == ["--problem"] else "slip.yaml")
    if content is FOLDER:
        path.mkdir()
    else:
        path.write_bytes(content)
    code, out, err = berth("plan", *arguments, path)
    assert (code, out) == (2, "")
    assert f"{path}{where}" in err.replace("\n", "")
    assert said in err
    assert "Traceback" not in err


def test_help_shows_options_and_verbs(berth):
    code, out, _ = berth("plan", "--help")
    assert code == 0
    for word in ("--throughput", "--pin", "check", "frontier", "bench"):
        assert word in out


def test_a_plan_without_servers_is_one_message_and_valid_json(berth, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "model: dlrm\ncluster: cloud-mix\nthroughput: 100000\nsamples: 1000000\nbatch: 65536\nrows: 1000000000\n"
        "stages:\n"
        "  - {layers: embedding .. loss, type: T4, replicas: 4, tables: servers, servers: 0}\n"
    )
    code, _, err = berth("plan", "check", path)
    assert code == 2
    assert f"{path}:8:" in err
    assert "stage 1 holds 0/s, below the 100k/s wanted; it has no servers" in err
    code, out, _ = berth("plan", "check", path, "--json")
    assert code == 2
    found = json.loads(out)
    assert (found["holds"], found["cost_usd"]) == (False, None)


@pytest.mark.slow
def test_a_batch_smaller_than_the_usual_micro_batches_has_fewer(berth):
    code, out, _ = berth("plan", *ASKED, "--throughput", "1k/s", "--batch", "10", "--json")
    assert code == 0
    assert json.loads(out)["micro_batches"] <= 10


TWO_TYPES = """\
racks:
  - {count: 2, machines: [{count: 2, devices: {T4: 4, cpu-core: 64}}]}
"""


@pytest.mark.parametrize("plan", ["plan.yaml", "plans/plan.yaml", "../elsewhere/plan.yaml"])
def test_a_plan_finds_its_cluster_from_any_folder(tmp_path, monkeypatch, berth, plan):
    work, other = tmp_path / "work", tmp_path / "other"
    for folder in (work / "plans", work / "clusters", tmp_path / "elsewhere", other / "clusters"):
        folder.mkdir(parents=True)
    (work / "clusters" / "two.yaml").write_text(TWO_TYPES)
    (other / "clusters" / "two.yaml").write_text(TWO_TYPES.replace("T4", "V100-16"))  # of the same name
    monkeypatch.chdir(work)
    asked = ("--cluster", "clusters/two.yaml", "--throughput", "1k/s", "--examples", "10M", "--out", plan)
    code, _, err = berth("plan", "ctrdnn", *asked)
    assert code == 0, err
    file = (work / plan).resolve()
    for folder in (work, other, file.parent):
        monkeypatch.chdir(folder)
        code, out, err = berth("plan", "check", file)
        assert code == 0, out + err
        assert (file.parent / check_plan(file).request.cluster).resolve() == work / "clusters" / "two.yaml"
