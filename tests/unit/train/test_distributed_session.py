"""What the processes of a training tell each other when they begin, without any process."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack

import pytest
import torch
import torch.distributed as dist

from berth.errors import InputError
from berth.train import Checkpoints, ClickStream, LocalStore
from berth.train.checkpoint import CheckpointStore, Writer
from berth.train.devices import CPU
from berth.train.distributed_session import DistributedSession
from berth.train.learner import Learner
from berth.train.options import TrainOptions
from berth.train.process_group import ProcessGroup
from berth.train.recipes import make_recipe
from berth.train.rendezvous import RankInfo
from berth.train.servers import ServerConfig
from berth.train.stages.cut import Layout, even_cuts
from berth.train.tables.tiers import TieredStore
from berth.train.worker import LaunchConfig, _open_store, worker_session


class Letters:
    """A post without processes: what is sent is taken by whoever asks next."""

    sent_bytes = 0

    def __init__(self) -> None:
        self.sent = deque()

    def send(self, to, what):
        self.sent.append(what)

    def receive(self, sender):
        return self.sent.popleft()

    def flush(self):
        """Nothing is under way."""


class Marked(ClickStream):
    """Data that needs the position to resume from."""

    reported = None

    def position(self, step):
        return {"window": step, "byte": 100 * step}

    def seek(self, position):
        self.reported = position


@pytest.fixture
def together(monkeypatch):
    monkeypatch.setattr(ProcessGroup, "wait_for_all", lambda process_group: None)
    letters = Letters()

    def session(rank, small, folder):
        model, process_group = small.Small(), ProcessGroup(RankInfo(rank, 2), Layout((2,)), channel=letters)
        return DistributedSession(
            model,
            Marked(),
            TrainOptions(batch=64, checkpoints=Checkpoints(folder)),
            process_group=process_group,
            store=LocalStore(),
            learner=lambda rows: Learner(model, rows, workers=2),
        )

    return session


def test_all_pipelines_resume_from_the_step_weights_and_position_of_rank_0(small, together, tmp_path):
    class Reported(small.Small):
        """The same training by its name."""

    Reported.__name__ = "Small"
    alone = small.Session(
        Reported(), Marked(), TrainOptions(batch=64, checkpoints=Checkpoints(tmp_path / "run", every=3))
    )
    alone.run(3)
    alone.close()
    lead = together(0, small, tmp_path / "run")
    other = together(1, small, tmp_path / "run")
    assert (lead.progress.step, other.progress.step) == (3, 3)
    assert lead.data.reported == other.data.reported == {"window": 3, "byte": 300}
    for name, weights in lead.model.state_dict().items():
        assert weights.equal(other.model.state_dict()[name])
        assert weights.equal(alone.model.state_dict()[name])
    for session in (lead, other):
        session._opened.close()


def test_pipelines_that_start_fresh_get_no_position(small, together, tmp_path):
    lead, other = (together(rank, small, tmp_path / "run") for rank in (0, 1))
    assert (other.progress.step, other.data.reported) == (0, None)
    for session in (lead, other):
        session._opened.close()


def test_a_batch_too_small_for_its_micro_batches_is_refused_before_anybody_is_met():
    made = make_recipe("ctrdnn-8", batch=6)
    config = LaunchConfig(
        TrainOptions(stages=2, micro_batches=4), Layout((2, 2)), tuple(even_cuts(len(made.model), 2))
    )
    with pytest.raises(InputError, match="3 examples of a replica can't be split into 4 micro-batches"):
        worker_session(made, config, RankInfo(0, 4))


def test_a_budget_holds_for_one_process_without_a_server_too(small, tmp_path):
    server = ServerConfig(memory_bytes=8 << 20, folder=tmp_path / "cold")
    with ExitStack() as keep:
        store = _open_store(ProcessGroup(keep=keep), [0], LaunchConfig(servers=0, server=server), CPU)
        store.open([small.Small().rows.spec])
        assert isinstance(store.table("embedding").store, TieredStore)
        store.close()
        assert (tmp_path / "cold").exists()
    assert not (tmp_path / "cold").exists()


@pytest.mark.parametrize("budget", [None, 64 << 20])
def test_tables_beyond_memory_are_written_as_they_are_read(small, tmp_path, monkeypatch, budget):
    made = make_recipe("ctrdnn-8", batch=8)
    options = TrainOptions(memory=budget, checkpoints=str(tmp_path / "run"))
    server = ServerConfig(memory_bytes=budget, folder=tmp_path / "cold")
    config = LaunchConfig(options, servers=0, server=server)
    written = []
    save = Writer.save
    monkeypatch.setattr(
        Writer, "save", lambda writer, *reported: written.append(writer._streamed) or save(writer, *reported)
    )
    session = worker_session(made, config, RankInfo(), notify=lambda text: None)
    session.run(1)
    session.close()
    assert written == [budget is not None]
    assert CheckpointStore(tmp_path / "run").steps() == [1]


@pytest.fixture
def gloo():
    """Torch's processes, of which there is one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ProcessGroup(RankInfo(0, 2), Layout((2,)), store=dist.HashStore(), group=dist.group.WORLD)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gradients_flags_and_the_loss_travel_together(gloo, kind):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)).to(kind)
    model(torch.ones(1, 2, dtype=kind)).sum().backward()
    model[0].bias.grad = None  # an unused gradient is not sent
    before = [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()]
    gloo.flags = (1.0, 0.0)
    gloo.all_reduce(model, 0.5)
    assert gloo.step_sums == [1.0, 0.0, 0.5]
    for weight, was in zip(model.parameters(), before, strict=True):
        assert (weight.grad is None) == (was is None)
        assert was is None or torch.equal(weight.grad, was)


def test_in_a_pipeline_flags_travel_alone(gloo):
    gloo.layout = Layout((1, 1))
    gloo.all_reduce(torch.nn.Linear(2, 1), 0.5)  # no gradients, nothing to tell
    assert gloo.step_sums is None
    assert gloo.agree([1.0, 0.25]) == [1.0, 0.25]
    gloo.wait_for_all()
    gloo.leave()
    assert not dist.is_initialized()


def test_a_single_process_agrees_with_itself():
    process_group = ProcessGroup()
    process_group.all_reduce(torch.nn.Linear(2, 1), 0.5)
    assert (process_group.step_sums, process_group.agree([2.0]), process_group.is_main) == (None, [2.0], True)
    process_group.wait_for_all()
    process_group.leave()
