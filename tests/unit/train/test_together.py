"""Several processes train as one, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from berth.train.faults import VARIABLE

pytestmark = pytest.mark.slow

STEPS = 24
TOGETHER = ("--workers", "2", "--servers", "2")
CUT = ("--stages", "3", "--micro", "2")


def command(folder: Path, *division: str) -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "berth",
            "train",
            "ctrdnn-8",
            "--steps",
            str(STEPS),
            "--batch",
            "64",
            "--json",
        ),
        *("--checkpoint", str(folder), "--checkpoint-every", "5", *division),
    ]


def train(
    folder: Path, *division: str, fault: str | None = None, steps: int | None = STEPS
) -> tuple[dict, str]:
    environment = {**os.environ, **({VARIABLE: fault} if fault else {})}
    wanted = command(folder, *division)
    if steps is None:
        del wanted[wanted.index("--steps") : wanted.index("--batch")]
    done = subprocess.run(wanted, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def differences(one: Path, other: Path) -> str:
    told = subprocess.run(
        [sys.executable, "-m", "berth", "table", "diff", str(one), str(other), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout + told.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone") / "run")[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nothing happened to, by how they are divided."""
    made = {}
    for division in (TOGETHER, CUT):
        folder = tmp_path_factory.mktemp("whole") / "run"
        made[division] = (folder, train(folder, *division)[0])
    return made


@pytest.mark.parametrize("division", [TOGETHER, CUT], ids=["workers", "stages"])
def test_divided_it_learns_what_one_process_learns(division, whole, alone):
    together = whole[division][1]
    assert together["step"] == alone["step"] == STEPS
    assert together["examples"] == alone["examples"]
    assert together["loss"] == pytest.approx(alone["loss"], rel=2e-3)  # sums in another order
    assert together["tables"]["embedding"]["rows"] == alone["tables"]["embedding"]["rows"]


def test_workers_come_to_the_end_of_a_day_together(tmp_path):
    days = ("--day-every", "320")
    alone, together = (train(tmp_path / name, *days, *how)[0] for name, how in (("a", ()), ("b", TOGETHER)))
    assert together["tables"]["embedding"]["rows"] == alone["tables"]["embedding"]["rows"]
    assert together["tables"]["embedding"]["counts"]["removed"] > 0


def line(number: int) -> str:
    return "\t".join([str(number % 3 // 2), *[str(number % 50)] * 13, *[f"{number * 31 % 97:x}"] * 26])


@pytest.mark.parametrize(
    "division", [TOGETHER, ("--workers", "2", "--stages", "2", "--micro", "2")], ids=["workers", "stages"]
)
def test_all_learn_from_a_last_batch_that_is_too_small_to_be_shared(division, tmp_path):
    (tmp_path / "clicks.tsv").write_text("".join(f"{line(number)}\n" for number in range(129)))
    whole, shared = (
        train(tmp_path / name, "--data", str(tmp_path / "clicks.tsv"), *how, steps=None)[0]
        for name, how in (("alone", ()), ("together", division))
    )
    assert (shared["step"], shared["examples"]) == (whole["step"], whole["examples"]) == (3, 129)
    assert shared["loss"] == pytest.approx(whole["loss"], rel=2e-3)


@pytest.mark.parametrize(
    ("division", "fault", "who"),
    [
        (TOGETHER, "step@12/worker0", "worker 0"),
        (TOGETHER, "step@13/worker1", "worker 1"),
        (TOGETHER, "server: step ended@25/server1", "server 1"),
        (TOGETHER, "checkpoint: manifest written@2/worker0", "worker 0"),
        (CUT, "step@14/worker2", "worker 2"),
        (CUT, "checkpoint: parts written@2/worker0", "worker 0"),
    ],
)
def test_after_a_kill_the_run_is_the_one_that_was_never_killed(division, fault, who, whole, tmp_path):
    folder, untouched = whole[division]
    result, said = train(tmp_path / "run", *division, fault=fault)
    assert f"{who} was killed (SIGKILL): all go on from the last checkpoint" in said
    assert result["resumed_from"] in (5, 10)
    for name in ("step", "loss", "auc"):
        assert result[name] == untouched[name], name
    told = json.loads(differences(folder, tmp_path / "run"))
    assert told["steps"] == [STEPS, STEPS]
    assert (told["changed"], told["only_first"], told["only_second"]) == (0, 0, 0)


def test_without_checkpoints_a_kill_is_the_end_and_says_so():
    arguments = [*command(Path("unused"), *TOGETHER)]
    del arguments[arguments.index("--checkpoint") : arguments.index("--checkpoint-every")]
    done = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        env={**os.environ, VARIABLE: "step@3/worker1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "worker 1 was killed (SIGKILL); without --checkpoint there is nothing to go on from" in done.stderr


def test_asked_to_stop_all_save_the_same_step_and_say_preempted(tmp_path):
    arguments = command(tmp_path / "run", *TOGETHER)
    arguments[arguments.index(str(STEPS))] = "1000000"
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "2 servers" in process.stderr.readline()
    while not list((tmp_path / "run").glob("step-*/manifest.json")):
        assert process.poll() is None
        os.sched_yield()
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert json.loads(out)["preempted"]
