"""Gradients are summed through shared memory: the same bits for all, and no rank waits for one that has ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

from berth.errors import InputError, ServerError
from berth.train import shm_allreduce
from berth.train.process_group import ProcessGroup
from berth.train.shm_allreduce import MAX_PROCESSES, connect_shm_allreduce, is_supported

SHAPES = [(3, 5), (7,), (1,), (4, 2)]
NUMBERS = sum(torch.Size(shape).numel() for shape in SHAPES)


def met(count, store=None):
    store = store or HashStore()
    with ThreadPoolExecutor(count) as pool:
        asked = [
            pool.submit(connect_shm_allreduce, store, "test", rank, count, NUMBERS) for rank in range(count)
        ]
        return [one.result(60) for one in asked]


def drawn(rank, round_, shapes=SHAPES):
    random = torch.Generator().manual_seed(1000 * round_ + rank)
    return [torch.randn(shape, generator=random) * 10.0 ** (rank - 2) for shape in shapes]


@pytest.fixture
def process_group():
    made = []

    def make(count):
        made.extend(found := met(count))
        return found

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_get_the_sum_in_the_order_of_ranks_round_after_round(process_group, count):
    members = process_group(count)

    def work(rank):
        results = []
        for round_ in range(20):
            gradients = drawn(rank, round_)
            reported = members[rank].all_reduce(gradients, [float(rank), 1.0])
            results.append((gradients, reported))
        return results

    with ThreadPoolExecutor(count) as pool:
        everyone = list(pool.map(work, range(count)))
    for round_ in range(20):
        expected = drawn(0, round_)
        for rank in range(1, count):
            expected = [total + part for total, part in zip(expected, drawn(rank, round_), strict=True)]
        for results in everyone:
            gradients, reported = results[round_]
            assert all(torch.equal(mine, right) for mine, right in zip(gradients, expected, strict=True))
            assert reported == [sum(range(count)), count]


def test_fewer_gradients_than_there_is_room_for_are_summed_too(process_group):
    one, other = process_group(2)

    def all_reduce(reducer, rank):
        gradients = drawn(rank, 0, SHAPES[1:3])
        assert reducer.all_reduce(gradients, []) == []
        return gradients

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(all_reduce, (one, other), (0, 1)))
    for mine, theirs, *parts in zip(
        *results, drawn(0, 0, SHAPES[1:3]), drawn(1, 0, SHAPES[1:3]), strict=True
    ):
        assert torch.equal(mine, parts[0] + parts[1])
        assert torch.equal(mine, theirs)


def test_gradients_of_different_weights_are_not_taken_for_each_other(process_group):
    """A layer that only one worker's batch has used."""
    members = process_group(2)

    def all_reduce(reducer, shapes):
        with pytest.raises(InputError, match="gradients for different weights") as error:
            reducer.all_reduce(drawn(0, 0, shapes), [1.0])
        return error.value.hint

    with ThreadPoolExecutor(2) as pool:
        hints = list(pool.map(all_reduce, members, (SHAPES, SHAPES[1:])))
    assert hints == ["make every step use every layer, whatever the batch contains"] * 2


@pytest.mark.parametrize(
    ("shapes", "weights"),
    [
        (((8,), (8,)), ("10", "01")),  # two layers of one shape, of which each worker used another
        (((2, 4), (4, 2)), ("1", "1")),
        (((3, 5), (15,)), ("10", "01")),
    ],
)
def test_gradients_of_different_weights_of_the_same_size_are_not_summed(process_group, shapes, weights):
    def all_reduce(reducer, shape, learned):
        with pytest.raises(InputError, match="gradients for different weights"):
            reducer.all_reduce([torch.ones(shape)], [1.0], learned)
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(all_reduce, process_group(2), shapes, weights)) == [True, True]


OVER_GLOO = """
import sys
import torch, torch.distributed as dist
from berth.errors import InputError
from berth.train.process_group import ProcessGroup

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
model = torch.nn.ModuleList([torch.nn.Linear(3, 1, bias=False), torch.nn.Linear(3, 1, bias=False)])
group = ProcessGroup(group=dist.group.WORLD, _shm_tried=True)
model[0](torch.ones(1, 3)).sum().backward()
group.all_reduce(model, 1.0)
print(model[0].weight.grad.tolist(), group.step_sums)
model[rank](torch.ones(1, 3)).sum().backward()
try:
    group.all_reduce(model, 1.0)
except InputError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_worker_that_used_other_layers_is_refused_over_gloo(tmp_path):
    command = [sys.executable, "-c", OVER_GLOO]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for reported in [process.communicate(timeout=600)[0] for process in ranks]:
        assert reported.startswith("[[2.0, 2.0, 2.0]] [2.0]\nworkers have gradients for different weights")


def test_a_worker_that_used_other_layers_is_refused_over_shared_memory(process_group):
    """Two layers of one shape: the first worker's step used one of them, the second's the other."""

    def step(rank, sums_):
        model = nn.ModuleList([nn.Linear(3, 1, bias=False), nn.Linear(3, 1, bias=False)])
        model[rank](torch.ones(1, 3)).sum().backward()
        reducer = ProcessGroup(group=object(), _shm=sums_, _shm_tried=True)
        with pytest.raises(InputError, match="gradients for different weights"):
            reducer.all_reduce(model, 0.0)
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(step, range(2), process_group(2))) == [True, True]


def test_a_lost_worker_is_named_and_not_waited_for(process_group):
    one, other, third = process_group(3)
    other.close()
    third.close()
    with pytest.raises(ServerError, match=r"has ended|does not respond"):
        one.all_reduce(drawn(0, 0), [0.0])


@pytest.mark.parametrize(
    ("kind", "goes"), [(torch.float32, True), (torch.float64, False), (torch.bfloat16, False)]
)
def test_only_floats_of_the_memorys_own_size_are_summed_there(kind, goes):
    assert is_supported(torch.zeros(3, dtype=kind)) == goes


def test_a_stranger_of_another_user_is_not_even_heard(monkeypatch):
    monkeypatch.setattr(shm_allreduce, "peer_user", lambda peer_socket: os.getuid() + 1)
    here, there = socket.socketpair()
    with here, there:  # a reader of the silent one would wait indefinitely
        assert shm_allreduce._peer_rank(here, b"word") == -1


def test_processes_of_different_machines_do_without(monkeypatch):
    names = iter(["here", "there"])
    monkeypatch.setattr(shm_allreduce, "_machine", lambda: next(names))
    assert met(2) == [None, None]


@pytest.mark.parametrize("count", [1, MAX_PROCESSES + 1])
def test_one_alone_and_very_many_do_without(count):
    assert connect_shm_allreduce(HashStore(), "test", 0, count, NUMBERS) is None


def test_a_stranger_is_handed_nothing_and_the_others_meet_all_the_same():
    store = HashStore()
    store.set("test/machine/1", shm_allreduce._machine())
    with ThreadPoolExecutor(1) as pool:
        lead = pool.submit(connect_shm_allreduce, store, "test", 0, 2, NUMBERS)
        address, token = store.get("test").decode().split()
        for step_sums in (b"", b"\0" * 17, bytes.fromhex(token), bytes.fromhex(token) + b"\7"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.connect("\0" + address)
                stranger.sendall(step_sums)
                stranger.shutdown(socket.SHUT_WR)
                _, handles, _, _ = socket.recv_fds(stranger, 1, 4)
                assert handles == []
        mine = connect_shm_allreduce(store, "test", 1, 2, NUMBERS)
        theirs = lead.result(60)
    for one in (mine, theirs):
        one.close()


def test_no_handle_is_left_open():
    def come_and_go():
        for reducer in met(3):
            reducer.close()

    come_and_go()
    before = len(os.listdir("/proc/self/fd"))
    come_and_go()
    assert len(os.listdir("/proc/self/fd")) == before
