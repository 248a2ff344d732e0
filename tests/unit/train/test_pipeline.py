"""A pipeline in threads: whatever its stages and micro-batches, it learns what one process learns."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from berth.errors import InputError, WireError
from berth.train import LocalStore, with_sparse_tables
from berth.train.checkpoint import CheckpointStore, Snapshot, Writer
from berth.train.checkpoint.inspect import load_table
from berth.train.data import Batch, ClickStream, Share
from berth.train.embedding import embeddings_of
from berth.train.learner import Learner
from berth.train.process_group import ProcessGroup
from berth.train.rendezvous import RankInfo
from berth.train.servers import RemoteStore, Secret, ServerConfig
from berth.train.servers.process import in_process_servers
from berth.train.stages import p2p
from berth.train.stages.cut import Layout, StageCut, even_cuts
from berth.train.stages.learner import StageLearner
from berth.train.tables import DecayPolicy
from berth.train.worker import NoTables
from berth.zoo import make_model

CUTS = (StageCut(0, 1), StageCut(2, 4))  # of nce: a table in each
SGD = partial(torch.optim.SGD, lr=0.1)


class Under:
    """A send that has arrived."""

    def wait(self):
        """At once."""

    def is_completed(self):
        return True


class Wires:
    """What torch's processes would send each other, between threads that are called by ranks."""

    def __init__(self):
        self.sent = defaultdict(queue.Queue)

    def rank(self):
        return int(threading.current_thread().name)

    def isend(self, tensor, to):
        self.sent[self.rank(), to].put(tensor.clone())
        return Under()

    def recv(self, tensor, sender):
        came = self.sent[sender, self.rank()].get(timeout=900)
        assert (came.shape, came.dtype) == (tensor.shape, tensor.dtype)
        tensor.copy_(came)


@pytest.fixture
def wires(monkeypatch):
    made = Wires()
    monkeypatch.setattr(p2p, "dist", SimpleNamespace(isend=made.isend, recv=made.recv))
    return made


def batches(examples, steps=3):
    return list(itertools.islice(ClickStream().batches(examples, 0, Share(), 0), steps))


def whole_model():
    return with_sparse_tables(make_model("ctrdnn-8", 5, rows=1))


def alone(examples):
    model = whole_model()
    learner = Learner(model, LocalStore(), loss=model.loss)
    reported = [learner.step(step, batch) for step, batch in enumerate(batches(examples))]
    return model, reported


def in_stages(examples, stages, micro_batches):
    """Each stage has a model of its own, of which it trains its layers."""
    models, reported, failed = [whole_model() for _ in range(stages)], [], []
    cuts, layout = even_cuts(len(models[0]), stages), Layout((1,) * stages)

    def work(rank):
        try:
            store = LocalStore() if rank == 0 else NoTables()
            process_group = ProcessGroup(RankInfo(rank, stages), layout)
            learner = StageLearner(
                models[rank], store, process_group, cuts[rank], micro_batches=micro_batches
            )
            for step, batch in enumerate(batches(examples)):
                if rank == 0:
                    reported.append(learner.step(step, batch))
                else:
                    learner.follow(step)
            assert learner.busy_s > 0
        except BaseException as error:  # noqa: BLE001 - passed to the test
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=(rank,), name=str(rank), daemon=True) for rank in range(stages)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    if failed:
        raise failed[0]
    weights = {}
    for model, cut in zip(models, cuts, strict=True):
        prefixes = tuple(f"chain.{name}." for name in model.names[cut.first : cut.last + 1])
        weights |= {name: value for name, value in model.state_dict().items() if name.startswith(prefixes)}
    return weights, reported


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "micro_batches", "examples"),
    [(1, 3, 10), (2, 1, 9), (2, 4, 10), (3, 2, 7), (2, 4, 3), (3, 3, 1)],
)
def test_stages_learn_what_one_process_learns(wires, stages, micro_batches, examples):
    """Also where a batch has fewer examples than micro-batches, as the last one of the data may."""
    model, expected = alone(examples)
    weights, reported = in_stages(examples, stages, micro_batches)
    assert [loss for loss, _ in reported] == pytest.approx([loss for loss, _ in expected], rel=1e-5)
    for (_, (scores, labels)), (_, (wanted, truth)) in zip(reported, expected, strict=True):
        assert scores.tolist() == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-5)
        assert labels.tolist() == truth.tolist()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-5)
    assert all(channel.empty() for channel in wires.sent.values())


def test_clicks_are_counted_by_the_batch_and_not_by_its_parts():
    model = with_sparse_tables(make_model("ctrdnn-8", 5, rows=1), decay=DecayPolicy())
    process_group, cut = ProcessGroup(RankInfo(0, 2), Layout((1, 1))), even_cuts(len(model), 2)[0]
    with pytest.raises(InputError, match="count clicks per batch"):
        StageLearner(model, LocalStore(), process_group, cut, micro_batches=2)


@pytest.mark.parametrize(
    "what",
    [
        torch.arange(6.0).view(2, 3),
        {"a": torch.ones(2, dtype=torch.int64), "b": [torch.empty(0, 3), (torch.tensor(2.5),)]},
        {"loss": 1.5, "name": "x", "none": None, "flag": True},
        torch.zeros(3, requires_grad=True),
        torch.arange(3, dtype=torch.bfloat16),
        [torch.ones(3, dtype=torch.bool), torch.arange(6.0).view(2, 3).t(), torch.arange(4.0)[::2][:1]],
    ],
    ids=["tensor", "nest", "plain values", "one that learns", "halves", "strides"],
)
def test_a_parcel_arrives_as_it_was_sent(wires, what):
    came = []

    def give():
        p2p.StageChannel().send(1, what)

    def take():
        came.append(p2p.StageChannel().receive(0))

    for name, work in (("0", give), ("1", take)):
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join(300)
    assert same(came[0], what)


def same(one, other):
    if isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.requires_grad == other.requires_grad
        return alike and one.shape == other.shape and torch.equal(one, other)
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
    if isinstance(other, list | tuple):
        return type(one) is type(other) and all(map(same, one, other))
    return one == other


def test_an_invalid_message_is_an_error(wires):
    wires.sent[1, 0].put(torch.tensor([0, 0]))
    found = []

    def take():
        try:
            p2p.StageChannel().receive(1)
        except WireError as error:
            found.append(str(error))

    thread = threading.Thread(target=take, name="0")
    thread.start()
    thread.join(300)
    assert found == ["invalid message from rank 1"]


def test_a_message_shorter_than_its_description_is_an_error():
    with pytest.raises(WireError, match="incomplete message from rank 3"):
        p2p._Reader(torch.empty(64, dtype=torch.uint8), 0, 3).tensor([17], torch.float32)


def test_bytes_that_were_sent_are_counted(wires):
    channel, sizes = p2p.StageChannel(), []

    def give():
        channel.send(1, torch.zeros(1000))
        sizes.append(channel.sent_bytes)
        channel.flush()

    thread = threading.Thread(target=give, name="0")
    thread.start()
    thread.join(300)
    assert 4000 < sizes[0] < 4300


def test_a_batch_has_full_weight_by_default():
    assert Batch(None, None, 3).part(1) == 1.0
    assert Batch(None, None, 3).part(4) == 0.25
    assert Batch(None, None, 0, 5).part(4) == 0.0


class Killed:
    """Two stages of nce over a server; each `run` ends as a kill would, after a checkpoint of rank 0."""

    def __init__(self, folder):
        self.folder = CheckpointStore(folder)
        self.folder.claim()
        self.writer = Writer(self.folder, notify=pytest.fail)
        self.chain = None
        self.weights = None

    def run(self, steps):
        """Train these steps, from the last checkpoint if there is one; returns the rows of all tables."""
        secret, failed = Secret.random(), []
        models = [with_sparse_tables(make_model("nce", 5, rows=1)) for _ in range(2)]
        for model in models if self.weights else ():
            model.load_state_dict(self.weights)
        learners = [None, None]
        resumed = threading.Barrier(2)

        def work(rank, address):
            try:
                store = RemoteStore([address], secret, rank=rank, workers=2)
                group = ProcessGroup(RankInfo(rank, 2), Layout((1, 1)))
                learner = learners[rank] = StageLearner(
                    models[rank], store, group, CUTS[rank], micro_batches=2, optimiser=SGD
                )
                for layer in embeddings_of(models[0]) if self.chain and rank == 0 else ():
                    for state in self.folder.states(self.chain, layer.spec_name):
                        store.load(layer.spec_name, state)
                resumed.wait(300)
                for step in steps:
                    learner.step(step, Batch(*models[0].example_batch(8, step), 8)) if rank == 0 else (
                        learner.follow(step)
                    )
            except BaseException as error:  # noqa: BLE001 - passed to the test
                failed.append(error)
                resumed.abort()

        with in_process_servers(1, secret, ServerConfig(workers=2)) as servers:
            threads = [
                threading.Thread(target=work, args=(rank, servers[0].address), name=str(rank), daemon=True)
                for rank in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(300)
            assert failed == []
            tables = {layer.spec_name: layer.spec.to_json() for layer in embeddings_of(models[0])}
            snapshot = Snapshot(steps[-1] + 1, {}, {}, {"tables": tables}, {}, {})
            self.writer.save(snapshot, learners[0].store)
            self.writer.wait()
            for learner in learners:
                learner.store.close()
        self.chain = self.folder.chain(steps[-1] + 1)
        self.weights = models[0].state_dict() | {
            name: value
            for name, value in models[1].state_dict().items()
            if not name.startswith(("chain.context", "chain.pooling"))
        }
        found = {}
        for layer in embeddings_of(models[0]):
            state = load_table(self.folder, self.chain, layer.spec).save()
            found[layer.spec_name] = state.keys.tolist(), state.records.tobytes()
        return found


def test_rows_of_later_stages_survive_a_kill(wires, tmp_path):
    whole = Killed(tmp_path / "whole").run(range(4))
    killed = Killed(tmp_path / "killed")
    half = killed.run(range(2))
    rows = killed.run(range(2, 4))
    with pytest.raises(InputError, match="step 4 lacks the rows of table 'other'"):
        next(killed.folder.states(killed.chain, "other"))
    assert rows.keys() == {"context_embedding", "candidate_embedding"}
    for name, (keys, records) in whole.items():
        assert (rows[name][0] == keys, rows[name][1] == records) == (True, True), name
        assert len(keys) > len(half[name][0]) > 0
