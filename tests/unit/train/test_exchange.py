"""Micro-batches between stages with different numbers of replicas: every example arrives once, and learns the same."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from berth.errors import InputError
from berth.train.data import Batch
from berth.train.learner import Learner
from berth.train.process_group import ProcessGroup
from berth.train.rendezvous import RankInfo
from berth.train.stages import p2p
from berth.train.stages.cut import Layout, even_cuts
from berth.train.stages.exchange import MicroBatch, Piece, pieces
from berth.train.stages.learner import StageLearner
from berth.train.worker import NoTables
from berth.zoo.layered import Layer, LayeredModel


@pytest.mark.parametrize(("senders", "receivers"), list(itertools.product((1, 2, 3, 4, 7), repeat=2)))
def test_every_share_is_sent_once_and_receivers_get_equal_shares(senders, receivers):
    found = pieces(senders, receivers)
    for sender in range(senders):
        own = [piece for piece in found if piece.sender == sender]
        assert [piece.first for piece in own] == [0, *(piece.after for piece in own[:-1])]
        assert own[-1].after == own[-1].of
        rows = [row for piece in own for row in range(*piece.rows(11).indices(11))]
        assert rows == list(range(11))
    whole = 840  # a multiple of every share
    got = [
        sum(piece.rows(whole).stop - piece.rows(whole).start for piece in found if piece.receiver == receiver)
        for receiver in range(receivers)
    ]
    assert got == [whole * senders // receivers] * receivers


def test_equal_numbers_pass_whole_micro_batches():
    assert pieces(3, 3) == [Piece(0, 0), Piece(1, 1), Piece(2, 2)]
    batch = MicroBatch(torch.ones(()), None, 1.0, 4)
    assert batch.part(Piece(0, 0)) is batch  # not even looked at: a state without examples may pass


def test_two_replicas_feed_three():
    shares = [(piece.sender, piece.receiver, piece.first, piece.after) for piece in pieces(2, 3)]
    assert shares == [(0, 0, 0, 2), (0, 1, 2, 3), (1, 1, 0, 1), (1, 2, 1, 3)]


def test_a_part_has_its_examples_and_their_weight():
    batch = MicroBatch({"a": torch.arange(6).view(6, 1)}, torch.arange(6), 0.5, 6)
    part = batch.part(Piece(0, 1, 2, 3, 3))
    assert part.state["a"].flatten().tolist() == part.labels.tolist() == [4, 5]
    assert (part.weight, part.examples) == (pytest.approx(0.5 / 3), 2)
    assert MicroBatch(torch.empty(0, 2), None, 0.0, 0).part(Piece(0, 1, 2, 3, 3)).weight == 0.0


@pytest.mark.parametrize("state", [torch.ones(()), torch.ones(3, 2)], ids=["a scalar", "other rows"])
def test_a_tensor_without_a_row_for_each_example_is_refused_where_it_would_be_cut(state):
    with pytest.raises(InputError, match="can't be divided among replicas"):
        MicroBatch({"x": torch.ones(4, 1), "y": state}, None, 1.0, 4).part(Piece(0, 0, 0, 1, 2))


class Delivered:
    def wait(self):
        """At once."""

    def is_completed(self):
        return True


class Group(ProcessGroup):
    """The replicas of a stage in threads of this process."""

    meetings: dict

    def all_reduce(self, model, loss):
        barrier, parts = self.meetings[self.stage]
        parts[self.replica] = [weight.grad for weight in model.parameters()]
        barrier.wait(300)
        sums = [sum(part[number] for part in parts.values()) for number in range(len(parts[0]))]
        barrier.wait(300)
        for weight, total in zip(model.parameters(), sums, strict=True):
            weight.grad = total.clone()


@pytest.fixture
def sent(monkeypatch):
    mail = defaultdict(queue.Queue)

    def isend(tensor, to):
        mail[int(threading.current_thread().name), to].put(tensor.clone())
        return Delivered()

    def recv(tensor, sender):
        tensor.copy_(mail[sender, int(threading.current_thread().name)].get(timeout=900))

    monkeypatch.setattr(p2p, "dist", SimpleNamespace(isend=isend, recv=recv))
    return mail


class Widen(nn.Module):
    """Passes a mapping on: one entry that learns, one that does not, one that no later layer uses."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, state):
        wide = self.linear(state)
        return {"wide": wide.relu(), "raw": state, "unused": wide * 2}


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, state):
        return torch.cat([self.linear(torch.cat([state["wide"], state["raw"]], 1)), state["raw"]], 1)


def plain_model():
    torch.manual_seed(4)
    layers = [nn.Identity(), Widen(), Narrow(), nn.ReLU(), nn.Linear(7, 1), nn.Flatten(0)]
    named = [Layer(f"layer{number}", "layer", layer) for number, layer in enumerate(layers)]
    return LayeredModel("plain", named, None, nn.functional.mse_loss, batch=8, sample="row")


def plain_batches(examples, steps=3):
    draw = torch.Generator().manual_seed(9)
    return [
        (torch.randn(examples, 3, generator=draw), torch.randn(examples, generator=draw))
        for _ in range(steps)
    ]


def in_replicas(counts, examples, micro_batches):
    """Trains with one thread for each replica; returns models, results of the first stage, and learners, by rank."""
    layout = Layout(counts)
    meetings = {stage: (threading.Barrier(count), {}) for stage, count in enumerate(counts)}
    models, failed, results, learners = {}, [], defaultdict(list), {}

    def work(rank):
        try:
            models[rank] = model = plain_model_of[rank]
            group = Group(RankInfo(rank, layout.world_size), layout)
            group.meetings = meetings
            cut = even_cuts(len(model), len(counts))[group.stage]
            learner = learners[rank] = StageLearner(
                model, NoTables(), group, cut, micro_batches=micro_batches
            )
            for step, (inputs, labels) in enumerate(plain_batches(examples)):
                if group.stage:
                    learner.follow(step)
                    continue
                own = slice(group.replica, None, counts[0])
                batch = Batch(inputs[own], labels[own], len(labels[own]), examples)
                results[rank].append(learner.step(step, batch))
        except BaseException as error:  # noqa: BLE001 - raised by the test
            failed.append(error)

    plain_model_of = [plain_model() for _ in range(layout.world_size)]  # seeds are global, so not in threads
    threads = [
        threading.Thread(target=work, args=(rank,), name=str(rank)) for rank in range(layout.world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    if failed:
        raise failed[0]
    return layout, models, results, learners


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "micro_batches", "examples"),
    [
        ((1, 2), 2, 12),
        ((2, 1), 2, 12),
        ((2, 3), 4, 24),
        ((3, 2), 1, 7),
        ((1, 3, 2), 3, 11),
        ((3, 1, 2), 2, 12),
        ((2, 2, 2), 2, 9),
        ((2, 3), 4, 3),
        ((4, 3), 2, 1),
    ],
    ids=str,
)
def test_replicas_learn_what_one_process_learns(sent, counts, micro_batches, examples):
    """Also where some replicas have no examples of some micro-batches."""
    alone = plain_model()
    learner = Learner(alone, NoTables(), loss=alone.loss)
    expected = [
        learner.step(step, Batch(*both, examples)) for step, both in enumerate(plain_batches(examples))
    ]
    layout, models, results, learners = in_replicas(counts, examples, micro_batches)
    for step, (loss, (scores, _)) in enumerate(expected):
        parts = [results[rank][step] for rank in layout.stage_ranks(0)]
        assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-5)
        together = sorted(score for part in parts for score in part[1][0].tolist())
        assert together == pytest.approx(sorted(scores.tolist()), rel=1e-4, abs=1e-5)
    for rank, model in models.items():
        cut = even_cuts(len(model), len(counts))[layout.stage(rank)]
        prefixes = tuple(f"chain.{name}." for name in model.names[cut.first : cut.last + 1])
        for name, value in model.state_dict().items():
            if name.startswith(prefixes):
                torch.testing.assert_close(value, alone.state_dict()[name], rtol=1e-3, atol=1e-5)
    for stage in range(len(counts)):
        done = [learners[rank] for rank in layout.stage_ranks(stage)]
        assert sum(one.examples_done for one in done) == 3 * examples
        assert all(one.micro_batches_done == 3 * micro_batches for one in done)
        if examples >= 12:
            assert all(one.examples_done > 0 for one in done)
    assert all(box.empty() for box in sent.values())


def test_one_replica_per_stage_is_bit_for_bit_the_same_with_or_without_an_exchange(sent):
    """A stage of one replica cuts and joins nothing: weights equal those of gradients accumulated in one process."""
    _, models, _, _ = in_replicas((1, 1), 12, 3)
    alone = plain_model()
    optimiser = torch.optim.Adam(alone.parameters(), fused=True)
    for inputs, labels in plain_batches(12):
        for begin in (0, 4, 8):
            (alone.loss(alone(inputs[begin : begin + 4]), labels[begin : begin + 4]) * (1 / 3)).backward()
        optimiser.step()
        optimiser.zero_grad()
    for rank, cut in enumerate(even_cuts(len(alone), 2)):
        for name in alone.names[cut.first : cut.last + 1]:
            for key, value in alone.chain[name].state_dict().items():
                assert torch.equal(models[rank].chain[name].state_dict()[key], value)


def test_an_emulated_device_takes_longer_and_its_sleep_counts_as_work(monkeypatch):
    model, slept, sleep = plain_model(), [], time.sleep
    monkeypatch.setattr("berth.train.learner.time.sleep", lambda s: slept.append(s) or sleep(s))
    learner = Learner(model, NoTables(), loss=model.loss, slowdown=50.0)
    started = time.perf_counter()
    learner.step(0, Batch(*plain_batches(64)[0], 64))
    took = time.perf_counter() - started
    assert learner.busy_s == pytest.approx(sum(slept) * 50 / 49)  # 49 parts of 50 are slept
    assert 0 < sum(slept) <= took
    assert learner.busy_s <= learner.work_s[0] * 1.001
