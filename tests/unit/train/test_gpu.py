"""Training on a real accelerator: `make test-gpu`, on a machine that has one. Left out of every other target.

No test of this file has run on a GPU yet: berth is developed on machines without one.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from berth.errors import InputError
from berth.train import Checkpoints, Embedding, Session, TrainOptions
from berth.train.device_store import DeviceCachedStore
from berth.train.devices import SideStream, staging
from berth.train.local import LocalStore
from berth.train.recipes import make_recipe
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, Optimiser

pytestmark = pytest.mark.gpu
KINDS = ("cuda", "xpu", "mps")


@pytest.fixture(params=KINDS)
def device(request):
    module = getattr(torch, request.param)
    if not module.is_available():
        pytest.skip(f"no {request.param} device here")
    return request.param


def run(name, device, steps=20, **options):
    recipe = make_recipe(name)
    session = Session(recipe.model, recipe.data, TrainOptions(batch=256, device=device, **options))
    losses = session.run(steps).losses
    session.close(keep_rows=True)
    return losses, session


@pytest.mark.parametrize("name", ["ctrdnn-8", "dlrm", "dcn-v2", "deepfm", "wide-deep", "mmoe", "nce"])
def test_training_on_the_device_is_close_to_that_on_the_cpu(name, device):
    expected, _ = run(name, "cpu")
    losses, session = run(name, device)
    assert losses == pytest.approx(expected, rel=1e-2)
    assert losses[0] == pytest.approx(expected[0], rel=1e-4)
    assert {weight.device.type for weight in session.model.parameters()} == {device}


def test_a_checkpoint_of_the_device_resumes_on_the_cpu_and_back(device, tmp_path):
    expected, _ = run("ctrdnn-8", "cpu", steps=30)
    for place, steps in ((device, 10), ("cpu", 20), (device, 30)):
        losses, session = run("ctrdnn-8", place, steps, checkpoints=Checkpoints(tmp_path, every=10))
        assert session.progress.step == steps
        assert losses == pytest.approx(expected[steps - 10 : steps], rel=2e-2)


def test_bf16_is_close_to_float32(device):
    expected, _ = run("ctrdnn-8", device)
    losses, _ = run("ctrdnn-8", device, bf16=True)
    assert losses == pytest.approx(expected, abs=0.05)
    assert losses != expected


def test_dropout_of_a_resumed_run_draws_the_same_numbers(device, tmp_path):
    def session(folder):
        torch.manual_seed(0)
        rows = Embedding(4)
        top = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(26 * 4, 1))

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.rows, self.top = rows, top

            def forward(self, inputs):
                return self.top(self.rows(inputs["slots"]).flatten(1)).squeeze(1)

        options = TrainOptions(batch=64, device=device, checkpoints=Checkpoints(folder, every=5))
        return Session(Model(), options=options)

    whole = session(tmp_path / "whole").run(10).losses
    begun = session(tmp_path / "cut")
    losses = begun.run(5).losses
    begun.close()
    assert losses + session(tmp_path / "cut").run(10).losses == pytest.approx(whole, rel=1e-4)


def test_rows_are_staged_in_page_locked_memory(device):
    if device == "mps":
        pytest.skip("mps shares memory with the CPU: nothing is page-locked")
    assert staging((4, 2), torch.device(device)).is_pinned()


def test_a_layer_that_creates_a_cpu_tensor_is_refused_by_name(device):
    class Careless(torch.nn.Module):
        def forward(self, x):
            return x * torch.linspace(0, 1, x.shape[1])

    recipe = make_recipe("ctrdnn-8")
    recipe.model.chain["norm"] = Careless()
    session = Session(recipe.model, recipe.data, TrainOptions(batch=16, device=device))
    with pytest.raises(Exception, match="layer 'norm' mixes devices"):
        session.run(1)


def test_two_workers_all_reduce_on_their_devices(device):
    module = getattr(torch, device)
    if device == "mps" or module.device_count() < 2:
        pytest.skip(f"fewer than two {device} devices here")
    losses = []
    for workers in ("1", "2"):
        command = [
            sys.executable,
            "-m",
            "berth",
            "train",
            "ctrdnn-8",
            "--batch",
            "256",
            "--steps",
            "20",
            "--json",
        ]
        ended = subprocess.run(
            [*command, "--device", device, "--workers", workers], capture_output=True, text=True, check=True
        )
        losses.append(json.loads(ended.stdout)["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


@pytest.mark.parametrize("rows", ["64KiB", "64MiB"])
def test_a_cache_of_rows_on_the_device_learns_the_same(device, rows):
    expected, _ = run("ctrdnn-8", device)
    losses, session = run("ctrdnn-8", device, device_cache=rows)
    assert losses == pytest.approx(expected, rel=1e-3)
    (cache,) = session.store.statistics()["device_cache"].values()
    assert cache["hits"] > 0
    assert cache["prefetched"] > 0


@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
def test_rows_are_updated_on_the_device_as_in_host_memory(device, kind):
    there, generator = torch.device(device), np.random.default_rng(1)
    spec = TableSpec("rows", 16, Optimiser(kind), Initialiser())
    stores = [LocalStore(), DeviceCachedStore(there, 1 << 20)]
    keys = np.arange(500, dtype=np.uint64)
    for store in stores:
        store.open([spec])
    for _ in range(10):
        gradients = generator.normal(0, 0.1, (500, 16)).astype(np.float32)
        stores[0].pull("rows", keys)
        stores[0].push("rows", keys, gradients)
        stores[1].pull_to_device("rows", keys)
        stores[1].push_from_device("rows", keys, torch.from_numpy(gradients).to(there))
    assert stores[1].statistics()["device_cache"]["rows"]["hits"] == 500 * 9
    np.testing.assert_allclose(stores[1].peek("rows", keys), stores[0].peek("rows", keys), rtol=1e-6)


def test_a_copy_on_a_side_stream_is_complete_after_waiting(device):
    there = torch.device(device)
    stream = SideStream(there)
    hosts = [staging((1 << 20,), there).fill_(number) for number in range(8)]
    copies = [stream.copy(host) for host in hosts]
    stream.wait(*copies)
    assert [float(copy.sum()) for copy in copies] == [number * float(1 << 20) for number in range(8)]


def test_stages_on_the_device_learn_the_same(device):
    losses = []
    for place in ("cpu", device):
        command = [sys.executable, "-m", "berth", "train", "ctrdnn-8", "--batch", "256", "--steps", "20"]
        ended = subprocess.run(
            [*command, "--json", "--stages", "2", "--device", place],
            capture_output=True,
            text=True,
            check=True,
        )
        losses.append(json.loads(ended.stdout)["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_out_of_memory_is_one_message(device):
    if device == "mps":
        pytest.skip("mps shares memory with the CPU")
    recipe = make_recipe("ctrdnn-8")
    with pytest.raises(InputError, match="is out of memory"):
        Session(recipe.model, recipe.data, TrainOptions(batch=256, device=device, device_cache="64TiB"))
