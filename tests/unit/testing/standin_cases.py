"""What the stand-in accelerator promises; run by test_accelerator.py."""

from __future__ import annotations

import io
import time

import pytest
import torch
from torch import nn

from berth.errors import InputError
from berth.testing.accelerator import register

DEVICE = register()


@pytest.fixture(autouse=True)
def full_speed():
    yield
    register()


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4), nn.LogSoftmax(1)
    )


def train(device, make, steps=5, made=None):
    made = made or model().to(device)
    optimiser = make(made.parameters())
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        inputs, labels = torch.randn(32, 8), torch.randint(4, (32,))
        loss = nn.functional.nll_loss(made(inputs.to(device)), labels.to(device))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses, made, optimiser


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.Adam(weights, fused=True),
        lambda weights: torch.optim.Adam(weights, foreach=False),
        lambda weights: torch.optim.Adagrad(weights, lr=0.05),
        lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    ],
    ids=["fused Adam", "Adam", "AdaGrad", "SGD"],
)
def test_training_equals_that_of_the_cpu_bit_for_bit(make):
    expected, on_cpu, _ = train("cpu", make)
    losses, on_device, optimiser = train("standin", make)
    assert all(weight.device.type == "standin" for weight in on_device.parameters())
    assert losses == expected
    for own, other in zip(on_device.state_dict().values(), on_cpu.state_dict().values(), strict=True):
        assert torch.equal(own.cpu(), other)
    moments = [value for state in optimiser.state.values() for name, value in state.items() if name != "step"]
    assert all(value.device.type == "standin" for value in moments)


def test_a_state_saved_on_the_device_loads_on_the_cpu_and_back():
    def make(weights):
        return torch.optim.Adam(weights, fused=True)

    _, on_device, optimiser = train("standin", make)
    file = io.BytesIO()
    torch.save({name: value.cpu() for name, value in on_device.state_dict().items()}, file)
    file.seek(0)
    other = model()
    other.load_state_dict(torch.load(file, weights_only=True))
    state = optimiser.state_dict()
    on_cpu = make(other.parameters())
    on_cpu.load_state_dict(state)
    assert all(value["exp_avg"].device.type == "cpu" for value in on_cpu.state.values())
    again = model().to("standin")
    again.load_state_dict(other.state_dict())
    for own, first in zip(again.parameters(), on_device.parameters(), strict=True):
        assert torch.equal(own, first)


def test_tensors_of_two_devices_are_refused_as_on_a_gpu():
    ours, theirs = torch.ones(3, device="standin"), torch.ones(3)
    both = r"Expected all tensors to be on the same device, .* standin:0 and cpu"
    for operation in (torch.add, torch.dot, lambda a, b: torch.cat([a, b]), lambda a, b: a.mul_(b)):
        with pytest.raises(RuntimeError, match=both):
            operation(ours, theirs)
        with pytest.raises(RuntimeError, match=both):
            operation(theirs, ours)
    with pytest.raises(RuntimeError, match=both):
        nn.Linear(3, 3)(ours)
    with pytest.raises(RuntimeError, match=both):
        ours.index_select(0, torch.tensor([1]))
    with pytest.raises(RuntimeError, match="numpy"):
        ours.numpy()
    assert (ours + torch.tensor(2.0)).cpu().tolist() == [3, 3, 3]  # a number is not a transfer


def test_host_memory_is_not_that_of_the_device():
    source = torch.zeros(3)
    ours = source.to("standin")
    source.add_(1)
    back = ours.cpu()
    back.add_(5)
    assert ours.cpu().tolist() == [0, 0, 0]
    ours[1:].fill_(7)  # a view is
    assert ours.cpu().tolist() == [0, 7, 7]


def test_copies_are_counted_each_way_and_nothing_else_is():
    host = torch.ones(4, 2)
    with DEVICE.counting() as counted:
        ours = host.to("standin")  # 32 bytes
        ours.copy_(host)  # 32
        float((ours * 2).sum())  # 4 back
        ours.clone().t().contiguous()
        ours.to("cpu", torch.float64)  # 32 back
        host.copy_(ours)  # 32 back
        ours[torch.tensor([0, 1])]  # 16: indices, as CUDA takes them
    assert (counted.to_device.count, counted.to_device.bytes) == (3, 80)
    assert (counted.to_host.count, counted.to_host.bytes) == (3, 68)
    assert counted.operations > 5


def test_a_slower_device_really_waits():
    times = []
    for speed in (1.0, 0.2):
        register(speed)
        work = torch.ones(400, 400, device="standin")
        with DEVICE.counting() as counted:
            begun, cpu = time.perf_counter(), time.thread_time()
            for _ in range(20):
                work @ work
            times.append((time.perf_counter() - begun, time.thread_time() - cpu, counted.device_s))
    (_, cpu, device), (slow_wall, _, slow_device) = times
    assert device <= cpu
    assert slow_wall >= 0.9 * slow_device  # what it claims to have taken has passed


def test_a_faster_device_is_accounted_on_its_own_clock_only():
    work = torch.ones(300, 300, device="standin")
    register(10.0)
    with DEVICE.counting() as counted:
        cpu = time.thread_time()
        for _ in range(20):
            work @ work
        cpu = time.thread_time() - cpu
    assert 0 < counted.device_s < cpu / 5


def test_a_speed_of_nothing_is_refused():
    with pytest.raises(InputError, match="must be above 0"):
        register(0.0)


def test_random_numbers_are_those_of_the_cpu_generator():
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4, device="standin").cpu(), expected)
    generator = torch.Generator().manual_seed(5)
    assert torch.equal(torch.rand(4, device="standin", generator=generator).cpu(), expected)


def test_tensors_are_made_on_the_device():
    with DEVICE.counting() as counted:
        made = [
            torch.arange(5, device="standin"),
            torch.linspace(0, 1, 3, device="standin"),
            torch.eye(2, device="standin"),
            torch.full((2,), 3.0, device="standin"),
            torch.randperm(4, device="standin"),
            torch.tril_indices(3, 3, device="standin"),
        ]
    assert counted.to_device.count == 0
    assert made[0].cpu().tolist() == [0, 1, 2, 3, 4]
    assert made[1].cpu().tolist() == [0, 0.5, 1]
    assert all(tensor.device.type == "standin" for tensor in made)
    assert torch.tensor([1, 2], device="standin").cpu().tolist() == [1, 2]


def test_an_operation_that_changes_a_shape_in_place_is_refused():
    with pytest.raises(NotImplementedError, match="changes the shape"):
        torch.ones(2, 3, device="standin").t_()
