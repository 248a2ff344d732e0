"""A user's policy on the command line: it runs, a slow one is reported, and so are its mistakes."""

from __future__ import annotations

import json
import sys

import pytest

from berth.cli.main import main
from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.run import simulate
from berth.workload.trace import Trace

HEAD = """
from dataclasses import dataclass
from berth.schedule.policy import Policy

RANKS = {1: "a", 2: "bb"}
"""
POLICY = """

@dataclass(frozen=True)
class {name}(Policy):
    '''{name} goes first.'''

    @staticmethod
    def order(job, now, params):
        {body}
"""
BODIES = {
    "Small": "return job.gpus",
    "Large": "return -job.gpus",
    "Spelled": "return float(len(RANKS.get(int(job.gpus), 'zzz')))",
    "Raises": "raise ValueError('no rank')",
    "Divides": "return 1.0 / (job.gpus - job.gpus)",
}
FILE = HEAD + "".join(POLICY.format(name=name, body=body) for name, body in BODIES.items())
TRACE = "job_id,submit_s,num_gpu,duration_s\na,0,8,100\nb,1,8,50\nc,2,4,10\n"


@pytest.fixture
def berth(monkeypatch, capsys, tmp_path):
    """Runs `berth VERB jobs.csv` in a folder that holds jobs.csv and mine.py."""
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "jobs.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["berth", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        return done.value.code or 0, captured.out, captured.err

    return run


def simulated(berth, *policies):
    asked = [f"--policy={policy}" for policy in policies]
    return berth("simulate", "jobs.csv", "--cluster", "1x1x8:V100-16", *asked, "--json")


def line_of(name):
    """The line of a policy's only statement."""
    lines = FILE.splitlines()
    return lines.index(f"class {name}(Policy):") + 1 + 5


@pytest.mark.slow
def test_two_policies_of_one_file_run_side_by_side(berth):
    code, out, error = simulated(berth, "mine.py:Small", "mine.py:Large")
    small, large = json.loads(out)["results"]
    assert (code, error) == (0, "")
    # a: 0-100; then c before b, or b before c
    assert small["mean_jct_s"] == pytest.approx((100 + 108 + 159) / 3)
    assert large["mean_jct_s"] == pytest.approx((100 + 149 + 158) / 3)


@pytest.mark.slow
def test_one_that_is_interpreted_runs_and_says_so_before_and_in_the_json(berth):
    code, out, error = simulated(berth, "mine.py:Spelled")
    (note,) = [note for note in json.loads(out)["notes"] if "interpreted" in note]
    assert code == 0
    assert note.startswith("mine.py:Spelled: Spelled.order can't be compiled and is interpreted, slowly")
    assert error.strip() == f"note: {note}"
    assert "\x1b" not in note


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["simulate", "compare", "sweep", "explain"])
def test_every_verb_says_that_a_policy_is_interpreted(berth, verb):
    words = {
        "simulate": ["jobs.csv", "--policy", "mine.py:Spelled"],
        "compare": ["jobs.csv", "--policy", "fifo", "--policy", "mine.py:Spelled"],
        "sweep": [
            "--policy=fifo", "--policy=mine.py:Spelled", "--load=0.8", "--congestion=1", "--jobs=5", "--seeds=1",
            "--sizes=powers-of-two", "--workers=1",
        ],
        "explain": ["jobs.csv", "b", "--policy", "mine.py:Spelled"],
    }  # fmt: skip
    code, out, error = berth(verb, *words[verb], "--cluster", "1x1x8:V100-16", "--json")
    assert code == 0
    assert "Spelled.order can't be compiled" in error
    assert any("Spelled.order" in note for note in json.loads(out)["notes"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raises", ["ValueError: no rank", f"mine.py:{line_of('Raises')}"]),
        ("Divides", ["ZeroDivisionError", f"mine.py:{line_of('Divides')}"]),
    ],
)
def test_a_function_that_fails_stops_the_run_and_is_reported_with_its_line(berth, name, words):
    code, out, error = simulated(berth, f"mine.py:{name}")
    assert (code, out) == (2, "")
    assert "Traceback" not in error
    assert all(word in error for word in [*words, f"raised by the policy {name}"]), error


@pytest.mark.parametrize("name", ["Raises", "Divides"])
def test_from_python_the_error_itself_is_raised_even_by_compiled_code(berth, name):
    columns = {"job_id": ["a"], "submit_s": [0.0], "num_gpu": [1], "duration_s": [1.0]}
    trace = Trace.from_columns(columns, source="test")
    with pytest.raises((ValueError, ZeroDivisionError)) as caught:
        simulate(trace, load_cluster("1x1x8"), load_policy(f"mine.py:{name}"))
    assert any("mine.py" in note for note in caught.value.__notes__)


def test_an_unknown_class_is_reported_with_the_line_of_the_nearest(berth):
    code, _, error = simulated(berth, "mine.py:Smal")
    assert code == 2
    assert "mine.py:8: no policy is called 'Smal'" in error
    assert "did you mean 'Small'?" in error


ODD = (
    HEAD
    + POLICY.format(name="Odd", body="return job.gpus")
    + """
    def prepare(self, trace):
        return 5
"""
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(0)\n", "mine.py:2: SystemExit"),
        (ODD, "Odd.prepare returned 5, which is not a policy"),
    ],
)
def test_a_file_that_ends_the_program_and_a_wrong_prepare_are_one_message(berth, tmp_path, text, said):
    (tmp_path / "mine.py").write_text(text)
    code, _, err = berth("simulate", "jobs.csv", "--cluster", "1x1x8:V100-16", "--policy", "mine.py:Odd")
    assert code == 2
    assert said in err
    assert "Traceback" not in err
