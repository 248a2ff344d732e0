"""Several processes train as one, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_tree import signal_all

from berth.cli.main import app
from berth.train import Trainer
from berth.train.fault_points import VARIABLE
from preloaded import forking, programs

pytestmark = pytest.mark.slow

STEPS = 24
TOGETHER = ("--workers", "2", "--servers", "2")
CUT = ("--stages", "3", "--micro", "2")
THREE = ("--workers", "3")


def command(folder: Path, *config: str) -> list[str]:
    return [
        *(
            str(programs() / "berth"),
            "train",
            "ctrdnn-8",
            "--steps",
            str(STEPS),
            "--batch",
            "64",
            "--json",
        ),
        *("--checkpoint", str(folder), "--checkpoint-every", "5", *config),
    ]


def train(
    folder: Path, *config: str, fault: str | None = None, steps: int | None = STEPS
) -> tuple[dict, str]:
    environment = {**os.environ, **({VARIABLE: fault} if fault else {})}
    wanted = command(folder, *config)
    if steps is None:
        del wanted[wanted.index("--steps") : wanted.index("--batch")]
    done = subprocess.run(wanted, capture_output=True, text=True, env=environment, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def differences(one: Path, other: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    """What `berth table diff` says of two checkpoints."""
    capsys.readouterr()
    app(["table", "diff", str(one), str(other), "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


class Runs:
    """Runs that nothing happened to, by how they are divided; each is made when it is first asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory, self.made = factory, {}

    def __getitem__(self, config: tuple[str, ...]) -> tuple[Path, dict]:
        if config not in self.made:
            folder = self.factory.mktemp("whole") / "run"
            self.made[config] = folder, train(folder, *config)[0]
        return self.made[config]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Runs(tmp_path_factory)


@pytest.fixture(scope="module")
def alone_folder(whole):
    return whole[()]


@pytest.fixture(scope="module")
def alone(alone_folder):
    return alone_folder[1]


@pytest.mark.parametrize("config", [TOGETHER, CUT], ids=["workers", "stages"])
def test_several_processes_learn_what_one_process_learns(config, whole, alone):
    together = whole[config][1]
    assert together["step"] == alone["step"] == STEPS
    assert together["examples"] == alone["examples"]
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-5)  # sums in another order
    assert together["tables"]["embedding"]["rows"] == alone["tables"]["embedding"]["rows"]


@pytest.mark.parametrize(
    "config",
    [TOGETHER, CUT, pytest.param(THREE, marks=pytest.mark.soak)],
    ids=["2 workers", "stages", "3 workers"],
)
def test_rows_and_auc_are_those_of_one_process_up_to_the_order_of_sums(config, whole, alone_folder, capsys):
    """The AUC is that of the scores of all workers, not of the first one's."""
    folder, reported = alone_folder
    assert whole[config][1]["auc"] == pytest.approx(reported["auc"], abs=1e-4)
    rows = differences(folder, whole[config][0], capsys)
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    assert rows["mean"] < 1e-6
    assert rows["largest"] < 1e-3  # of a weight whose gradient is nearly nothing, AdaGrad divides by that


@pytest.mark.parametrize("servers", [pytest.param("1", marks=pytest.mark.soak), "3"])
def test_one_worker_has_the_rows_of_one_process_bit_for_bit_over_any_number_of_servers(
    servers, alone_folder, tmp_path, capsys
):
    folder, alone = alone_folder
    reported, _ = train(tmp_path / "run", "--servers", servers)
    for name in ("step", "examples", "loss", "auc"):
        assert reported[name] == alone[name], name
    rows = differences(folder, tmp_path / "run", capsys)
    assert (rows["changed"], rows["only_first"], rows["only_second"]) == (0, 0, 0)
    assert rows["same"] == alone["tables"]["embedding"]["rows"]


@pytest.fixture(scope="module")
def shares():
    """One process whose batches are the shares of workers: as many steps, and no gradient is old."""
    return Trainer("ctrdnn-8", batch=32).fit(steps=2 * STEPS)


# Bounds of the loss over that of `shares`, where 1.24 is untrained: four standard deviations of 22 runs or more.
LOSSES = {"async": (0.95, 1.17), "half-async": (0.95, 1.17), "geo": (0.90, 1.10)}


@pytest.mark.parametrize(
    "mode",
    [
        ("async",),
        pytest.param(("half-async", "--staleness", "2"), marks=pytest.mark.soak),
        pytest.param(("geo", "--geo-every", "3"), marks=pytest.mark.soak),
    ],
    ids=lambda mode: mode[0],
)
def test_other_modes_learn_from_every_example_once(mode, whole, shares, tmp_path, capsys):
    """Dense weights and rows are updated by each worker, so both differ between modes."""
    folder, sync = whole[TOGETHER]
    assert shares.examples == sync["examples"]
    reported, said = train(tmp_path / "run", *TOGETHER, "--mode", *mode)
    assert f"2 servers ({mode[0]})" in said
    assert (reported["step"], reported["examples"]) == (sync["step"], sync["examples"])
    lower, upper = LOSSES[mode[0]]
    assert lower < reported["loss"] / shares.loss < upper
    rows = differences(folder, tmp_path / "run", capsys)
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    assert rows["changed"] > 0  # they learned at other moments


def test_workers_come_to_the_end_of_a_day_together(tmp_path):
    days = ("--day-every", "320")
    alone, together = (train(tmp_path / name, *days, *how)[0] for name, how in (("a", ()), ("b", TOGETHER)))
    assert together["tables"]["embedding"]["rows"] == alone["tables"]["embedding"]["rows"]
    assert together["tables"]["embedding"]["counts"]["removed"] > 0


def line(number: int) -> str:
    return "\t".join([str(number % 3 // 2), *[str(number % 50)] * 13, *[f"{number * 31 % 97:x}"] * 26])


@pytest.fixture(scope="module")
def few_clicks(tmp_path_factory):
    """129 examples, two batches and one over, and what one process learns from them."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "clicks.tsv").write_text("".join(f"{line(number)}\n" for number in range(129)))
    return folder / "clicks.tsv", train(folder / "alone", "--data", str(folder / "clicks.tsv"), steps=None)[0]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(TOGETHER, marks=pytest.mark.soak),
        ("--workers", "2", "--stages", "2", "--micro", "2"),
    ],
    ids=["workers", "stages"],
)
def test_all_learn_from_a_last_batch_that_is_too_small_to_be_shared(config, few_clicks, tmp_path):
    clicks, whole = few_clicks
    shared, _ = train(tmp_path / "together", "--data", str(clicks), *config, steps=None)
    assert (shared["step"], shared["examples"]) == (whole["step"], whole["examples"]) == (3, 129)
    assert shared["loss"] == pytest.approx(whole["loss"], rel=2e-3)


@pytest.mark.parametrize(
    ("config", "fault", "who"),
    [
        pytest.param(TOGETHER, "step@12/worker0", "worker 0", marks=pytest.mark.soak),
        pytest.param(TOGETHER, "step@13/worker1", "worker 1", marks=pytest.mark.soak),
        (TOGETHER, "server: step ended@25/server1", "server 1"),
        pytest.param(TOGETHER, "checkpoint: manifest written@2/worker0", "worker 0", marks=pytest.mark.soak),
        pytest.param(CUT, "step@14/worker2", "worker 2", marks=pytest.mark.soak),
        pytest.param(CUT, "checkpoint: parts written@2/worker0", "worker 0", marks=pytest.mark.soak),
    ],
)
def test_after_a_kill_the_run_is_the_one_that_was_never_killed(config, fault, who, whole, tmp_path, capsys):
    folder, untouched = whole[config]
    result, said = train(tmp_path / "run", *config, fault=fault)
    assert f"{who} was killed (SIGKILL): restarting all from the last checkpoint" in said
    assert result["resumed_from"] in (5, 10)
    for name in ("step", "loss", "auc"):
        assert result[name] == untouched[name], name
    reported = differences(folder, tmp_path / "run", capsys)
    assert reported["steps"] == [STEPS, STEPS]
    assert (reported["changed"], reported["only_first"], reported["only_second"]) == (0, 0, 0)


MODES = {
    "sync": (),
    "async": ("--mode", "async"),
    "half-async": ("--mode", "half-async", "--staleness", "2"),
    "geo": ("--mode", "geo", "--geo-every", "3"),
}
KILLS = {
    "worker": "checkpoint: manifest renamed@1/worker0",
    "server": "server: shard written@2/server1",
    "launcher": "checkpoint: manifest renamed@1/worker0/parent",
}
IN_EVERY_RUN = {("async", "worker"), ("geo", "launcher")}


@pytest.mark.parametrize(
    ("mode", "role"),
    [
        pytest.param(mode, role, marks=() if (mode, role) in IN_EVERY_RUN else pytest.mark.soak)
        for mode in MODES
        for role in KILLS
    ],
)
def test_a_kill_in_any_mode_costs_no_example(mode, role, whole, tmp_path, capsys):
    """All examples are trained, those since the checkpoint again; in sync the result is the undisturbed one."""
    folder, untouched = whole[TOGETHER]
    words = (*TOGETHER, *MODES[mode], "--checkpoint-every", "2")
    if role == "launcher":
        done = subprocess.run(
            command(tmp_path / "run", *words),
            capture_output=True,
            env={**os.environ, VARIABLE: KILLS[role]},
            timeout=900,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        result, _ = train(tmp_path / "run", *words)
    else:
        result, said = train(tmp_path / "run", *words, fault=KILLS[role])
        assert f"{KILLS[role].rpartition('/')[2][:-1]} {KILLS[role][-1]} was killed (SIGKILL)" in said
    assert result["resumed_from"] >= 1
    assert (result["step"], result["examples"]) == (STEPS, untouched["examples"])
    rows = differences(folder, tmp_path / "run", capsys)
    assert rows["steps"] == [STEPS, STEPS]
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    if mode == "sync":
        assert (result["loss"], result["auc"], rows["changed"]) == (untouched["loss"], untouched["auc"], 0)


def test_without_checkpoints_a_kill_is_the_end_and_says_so():
    arguments = [*command(Path("unused"), *TOGETHER)]
    del arguments[arguments.index("--checkpoint") : arguments.index("--checkpoint-every")]
    done = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        env={**os.environ, VARIABLE: "step@3/worker1"},
        timeout=900,
        check=False,
    )
    assert done.returncode == 1
    assert "worker 1 was killed (SIGKILL); can't resume without --checkpoint" in done.stderr


def test_asked_to_stop_all_save_the_same_step_and_say_preempted(tmp_path):
    arguments = [sys.executable, "-m", "berth", *command(tmp_path / "run", *TOGETHER)[1:]]
    arguments[arguments.index(str(STEPS))] = "1000000"
    with forking():
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "2 servers" in process.stderr.readline()
    while not list((tmp_path / "run").glob("step-*/manifest.json")):
        assert process.poll() is None
        time.sleep(0.02)
    # two servers, two workers, the launcher: as Slurm does
    assert signal_all(process.pid, signal.SIGTERM) == 5
    out, said = process.communicate(timeout=900)
    assert process.returncode == 0, said
    assert json.loads(out)["preempted"]
