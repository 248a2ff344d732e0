"""Devices of the dense part: found, refused, and as good as the CPU on the stand-in accelerator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from berth.cli.main import app, main
from berth.errors import InputError
from berth.train import Session, Trainer, TrainOptions
from berth.train.devices import CPU, find_device, group_backend, naming_layers, on_host, to_device
from berth.train.planned import planned_devices, planned_run
from berth.train.process_group import ProcessGroup
from berth.train.recipes import make_recipe
from preloaded import programs

CASES = [
    Path(__file__).with_name(f"{name}_cases.py")
    for name in ("device", "device_cache", "device_stage", "resident_device")
]


@pytest.mark.slow
def test_training_on_the_standin_equals_that_on_the_cpu_and_every_other_case_passes():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *map(str, CASES)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout


def train(folder, *options):
    command = [str(programs() / "berth"), "train", "ctrdnn-8", "--batch", "64", "--json"]
    command += ["--checkpoint", str(folder), "--checkpoint-every", "4", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.slow
def test_two_workers_on_the_device_train_as_on_the_cpu_and_resume_there(tmp_path, capsys):
    both = ("--workers", "2", "--servers", "1")
    expected = train(tmp_path / "cpu", "--steps", "12", *both)
    found = train(tmp_path / "device", "--steps", "8", "--device", "standin", *both)
    assert [worker["device"] for worker in found["workers"]] == ["standin", "standin"]
    assert same_rows(tmp_path / "cpu", tmp_path / "device", capsys, "--step", "8", "--other-step", "8") > 500
    found = train(tmp_path / "device", "--steps", "12", *both)  # resumed on the CPU
    assert (found["loss"], found["auc"]) == (expected["loss"], expected["auc"])
    assert same_rows(tmp_path / "cpu", tmp_path / "device", capsys) > 500


TRAINER = """\
import json
from berth.train import Trainer

if __name__ == "__main__":
    found = Trainer("ctrdnn-8", batch=64, device="standin", workers=2, servers=1, notify=len).fit(steps=2)
    print(json.dumps([found.losses, [worker["device"] for worker in found.statistics["workers"]]]))
"""


@pytest.mark.slow
def test_processes_that_a_trainer_starts_know_the_standin(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(TRAINER)
    ended = subprocess.run(
        [programs() / "python", str(script)], capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stderr
    losses, devices = json.loads(ended.stdout)
    expected = Trainer("ctrdnn-8", batch=64).fit(steps=2).losses
    assert losses == pytest.approx(expected, rel=1e-4)  # sums of two halves of a batch
    assert devices == ["standin", "standin"]


def test_a_trainer_refuses_a_missing_device_before_it_starts_processes(monkeypatch):
    monkeypatch.setattr("berth.train.run_processes.run", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(InputError, match="--device cuda:7: there is no such device here"):
        Trainer("ctrdnn-8", batch=64, device="cuda:7", workers=2).fit(steps=1)


def same_rows(one, other, capsys, *options):
    """The number of rows of both checkpoints, which must not differ."""
    capsys.readouterr()
    app(["table", "diff", str(one), str(other), "--json", *options], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert (found["changed"], found["only_first"], found["only_second"]) == (0, 0, 0)
    return found["same"]


@pytest.mark.parametrize("name", ["cuda:9", "gpu", "meta", "standin", ""])
def test_a_missing_device_is_refused_with_what_exists(name, capsys, monkeypatch):
    monkeypatch.setattr("berth.testing.accelerator.register", lambda: None)
    for workers in ("1", "2"):
        options = ["--steps", "1", "--device", name, "--workers", workers]
        monkeypatch.setattr(sys, "argv", ["berth", "train", "ctrdnn-8", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert f"--device {name or repr(name)}: there is no such device here" in error
        assert "here: cpu" in error


def test_processes_of_a_machine_take_its_devices_in_turn(monkeypatch):
    monkeypatch.setattr("berth.train.devices._device_count", lambda kind: 4 if kind == "cuda" else 0)
    assert find_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "6")
    assert find_device("cuda") == torch.device("cuda", 2)
    assert find_device("cuda:3") == torch.device("cuda", 3)
    assert find_device("cpu") == find_device("cpu:0") == CPU
    with pytest.raises(InputError, match="--device cpu:9: there is no such device here"):
        find_device("cpu:9")
    with pytest.raises(InputError, match="here: cpu, cuda:0, cuda:1, cuda:2, cuda:3"):
        find_device("cuda:4")


def test_the_process_group_is_chosen_by_the_device():
    assert group_backend(torch.device("cuda", 1)) == "cpu:gloo,cuda:nccl"
    assert group_backend(CPU, torch.device("cuda")) == "cpu:gloo,cuda:nccl"
    assert group_backend(torch.device("xpu")) == "cpu:gloo,xpu:xccl"
    assert [group_backend(torch.device(name)) for name in ("cpu", "mps")] == ["gloo", "gloo"]
    group = ProcessGroup()
    assert not group._staged([torch.ones(1)])
    assert group._staged([torch.ones(1, device="meta")])


PLAN = """\
model: ctrdnn-8
devices: [cpu-core, T4]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: 48
micro_batches: 2
stages:
  - {layers: embedding .. concat, type: cpu-core, replicas: 1, tables: servers, servers: 1}
  - {layers: norm .. loss, type: T4, replicas: 1}
"""


@pytest.mark.slow
def test_a_stage_on_the_device_trains_as_on_the_cpu_and_its_copies_are_counted(tmp_path):
    plan, steps, micro = tmp_path / "plan.yaml", 6, 2
    plan.write_text(PLAN)
    command = [str(programs() / "berth"), "train", "ctrdnn-8", "--plan", str(plan), "--steps", str(steps)]
    results = []
    for more in ((), ("--device", "standin")):
        ended = subprocess.run(
            [*command, "--json", *more], capture_output=True, text=True, timeout=500, check=False
        )
        assert ended.returncode == 0, ended.stderr
        results.append(json.loads(ended.stdout))
    assert "planned 1 x T4, started 1 process on standin" in ended.stderr
    expected, found = results
    assert (found["loss"], found["auc"]) == (expected["loss"], expected["auc"])
    first, second = found["workers"]
    assert [first["device"], second["device"]] == ["cpu", "standin"]
    activations = 48 * (26 * 16 + 13) * 4 * steps
    to_device, to_host = (second["boundary_copies"][name] for name in ("to_device", "to_host"))
    assert to_device == {"count": steps * micro, "bytes": activations}
    assert to_host == {"count": steps * micro, "bytes": activations}  # their gradients
    assert all(copies["count"] == 0 for copies in first["boundary_copies"].values())


@pytest.mark.parametrize(
    ("more", "message", "hint"),
    [
        (("--map", "T4=cuda:7"), "--map T4=cuda:7: there is no such device here", "here: cpu"),
        (("--device", "cuda:7"), "--device cuda:7: there is no such device here", "here: cpu"),
        (("--map", "P100=cpu"), "the plan does not use P100", "it uses T4, cpu-core"),
        (("--map", "T4"), "--map T4: expected TYPE=DEVICE", "--map T4=cuda"),
        (
            ("--device-cache", "1MiB"),
            "--device-cache is for tables in the process that trains",
            "--servers 0",
        ),
    ],
    ids=["map", "device", "unused", "form", "cache"],
)
def test_a_device_of_a_plan_is_refused_before_anything_starts(
    more, message, hint, tmp_path, capsys, monkeypatch
):
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    monkeypatch.setattr("berth.train.orchestrate._launch", lambda *_: pytest.fail("started"))
    options = ["--plan", str(plan), "--steps", "1", *more]
    monkeypatch.setattr(sys, "argv", ["berth", "train", "ctrdnn-8", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert hint in error


def test_gpu_types_of_a_plan_run_on_a_gpu_where_there_is_one(tmp_path, monkeypatch):
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    names = make_recipe("ctrdnn-8").model.names
    planned = planned_run(str(plan), "ctrdnn-8", names, {})
    found = [cut.device for cut in planned_devices(planned, "cpu", {})]
    assert found == ["cpu", "cpu"]  # emulated
    monkeypatch.setattr("berth.train.devices.available_devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    assert [cut.device for cut in planned_devices(planned, "cpu", {})] == ["cpu", "cuda"]
    assert [cut.device for cut in planned_devices(planned, "xpu", {})] == ["cpu", "xpu"]
    mapped = planned_devices(planned, "cpu", {"T4": "cpu", "cpu-core": "mps"})
    assert [cut.device for cut in mapped] == ["mps", "cpu"]
    slower = planned_run(str(plan), "ctrdnn-8", names, {"T4": 2.0})
    with pytest.raises(InputError, match="--emulate T4: it runs on cuda"):
        planned_devices(slower, "cpu", {})
    with pytest.raises(InputError, match="--map applies to the device types of a plan"):
        TrainOptions(device_map={"T4": "cuda"})


def test_bf16_computes_matrix_products_in_bfloat16_and_keeps_weights_in_float32():
    losses = {}
    for bf16 in (False, True):
        recipe = make_recipe("ctrdnn-8")
        kinds = set()
        recipe.model.chain["fc1"][0].register_forward_hook(lambda _, __, output: kinds.add(output.dtype))  # noqa: B023
        session = Session(recipe.model, recipe.data, TrainOptions(batch=64, bf16=bf16))
        losses[bf16] = session.run(4).losses
        assert kinds == {torch.bfloat16 if bf16 else torch.float32}
        assert {weight.dtype for weight in recipe.model.parameters()} == {torch.float32}
        assert session.progress.window.arrays()["scores"].dtype == np.float32
    assert losses[True] == pytest.approx(losses[False], abs=0.02)
    assert losses[True] != losses[False]


def test_on_the_cpu_nothing_is_copied_and_errors_are_left_alone():
    batch = {"keys": torch.arange(3)}
    assert to_device(batch, CPU) is batch
    assert on_host(batch["keys"]) is batch["keys"]
    with pytest.raises(RuntimeError, match="a device"), naming_layers(torch.nn.Linear(1, 1), CPU):
        raise RuntimeError("a device")
