"""Gradients are summed through shared memory: the same bits for all, and nobody waits for the dead."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

from berth.errors import InputError, ServerError
from berth.train import sums
from berth.train.sums import MOST, fits, shared_sums
from berth.train.team import Team

SHAPES = [(3, 5), (7,), (1,), (4, 2)]
NUMBERS = sum(torch.Size(shape).numel() for shape in SHAPES)


def met(count, store=None):
    store = store or HashStore()
    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(shared_sums, store, "test", place, count, NUMBERS) for place in range(count)]
        return [one.result(60) for one in asked]


def drawn(place, round_, shapes=SHAPES):
    random = torch.Generator().manual_seed(1000 * round_ + place)
    return [torch.randn(shape, generator=random) * 10.0 ** (place - 2) for shape in shapes]


@pytest.fixture
def team():
    made = []

    def make(count):
        made.extend(found := met(count))
        return found

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_get_the_sum_in_the_order_of_ranks_round_after_round(team, count):
    members = team(count)

    def work(place):
        results = []
        for round_ in range(20):
            gradients = drawn(place, round_)
            told = members[place].add(gradients, [float(place), 1.0])
            results.append((gradients, told))
        return results

    with ThreadPoolExecutor(count) as pool:
        everyone = list(pool.map(work, range(count)))
    for round_ in range(20):
        expected = drawn(0, round_)
        for place in range(1, count):
            expected = [total + part for total, part in zip(expected, drawn(place, round_), strict=True)]
        for results in everyone:
            gradients, told = results[round_]
            assert all(torch.equal(mine, right) for mine, right in zip(gradients, expected, strict=True))
            assert told == [sum(range(count)), count]


def test_fewer_gradients_than_there_is_room_for_are_summed_too(team):
    one, other = team(2)

    def add(member, place):
        gradients = drawn(place, 0, SHAPES[1:3])
        assert member.add(gradients, []) == []
        return gradients

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(add, (one, other), (0, 1)))
    for mine, theirs, *parts in zip(
        *results, drawn(0, 0, SHAPES[1:3]), drawn(1, 0, SHAPES[1:3]), strict=True
    ):
        assert torch.equal(mine, parts[0] + parts[1])
        assert torch.equal(mine, theirs)


def test_gradients_of_different_weights_are_not_taken_for_each_other(team):
    """A layer that only one worker's batch has used."""
    members = team(2)

    def add(member, shapes):
        with pytest.raises(InputError, match="gradients of different weights") as error:
            member.add(drawn(0, 0, shapes), [1.0])
        return error.value.hint

    with ThreadPoolExecutor(2) as pool:
        hints = list(pool.map(add, members, (SHAPES, SHAPES[1:])))
    assert hints == ["let every step use every layer, whatever the batch holds"] * 2


@pytest.mark.parametrize(
    ("shapes", "weights"),
    [
        (((8,), (8,)), ("10", "01")),  # two layers of one shape, of which each worker used another
        (((2, 4), (4, 2)), ("1", "1")),
        (((3, 5), (15,)), ("10", "01")),
    ],
)
def test_gradients_of_different_weights_of_the_same_size_are_not_summed(team, shapes, weights):
    def add(member, shape, learned):
        with pytest.raises(InputError, match="gradients of different weights"):
            member.add([torch.ones(shape)], [1.0], learned)
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(add, team(2), shapes, weights)) == [True, True]


def test_a_worker_that_used_other_layers_is_refused_over_shared_memory(team):
    """Two layers of one shape: the first worker's step used one of them, the second's the other."""

    def step(place, sums_):
        model = nn.ModuleList([nn.Linear(3, 1, bias=False), nn.Linear(3, 1, bias=False)])
        model[place](torch.ones(1, 3)).sum().backward()
        member = Team(group=object(), _sums=sums_, _asked_for_sums=True)
        with pytest.raises(InputError, match="gradients of different weights"):
            member.exchange(model, 0.0)
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(step, range(2), team(2))) == [True, True]


def test_who_is_gone_is_named_and_not_waited_for(team):
    one, other, third = team(3)
    other.close()
    third.close()
    with pytest.raises(ServerError, match=r"gone|does not answer"):
        one.add(drawn(0, 0), [0.0])


@pytest.mark.parametrize(
    ("kind", "goes"), [(torch.float32, True), (torch.float64, False), (torch.bfloat16, False)]
)
def test_only_floats_of_the_memorys_own_size_are_summed_there(kind, goes):
    assert fits(torch.zeros(3, dtype=kind)) == goes


def test_a_stranger_of_another_user_is_not_even_heard(monkeypatch):
    monkeypatch.setattr(sums, "peer_user", lambda guest: os.getuid() + 1)
    here, there = socket.socketpair()
    with here, there:  # who would listen to the silent one would wait for ever
        assert sums._place_of(here, b"word") == -1


def test_processes_of_different_machines_do_without(monkeypatch):
    names = iter(["here", "there"])
    monkeypatch.setattr(sums, "_machine", lambda: next(names))
    assert met(2) == [None, None]


@pytest.mark.parametrize("count", [1, MOST + 1])
def test_one_alone_and_very_many_do_without(count):
    assert shared_sums(HashStore(), "test", 0, count, NUMBERS) is None


def test_a_stranger_is_handed_nothing_and_the_others_meet_all_the_same():
    store = HashStore()
    store.set("test/machine/1", sums._machine())
    with ThreadPoolExecutor(1) as pool:
        lead = pool.submit(shared_sums, store, "test", 0, 2, NUMBERS)
        address, word = store.get("test").decode().split()
        for said in (b"", b"\0" * 17, bytes.fromhex(word), bytes.fromhex(word) + b"\7"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.connect("\0" + address)
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                _, handles, _, _ = socket.recv_fds(stranger, 1, 4)
                assert handles == []
        mine = shared_sums(store, "test", 1, 2, NUMBERS)
        theirs = lead.result(60)
    for one in (mine, theirs):
        one.close()


def test_no_handle_is_left_open():
    def come_and_go():
        for member in met(3):
            member.close()

    come_and_go()
    before = len(os.listdir("/proc/self/fd"))
    come_and_go()
    assert len(os.listdir("/proc/self/fd")) == before
