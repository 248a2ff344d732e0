"""Plans and goals on the command line of a live cluster: what is refused before the controller is asked."""

from __future__ import annotations

import pytest

JOB = """\
run: work
work: 1k steps
alternatives:
  - parts: [{name: all, devices: {T4: 1}}]
    step: 40ms
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--deadline 10m --tables replicas --forbid T4", "does not take --tables or --forbid"),
        ("--deadline 10m --epochs 3 --batch 256", "does not take --epochs or --batch"),
        ("--deadline 10m --method random --html x.html", "does not take --method or --html"),
        ("--deadline 10m --certificate c.json --compare", "does not take --certificate or --compare"),
    ],
)
def test_options_that_a_live_plan_does_not_take_are_refused(berth, line, said):
    code, out, err = berth("plan", "ctrdnn-8", "--against-live", *line.split())
    assert (code, out) == (2, "")
    assert said in err
    assert "--cluster FILE" in err


@pytest.mark.parametrize(
    ("line", "said", "fix"),
    [
        ("--plan p.yaml --examples 1B --deadline 10m -- work", "--examples: for a goal", "work: 2B examples"),
        ("--rows 1M job.yaml", "--rows: for a goal", "berth submit --model"),
        ("--plan p.yaml job.yaml", "job.yaml:4:3: the job has `alternatives`", "- plan: p.yaml"),
        ("gang.yaml", "gang.yaml:2:1: `gpus` is for a gang", "leave out `gpus`"),
        ("empty.yaml", "empty.yaml: is empty", "`run:`, a `plan:` or `alternatives:`"),
        ("none.yaml", "none.yaml:2:15: alternatives: is empty", "at least 1"),
        ("no-step.yaml", "no-step.yaml:4:5: alternatives.0: step times are missing", "step: 40ms"),
    ],
)
def test_a_job_that_contradicts_itself_is_refused_with_its_line_and_a_fix(
    berth, monkeypatch, tmp_path, line, said, fix
):
    monkeypatch.setenv("BERTH_URL", "http://127.0.0.1:9")  # is not asked
    monkeypatch.setenv("BERTH_TOKEN", "none")
    files = {
        "job": JOB,
        "gang": JOB.replace("work: 1k", "gpus: 2\nwork: 1k"),
        "empty": "",
        "none": "run: work\nalternatives: []\n",
        "no-step": JOB.replace("    step: 40ms\n", ""),
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    code, out, err = berth("submit", *line.split())
    assert (code, out) == (2, "")
    assert said in err
    assert fix in err
