"""What the processes of a training tell each other when they begin, without any process."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack

import pytest
import torch
import torch.distributed as dist

from berth.errors import InputError
from berth.train import Checkpoints, ClickStream, LocalStore
from berth.train.checkpoint import Shelf, Writer
from berth.train.learner import Learner
from berth.train.member import Division, _store, member
from berth.train.recipes import recipe
from berth.train.rendezvous import Seat
from berth.train.servers import Settings
from berth.train.stages.cut import Layout, even_cuts
from berth.train.tables.tiers import TieredStore
from berth.train.team import Team
from berth.train.team_session import TeamSession


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
    """Data that has to be told where to go on."""

    told = None

    def position(self, step):
        return {"window": step, "byte": 100 * step}

    def seek(self, position):
        self.told = position


@pytest.fixture
def together(monkeypatch):
    monkeypatch.setattr(Team, "wait_for_all", lambda team: None)
    letters = Letters()

    def session(rank, small, folder):
        model, team = small.Small(), Team(Seat(rank, 2), Layout(2, 1), post=letters)
        return TeamSession(
            model,
            Marked(),
            team=team,
            store=LocalStore(),
            learner=lambda rows: Learner(model, rows, workers=2),
            checkpoints=Checkpoints(folder),
            batch=64,
        )

    return session


def test_all_lanes_go_on_from_the_leads_step_weights_and_place_in_the_data(small, together, tmp_path):
    class Told(small.Small):
        """The same training by its name."""

    Told.__name__ = "Small"
    alone = small.Session(Told(), Marked(), batch=64, checkpoints=Checkpoints(tmp_path / "run", every=3))
    alone.run(3)
    alone.close()
    lead = together(0, small, tmp_path / "run")
    other = together(1, small, tmp_path / "run")
    assert (lead.progress.step, other.progress.step) == (3, 3)
    assert lead.data.told == other.data.told == {"window": 3, "byte": 300}
    for name, weights in lead.model.state_dict().items():
        assert weights.equal(other.model.state_dict()[name])
        assert weights.equal(alone.model.state_dict()[name])
    for session in (lead, other):
        session._opened.close()


def test_lanes_that_begin_are_told_of_no_place(small, together, tmp_path):
    lead, other = (together(rank, small, tmp_path / "run") for rank in (0, 1))
    assert (other.progress.step, other.data.told) == (0, None)
    for session in (lead, other):
        session._opened.close()


def test_a_batch_too_small_for_its_micro_batches_is_refused_before_anybody_is_met():
    made = recipe("ctrdnn-8", batch=6)
    division = Division(lanes=2, cuts=tuple(even_cuts(len(made.model), 2)), micro=4)
    with pytest.raises(InputError, match="3 examples can't make 4 micro-batches"):
        member(made, division, Seat(0, 4))


def test_a_budget_holds_for_one_process_without_a_server_too(small, tmp_path):
    settings = Settings(memory_bytes=8 << 20, folder=tmp_path / "cold")
    with ExitStack() as keep:
        store = _store(Team(keep=keep), [0], Division(servers=0, settings=settings))
        store.open([small.Small().rows.spec])
        assert isinstance(store.table("embedding").store, TieredStore)
        store.close()
        assert (tmp_path / "cold").exists()
    assert not (tmp_path / "cold").exists()


@pytest.mark.parametrize("budget", [None, 64 << 20])
def test_tables_beyond_memory_are_written_as_they_are_read(small, tmp_path, monkeypatch, budget):
    made = recipe("ctrdnn-8", batch=8)
    division = Division(servers=0, settings=Settings(memory_bytes=budget, folder=tmp_path / "cold"))
    written = []
    save = Writer.save
    monkeypatch.setattr(
        Writer, "save", lambda writer, *told: written.append(writer._streamed) or save(writer, *told)
    )
    session = member(made, division, Seat(), checkpoints=Checkpoints(tmp_path / "run"), say=lambda text: None)
    session.run(1)
    session.close()
    assert written == [budget is not None]
    assert Shelf(tmp_path / "run").steps() == [1]


@pytest.fixture
def gloo():
    """Torch's processes, of which there is one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Team(Seat(0, 2), Layout(2, 1), store=dist.HashStore(), group=dist.group.WORLD)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gradients_flags_and_the_loss_travel_together(gloo, kind):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)).to(kind)
    model(torch.ones(1, 2, dtype=kind)).sum().backward()
    model[0].bias.grad = None  # what was not used is not told
    before = [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()]
    gloo.flags = (1.0, 0.0)
    gloo.exchange(model, 0.5)
    assert gloo.said == [1.0, 0.0, 0.5]
    for weight, was in zip(model.parameters(), before, strict=True):
        assert (weight.grad is None) == (was is None)
        assert was is None or torch.equal(weight.grad, was)


def test_in_a_pipeline_flags_travel_alone(gloo):
    gloo.layout = Layout(1, 2)
    gloo.exchange(torch.nn.Linear(2, 1), 0.5)  # no gradients, nothing to tell
    assert gloo.said is None
    assert gloo.agree([1.0, 0.25]) == [1.0, 0.25]
    gloo.wait_for_all()
    gloo.leave()
    assert not dist.is_initialized()


def test_alone_there_is_nobody_to_ask():
    team = Team()
    team.exchange(torch.nn.Linear(2, 1), 0.5)
    assert (team.said, team.agree([2.0]), team.is_lead) == (None, [2.0], True)
    team.wait_for_all()
    team.leave()
