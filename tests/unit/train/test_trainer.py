"""`Trainer` from a script: several real processes, the same run as `berth train`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
from torch import nn

from berth.errors import InputError
from berth.train import Trainer, run_processes
from berth.train.callbacks import EventPipe
from berth.train.checkpoint.inspect import open_checkpoint
from preloaded import programs

SCRIPT = """
import json, os, sys
import torch
import berth.train as bt


class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = bt.Embedding(4, optimiser=bt.adagrad(0.05))
        self.top = torch.nn.Linear(26 * 4 + 13, 1)

    def forward(self, inputs):
        return self.top(torch.cat([self.rows(inputs["slots"]).flatten(1), inputs["dense"]], dim=1)).squeeze(1)


def make_model():
    return Mine()


if __name__ == "__main__":
    steps, evaluated = [], []

    class Watch(bt.Callback):
        def on_step(self, metrics):
            steps.append(metrics["loss"])

        def on_evaluation(self, metrics):
            evaluated.append(metrics)

    with bt.Trainer(
        make_model, workers=2, servers=1, batch=64, optimiser="sgd", lr=0.05, scheduler="cosine",
        eval_data=500, eval_every=4, callbacks=Watch(), checkpoints="by-script", best="loss",
    ) as trainer:
        result = trainer.fit(steps=8)
        print(json.dumps({
            "losses": result.losses, "steps": steps, "evaluated": evaluated, "auc": result.auc, "loss": result.loss,
            "evaluation": result.evaluation.to_json(), "here": trainer.evaluate(500).to_json(), "pid": os.getpid(),
            "pids": [worker["pid"] for worker in result.statistics["workers"]],
            "servers": len(result.statistics["servers"]), "best": result.best_checkpoint,
        }))
"""


@pytest.mark.slow
def test_two_workers_and_a_server_from_a_script_train_as_the_command_does(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}

    def output(program, *words):
        done = subprocess.run(
            [programs() / program, *words],
            capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1] if program == "python" else done.stdout)

    python = output("python", "mine.py")
    options = (
        "--workers 2 --servers 1 --batch 64 --steps 8 --dense-optimiser sgd --lr 0.05 --schedule cosine"
        " --eval-examples 500 --eval-every 4 --checkpoint by-command --best loss --json"
    )
    command = output("berth", "train", "mine.py:make_model", *options.split())
    assert len({python["pid"], *python["pids"]}) == 3, "three processes, and a server"
    assert (len(python["pids"]), python["servers"]) == (2, 1)
    assert len(command["workers"]) == 2
    assert python["loss"] == command["loss"] == pytest.approx(sum(python["losses"]) / 8)
    assert python["evaluation"] == command["evaluation"]
    assert python["best"] == "by-script/step-000000000008"  # the loss falls
    assert command["best_checkpoint"] == "by-command/step-000000000008"
    assert python["steps"] == python["losses"], "callbacks run in the script's process"
    assert [one["step"] for one in python["evaluated"]] == [4, 8]
    for name in ("auc", "loss", "mean_prediction"):  # workers scored a share each, the script all of them
        assert python["here"][name] == pytest.approx(python["evaluation"][name], rel=1e-6)


class Local(nn.Module):
    def forward(self, inputs):
        return inputs


def test_what_workers_can_not_import_is_refused_before_they_start(monkeypatch):
    with pytest.raises(InputError, match="model can't be passed to other processes") as error:
        run_processes.pickled({"model": lambda: None, "data": None})
    assert "path.py:make_model" in error.value.hint
    monkeypatch.setitem(sys.modules, "__main__", main := types.ModuleType("__main__"))
    main.Defined = type("Defined", (nn.Module,), {"__module__": "__main__", "__qualname__": "Defined"})
    with pytest.raises(
        InputError, match=r"data can't be passed .* it is defined in a notebook or by `python -c`"
    ):
        run_processes.pickled({"model": Local(), "data": main.Defined()})


def test_a_script_without_a_main_guard_does_not_start_itself_again(monkeypatch):
    monkeypatch.setattr(run_processes, "importing_main", True)
    with pytest.raises(InputError, match="starts training again") as error:
        Trainer("ctrdnn-8", workers=2).fit(steps=1)
    assert 'if __name__ == "__main__":' in error.value.hint


def test_the_main_script_is_found_by_path_or_by_module(monkeypatch, tmp_path):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert run_processes._main_module() is None
    (tmp_path / "script.py").touch()
    main.__file__ = str(tmp_path / "script.py")
    assert run_processes._main_module() == {"path": main.__file__}
    main.__spec__ = types.SimpleNamespace(name="package.tool")
    assert run_processes._main_module() == {"name": "package.tool"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimiser": lambda weights: None, "workers": 2}, "optimiser can't be passed to other processes"),
        ({"plan": "nowhere.yaml"}, "nowhere.yaml"),
        ({"mode": "snyc", "servers": 1}, "no mode is called 'snyc'"),
        ({"lr": -1}, "lr must be a number above 0"),
    ],
)
def test_mistakes_are_input_errors(options, message):
    with pytest.raises(InputError, match=message):
        Trainer("ctrdnn-8", batch=64, **options).fit(steps=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'wokers'"):
        Trainer("ctrdnn-8", wokers=2)
    with pytest.raises(InputError, match="endless"):
        Trainer("ctrdnn-8").fit()


def test_callbacks_get_plain_data_in_order(small, tmp_path):
    seen = []

    class Watch:
        def on_step(self, metrics):
            seen.append(("step", metrics["step"], metrics["examples"], metrics["learning_rate"]))

        def on_evaluation(self, metrics):
            seen.append(("evaluation", metrics["step"], metrics["best"]))

        def on_checkpoint(self, info):
            assert os.path.exists(os.path.join(info["folder"], "manifest.json"))
            seen.append(("checkpoint", info["step"], info["best"]))

    Trainer(
        small.Small,
        batch=64,
        callbacks=[Watch()],
        eval_data=100,
        eval_every=2,
        checkpoints=tmp_path,
        best="loss",
    ).fit(steps=3)
    kinds = [event[:2] for event in seen]
    assert kinds.index(("step", 2)) < kinds.index(("evaluation", 2)) < kinds.index(("step", 3))
    assert ("step", 3, 192, 0.001) in seen
    assert ("checkpoint", 3, True) in seen  # held-out loss falls, so the last is the best


def test_events_after_the_end_of_the_caller_are_dropped(tmp_path):
    os.mkfifo(tmp_path / "events")
    reader = os.open(tmp_path / "events", os.O_RDWR | os.O_NONBLOCK)
    pipe = EventPipe(tmp_path / "events", ["on_step"])
    pipe.on_step({"step": 1})
    assert json.loads(os.read(reader, 1000)) == ["on_step", {"step": 1}]
    os.close(reader)
    pipe.on_step({"step": 2})  # rank 0 goes on, to save a checkpoint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"batch": 2.5}, r"batch must be a whole number, got 2\.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"servers": -2}, "servers must be at least 0, got -2"),
        ({"workers": "2"}, "workers must be a whole number, got '2'"),
        ({"scale": 2}, 'scale must be text such as "1/10", got 2'),
        ({"lr": "x"}, "lr must be a number above 0, got x"),
        ({"rows_lr": 1e39}, r"rows_lr must be at most 3.403e\+38, the largest float32, got 1e\+39"),
        ({"rows_lr": 1e-60}, "rows_lr must be at least 1.401e-45, the smallest float32, got 1e-60"),
        ({"lr": 1e-46}, "lr must be at least 1.401e-45, the smallest float32, got 1e-46"),
        ({"dense_options": {"lr": 1e39}}, r"lr of the dense options must be at most 3.403e\+38"),
        ({"dense_options": {"lr": 0}}, "lr of the dense options must be a number above 0, got 0"),
        ({"dense_options": {"lr": "x"}}, "lr of the dense options must be a number above 0, got x"),
    ],
    ids=str,
)
def test_options_without_a_meaning_are_refused_as_the_command_refuses_them(options, message):
    with pytest.raises(InputError, match=message):
        Trainer("ctrdnn-8", **options)


def test_numbers_of_numpy_are_saved_in_a_checkpoint(tmp_path):
    counts = {name: np.int64(8) for name in ("batch", "seed", "day_every")}
    with Trainer("ctrdnn-8", checkpoints=tmp_path, lr=np.float32(0.01), **counts) as trainer:
        trainer.fit(steps=np.int64(2))
    assert open_checkpoint(tmp_path)[1][-1].run["batch"] == 8


@pytest.mark.parametrize("length", [{"steps": -3}, {"steps": 2.5}, {"examples": 0}], ids=str)
def test_a_run_without_a_length_is_refused(length):
    with pytest.raises(InputError, match="expected a whole number of at least 1"):
        Trainer("ctrdnn-8", batch=8).fit(**length)
