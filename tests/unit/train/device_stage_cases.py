"""Stages of a model on the stand-in accelerator, streams, and its memory; run by test_devices.py in a process of its
own."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import nn

from berth.errors import InputError
from berth.testing.accelerator import register
from berth.train import ClickStream, Embedding, Session, TrainOptions
from berth.train.data import Share
from berth.train.devices import CPU, SideStream, hosted, to_device, to_device_at_once
from berth.train.stages.cut import Layout
from berth.train.stages.exchange import MicroBatch, StageExchange
from berth.train.stages.p2p import _describe, _read, _Reader

DEVICE = register()
STANDIN = torch.device("standin")


class Loopback:
    """A channel within this process, in the order of sending."""

    def __init__(self):
        self.messages = deque()

    def send(self, receiver, message):
        from berth.zoo.layered import tensors

        parts = iter(hosted(list(tensors(message))))
        description = _describe(message)
        flat = [part.detach().contiguous().view(-1).view(torch.uint8) for part in parts]
        padded = [torch.nn.functional.pad(part, (0, -len(part) % 64)) for part in flat]
        self.messages.append(
            (description, torch.cat(padded) if padded else torch.empty(0, dtype=torch.uint8))
        )

    def receive(self, sender):
        description, buffer = self.messages.popleft()
        return _read(description, _Reader(buffer, 0, sender))


@pytest.mark.parametrize("receivers", [1, 2])
def test_activations_cross_once_each_way_per_piece(receivers):
    """Two tensors of a state from the stand-in to `receivers` replicas on it, and their gradients back."""
    layout, channel = Layout((1, receivers)), Loopback()
    sender = StageExchange(channel, layout, 0, 0, STANDIN)
    state = {
        "rows": torch.rand(4, 3, device=STANDIN, requires_grad=True) * 2,
        "marks": torch.arange(4, device=STANDIN),
    }
    size = 4 * 3 * 4 + 4 * 8
    with DEVICE.counting() as counted:
        sender.send(MicroBatch(state, torch.ones(4), 1.0, 4))
    assert (counted.to_host.count, counted.to_host.bytes) == (receivers, size)
    assert counted.to_device.count == 0
    assert sender.copies["to_host"] == {"count": receivers, "bytes": size}
    ends = [StageExchange(channel, layout, 1, replica, STANDIN) for replica in range(receivers)]
    with DEVICE.counting() as counted:
        parts = [end.receive() for end in ends]
    assert (counted.to_device.count, counted.to_device.bytes) == (receivers, size)
    assert sum(end.copies["to_device"]["bytes"] for end in ends) == size
    assert all(part.labels.device == CPU for part in parts)
    found = torch.cat([part.state["rows"] for part in parts])
    assert torch.equal(found.detach().cpu(), state["rows"].detach().cpu())
    assert torch.equal(torch.cat([part.state["marks"] for part in parts]).cpu(), torch.arange(4))
    for part, end in zip(parts, ends, strict=True):
        (part.state["rows"] * 3).sum().backward()
        end.send_gradients([part.state["rows"].grad])
    (gradient,) = sender.receive_gradients([state["rows"]])
    assert gradient.device.type == "standin"
    assert torch.equal(gradient.cpu(), torch.full((4, 3), 3.0))
    assert sender.copies["to_device"] == {"count": receivers, "bytes": 4 * 3 * 4}


def test_a_message_of_mixed_types_arrives_in_one_copy():
    message = [torch.tensor([True, False, True]), None, torch.ones(3, dtype=torch.bfloat16), torch.arange(5)]
    with DEVICE.counting() as counted:
        there = to_device_at_once(message, STANDIN)
        back = hosted([part * 1 for part in there if part is not None and part.dtype != torch.bool])
    assert (counted.to_device.count, counted.to_host.count) == (1, 1)
    assert there[1] is None
    assert torch.equal(there[0].cpu(), message[0])
    assert all(torch.equal(one, other) for one, other in zip(back, message[2:], strict=True))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.rows = Embedding(8, name="rows")
        self.top = nn.Linear(26 * 8, 1)

    def forward(self, inputs):
        return self.top(self.rows(inputs["slots"]).flatten(1)).squeeze(1)


def test_rows_of_the_next_step_are_copied_while_this_one_trains():
    """On the side stream, before the first layer of this step; the next one copies only rows that this one changed."""
    trained = Session(Model(), ClickStream(), TrainOptions(batch=32, device="standin"))
    batches = ClickStream().batches(32, 0, Share(), 0)
    keys = [set(next(batches).inputs["slots"].flatten().tolist()) for _ in range(4)]
    steps, logs = trained.steps(4), []
    for _ in range(4):
        with DEVICE.logging() as log:
            next(steps)
        logs.append(log)
    *_, this, following = logs  # the first one finds out which inputs are keys, the second has no rows yet
    names = [issued.name for issued in this]
    copies = [number for number, name in enumerate(names) if name == "to_device"]
    (ahead,) = [number for number in copies if this[number].stream == "side"]
    assert this[ahead].bytes == len(keys[3] - keys[2]) * 8 * 4
    product = next(number for number, name in enumerate(names) if "addmm" in name)
    assert ahead < product < names.index("to_host")  # forward, then loss, gradients and scores
    assert all(issued.stream == "default" for issued in following)
    sizes = [issued.bytes for issued in following if issued.name == "to_device"]
    assert sizes[-2:] == [len(keys[3] & keys[2]) * 8 * 4, 32 * 26 * 4]  # rows; for each key, which it is


def test_a_copy_that_was_not_waited_for_is_refused():
    stream = SideStream(STANDIN)
    copy = stream.copy(torch.ones(3))
    with pytest.raises(RuntimeError, match=r"stream 'default' uses a tensor of stream 'side'.*not waited"):
        copy + 1
    stream.wait(copy)
    assert (copy + 1).sum().item() == 6


def test_a_new_stream_is_not_taken_for_one_that_is_gone():
    for _ in range(100):  # most of them get the memory of an earlier one
        stream = SideStream(STANDIN)
        copy = stream.copy(torch.ones(3))
        with pytest.raises(RuntimeError, match="not waited"):
            copy + 1
        stream.wait(copy)
        del stream, copy


def test_a_device_without_streams_copies_at_once():
    stream = SideStream(CPU)
    assert torch.equal(stream.copy(torch.ones(3)), torch.ones(3))
    stream.wait()


@pytest.mark.parametrize(("batch", "cache"), [(64, "1MiB"), (4096, None)])
def test_out_of_memory_is_one_message_with_what_to_reduce(batch, cache):
    register(memory_bytes=DEVICE.used_bytes + 400_000)
    try:
        with pytest.raises(InputError, match=r"standin is out of memory: .*Tried to allocate") as caught:
            Session(
                Model(), ClickStream(), TrainOptions(batch=batch, device="standin", device_cache=cache)
            ).run(2)
        assert "reduce --batch or --device-cache" in str(caught.value)
    finally:
        register(memory_bytes=0)
        DEVICE.memory_bytes = None


class BackwardOnly(torch.autograd.Function):
    """Needs memory in the backward pass only."""

    @staticmethod
    def forward(context, value):
        return value * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2 + torch.ones((4096, 64), device=gradient.device).sum()


class HeavyBackward(Model):
    def forward(self, inputs):
        return BackwardOnly.apply(super().forward(inputs))


def test_out_of_memory_in_a_backward_pass_is_one_message_too():
    """torch aborts the process if a tensor of Python raises there, so the stand-in reports it afterwards."""
    register(memory_bytes=DEVICE.used_bytes + 900_000)
    try:
        with pytest.raises(InputError, match=r"standin is out of memory: .*Tried to allocate 1048576 bytes"):
            Session(HeavyBackward(), ClickStream(), TrainOptions(batch=8, device="standin")).run(2)
    finally:
        register(memory_bytes=0)
        DEVICE.memory_bytes = None
    Session(Model(), ClickStream(), TrainOptions(batch=8, device="standin")).run(2)  # nothing is left over


def test_a_cache_too_small_for_a_row_and_one_without_a_device_are_refused():
    with pytest.raises(InputError, match="holds no row"):
        Session(Model(), ClickStream(), TrainOptions(batch=8, device="standin", device_cache=8))
    with pytest.raises(InputError, match="memory of an accelerator"):
        Session(Model(), ClickStream(), TrainOptions(batch=8, device_cache="1MiB"))
    assert to_device(torch.ones(1), STANDIN).device.type == "standin"
