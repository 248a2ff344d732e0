"""Training on the stand-in accelerator; run by test_devices.py in a process of its own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import berth.train as bt
from berth.errors import InputError
from berth.testing.accelerator import register
from berth.train import Checkpoints, ClickStream, DecayPolicy, Embedding, Session, TrainOptions, slot_keys
from berth.train.data import Share
from berth.train.learner import click_loss
from berth.train.process_group import ProcessGroup
from berth.train.recipes import make_recipe
from berth.train.rendezvous import RankInfo
from berth.train.stages.cut import Layout
from berth.train.tables.state import arrays_of

DEVICE = register()
BATCH, STEPS = 64, 6


class Own(nn.Module):
    """With dropout and a buffer, and shows and clicks of rows."""

    def __init__(self, decay=None):
        super().__init__()
        torch.manual_seed(3)
        self.rows = Embedding(4, decay=decay)
        self.top = nn.Sequential(nn.Linear(26 * 4 + 13, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("scale", torch.full((13,), 0.5))

    def forward(self, inputs):
        rows = self.rows(inputs["slots"]).flatten(1)
        return self.top(torch.cat([rows, inputs["dense"] * self.scale], dim=1)).squeeze(1)


def session(made, device, data=None, **options):
    return Session(made, data, TrainOptions(batch=BATCH, device=device, **options))


def made(name):
    if name == "own":
        return Own(), ClickStream()
    recipe = make_recipe(name)
    return recipe.model, recipe.data


def state(trained):
    """Everything that a step changes: weights, optimiser and rows."""
    arrays, _ = trained._dense()
    parts = enumerate(trained.store.save())
    tables = {
        (name, number, column): values
        for number, (name, part) in parts
        for column, values in arrays_of(part).items()
    }
    assert sum(len(values) for (_, _, column), values in tables.items() if column == "keys") > 100
    return arrays, tables


def assert_same(one, other):
    for ours, theirs in zip(one, other, strict=True):
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            assert np.array_equal(np.asarray(values), np.asarray(theirs[name])), name


@pytest.mark.parametrize("name", ["ctrdnn-8", "dlrm", "dcn-v2", "deepfm", "wide-deep", "mmoe", "nce", "own"])
def test_training_on_the_device_equals_that_on_the_cpu(name):
    ended = {}
    for device in ("cpu", "standin"):
        model, data = made(name)
        trained = session(model, device, data)
        losses = trained.run(STEPS).losses
        assert {weight.device.type for weight in model.parameters()} == {device}
        assert {buffer.device.type for buffer in model.buffers()} <= {device}
        moments = [value for weight in trained.learner.optimiser.state.values() for value in weight.values()]
        assert {value.device.type for value in moments} == {device}
        ended[device] = losses, trained.progress.window.arrays()["scores"].tolist(), state(trained)
    assert ended["cpu"][:2] == ended["standin"][:2]
    assert len(ended["cpu"][0]) == STEPS
    assert_same(ended["cpu"][2], ended["standin"][2])


def keys_of_steps(name, steps):
    """The distinct keys and the number of keys of each step, by table: those that its layer gets on the CPU."""
    model, data = made(name)
    trained = session(model, "cpu", data)
    found = {layer.spec_name: (layer.dim, []) for layer in trained.learner.embeddings}
    for layer in trained.learner.embeddings:
        seen = found[layer.spec_name][1]
        layer.register_forward_pre_hook(
            lambda _, keys, seen=seen: seen.append((set(keys[0].flatten().tolist()), keys[0].numel()))
        )
    trained.run(steps)
    return found


def expected_copies(name, steps, on_device):
    """(count, bytes) to the device and to the host of each step, without a cache.

    The first step finds out which inputs are keys, so the second one is the first to copy rows ahead; a table in
    `on_device`, whose keys are computed there, never does. The last step has no next one.
    """
    tables = keys_of_steps(name, steps)
    for step in range(steps):
        up = [BATCH * 26 * 8, BATCH * 13 * 4, BATCH * 8]  # keys, numbers and labels
        down = [4, BATCH * 4]  # loss and scores
        for table, (dim, of_step) in tables.items():
            row, (now, count) = 4 * dim, of_step[step]
            is_known = table not in on_device
            here = now & of_step[step - 1][0] if is_known and step > 1 else now  # others were copied ahead
            ahead = of_step[step + 1][0] - now if is_known and 0 < step < steps - 1 else ()
            up += [row * len(here), 4 * count, row * len(ahead)]  # with the place of each key's row
            # gradients of distinct rows; computed keys
            down += [row * len(now), 0 if is_known else 8 * count]
        yield tuple((sum(size > 0 for size in sizes), sum(sizes)) for sizes in (up, down))


@pytest.mark.parametrize(
    ("name", "on_device", "to_device", "to_host"),
    [
        # keys, numbers, labels, rows and places, rows of the next step; gradients of rows, loss and scores
        ("ctrdnn-8", (), 6, 3),
        ("deepfm", (), 9, 4),  # a second table
        ("wide-deep", ("wide",), 8, 5),  # whose keys are computed on the device, so they are not known before
    ],
)
def test_a_step_copies_batch_rows_and_results_and_no_weights(name, on_device, to_device, to_host):
    expected = list(expected_copies(name, STEPS, on_device))
    model, data = made(name)
    trained = session(model, "standin", data)
    steps, copies = trained.steps(STEPS), []
    for _ in range(STEPS):
        with DEVICE.counting() as counted:
            next(steps)
        copies.append(tuple((part.count, part.bytes) for part in (counted.to_device, counted.to_host)))
    assert copies == expected
    assert {(up, down) for (up, _), (down, _) in copies[1:-1]} == {(to_device, to_host)}
    assert trained.learner.tables_without_prefetch == list(on_device)


@pytest.mark.parametrize(("first", "second"), [("standin", "cpu"), ("cpu", "standin")])
def test_a_checkpoint_of_one_device_resumes_on_the_other_bit_for_bit(first, second, tmp_path):
    whole = session(Own(), "cpu")
    expected = whole.run(2 * STEPS).losses
    every = Checkpoints(tmp_path, every=STEPS)
    begun = session(Own(), first, checkpoints=every)
    losses = begun.run(STEPS).losses
    begun.close()
    resumed = session(Own(), second, checkpoints=every)
    assert resumed.resumed_from == STEPS
    assert losses + resumed.run(2 * STEPS).losses == expected
    assert {weight.device.type for weight in resumed.model.parameters()} == {second}
    assert_same(state(whole), state(resumed))
    resumed.close()


class Careless(nn.Module):
    def forward(self, x):
        return x * torch.linspace(0, 1, x.shape[1])


def test_a_layer_that_creates_a_cpu_tensor_is_refused_by_name():
    recipe = make_recipe("ctrdnn-8")
    recipe.model.chain["norm"] = Careless()
    with pytest.raises(InputError, match=r"layer 'norm' mixes devices: .*standin:0 and cpu") as caught:
        session(recipe.model, "standin", recipe.data).run(1)
    assert "device_cases.py" in caught.value.where
    assert "device=x.device" in str(caught.value)
    recipe = make_recipe("ctrdnn-8")
    recipe.model.chain["norm"] = Careless()
    session(recipe.model, "cpu", recipe.data).run(1)


def test_a_loss_that_mixes_devices_is_refused_too():
    def loss(output, labels):
        return click_loss(output, labels) * torch.ones(2).sum().reshape(1)

    with pytest.raises(InputError, match="the loss mixes devices"):
        Session(Own(), options=TrainOptions(batch=8, device="standin"), loss=loss).run(1)


def test_other_errors_of_a_model_are_its_own():
    model = Own()
    model.top[0] = nn.Linear(3, 8)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        session(model, "standin").run(1)


def test_shows_and_clicks_are_counted_from_host_labels():
    ended = []
    for device in ("cpu", "standin"):
        trained = session(Own(DecayPolicy()), device, day_every=2 * BATCH)
        ended.append((trained.run(STEPS).losses, state(trained)))
    assert ended[0][0] == ended[1][0]
    assert_same(ended[0][1], ended[1][1])


def test_an_optimiser_of_other_weights_is_refused():
    model = Own()
    with pytest.raises(InputError, match="not those of the model"):
        Session(
            model,
            options=TrainOptions(batch=8, device="standin"),
            optimiser=torch.optim.SGD(model.parameters(), lr=0.1),
        )
    model = Own().to("standin")
    options = TrainOptions(batch=8, device="standin")
    trained = Session(model, options=options, optimiser=torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.top[0].weight.cpu()
    trained.run(1)
    assert not torch.equal(model.top[0].weight.cpu(), before)


def test_the_trained_model_predicts_on_its_device():
    outputs = []
    for device in ("cpu", "standin"):
        model = bt.fit(Own(), steps=3, batch=BATCH, device=device).model
        keys, dense, _, _ = ClickStream(2).draw(0, 4)
        inputs = {"slots": torch.from_numpy(keys)[:, :, None], "dense": torch.from_numpy(dense)}
        with torch.no_grad():
            output = model({name: part.to(device) for name, part in inputs.items()})
        assert output.device.type == device
        outputs.append(output.cpu().tolist())
    assert outputs[0] == outputs[1]


def test_a_row_for_a_key_on_the_device_is_on_the_device():
    rows = Embedding(3)
    keys = slot_keys(torch.arange(8, device="standin").reshape(4, 2))
    assert torch.equal(keys.cpu(), slot_keys(torch.arange(8).reshape(4, 2)))
    found = rows(keys)
    assert (found.device.type, found.shape) == ("standin", (4, 2, 3))
    found.square().sum().backward()
    before = found.detach().cpu()
    rows.push()
    assert not torch.equal(rows(keys).detach().cpu(), before)


def test_gradients_cross_to_the_host_once_each_way():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = ProcessGroup(RankInfo(0, 2), Layout((2,)), store=dist.HashStore(), group=dist.group.WORLD)
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))).to("standin")
        model(torch.ones(2, 3, device="standin")).sum().backward()
        model[0].bias.grad = None
        before = [None if weight.grad is None else weight.grad.cpu() for weight in model.parameters()]
        group.flags = (1.0, 0.0)
        group.all_reduce(model, 0.5)  # agrees on shared memory the first time
        with DEVICE.counting() as counted:
            group.all_reduce(model, 0.5)
        assert group.step_sums == [1.0, 0.0, 0.5]
        assert (counted.to_device.count, counted.to_host.count) == (1, 1)
        for weight, was in zip(model.parameters(), before, strict=True):
            assert (weight.grad is None) == (was is None)
            assert was is None or torch.equal(weight.grad.cpu(), was)
    finally:
        dist.destroy_process_group()


def test_the_example_of_the_guide_runs():
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "devices.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(block, "devices.md", "exec"), scope)
    scope["test_my_model_trains_on_a_device"]()


def test_what_exists_here_is_listed():
    with pytest.raises(
        InputError, match=r"--device standin:1: there is no such device here\s+here: cpu, standin"
    ):
        session(Own(), "standin:1")
    assert session(Own(), "standin:0").device == torch.device("standin", 0)


def test_bf16_needs_a_device_that_supports_it():
    with pytest.raises(InputError, match="--bf16: standin does not support it"):
        session(Own(), "standin", bf16=True)


def test_a_model_that_was_trained_in_other_processes_is_evaluated_on_the_device(tmp_path):
    with bt.Trainer(Own(), batch=BATCH, checkpoints=tmp_path) as trained:
        trained.fit(steps=STEPS)
        expected = trained.evaluate(100)
    other = bt.Trainer(Own(), batch=BATCH, checkpoints=tmp_path, workers=2, device="standin")
    other._saved_step = STEPS  # as after fit
    assert other.evaluate(100).auc == pytest.approx(expected.auc)
    assert next(other.model.parameters()).device.type == "standin"
    inputs = next(ClickStream().batches(10, 0, Share(), 0)).inputs
    assert other.predict(inputs).shape == (10,)
