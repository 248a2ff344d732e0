"""Models learn: better than a constant, as well as plain torch, and the same however the work is divided."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from berth.errors import InputError
from berth.train import Session, fit
from berth.train.data import Batch, ClickStream, Share
from berth.train.data.examples import ExampleStream
from berth.train.learner import Learner, click_loss, scores_of
from berth.train.local import LocalStore
from berth.train.metrics import Progress, Window, auc, best_auc
from berth.train.options import TrainOptions
from berth.train.recipes import make_recipe
from berth.train.timing import PUSH, UPDATE, LayerClock
from berth.zoo.layered import Layer, LayeredModel

pytestmark = pytest.mark.slow


def log_loss_of_a_constant(labels) -> float:
    """The loss of always saying the mean."""
    share = float(np.mean(labels))
    return float(-(share * np.log(share) + (1 - share) * np.log(1 - share)))


ADAM = """
import sys, torch
from berth.train.optimisers import optimiser_for

def trained(optimiser):
    model.load_state_dict(begin)
    for step in range(5):
        model(torch.full((2, 4), step / 3)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    optimiser.load_state_dict(optimiser.state_dict())
    return [weight.detach().clone() for weight in model.parameters()]

model = torch.nn.Linear(4, 3)
begin = {name: value.clone() for name, value in model.state_dict().items()}
ours = trained(optimiser_for(model, None))
assert "torch._dynamo" not in sys.modules
theirs = trained(torch.optim.Adam(model.parameters(), fused=True))
assert all(map(torch.equal, ours, theirs))
"""


def test_adam_is_torchs_bit_for_bit_and_does_not_import_the_compiler():
    subprocess.run([sys.executable, "-c", ADAM], check=True, timeout=900)


@pytest.mark.parametrize(
    ("name", "steps", "better"), [("ctrdnn-8", 80, 0.65), ("matchnet", 60, 0.75), ("2emb", 60, 0.75)]
)
def test_a_click_model_ranks_and_predicts_better_than_a_constant(name, steps, better):
    made = make_recipe(name, batch=512)
    session = Session(made.model, made.data, TrainOptions(batch=512))
    result = session.run(steps)
    labels = session.progress.window.arrays()["labels"]
    late = session.progress.window.arrays()["scores"][-5120:]
    assert auc(late, labels[-5120:]) > better
    assert np.mean(result.losses[-10:]) < log_loss_of_a_constant(labels) - 0.01


def test_word_vectors_separate_true_words_from_noise():
    made = make_recipe("nce", batch=512)
    result = Session(made.model, made.data, TrainOptions(batch=512)).run(60)
    constant = 17 * log_loss_of_a_constant(np.array([1] + [0] * 16))
    assert np.mean(result.losses[-10:]) < constant - 0.2


def test_a_model_without_sparse_rows_trains_too():
    def draw(batch, seed):
        values = torch.from_numpy(np.random.default_rng(seed).standard_normal((batch, 4)).astype(np.float32))
        return values, values.argmax(dim=1)

    torch.manual_seed(0)
    result = fit(torch.nn.Linear(4, 4), ExampleStream(draw, "largest"), steps=60, batch=128)
    assert np.mean(result.losses[-5:]) < result.losses[0] - 0.05
    assert np.isnan(result.auc)
    assert result.statistics == {"tables": {}}


def test_own_modules_train_with_their_own_forward(small):
    result = fit(small.Small(), steps=5, batch=64)
    assert (result.step, result.examples) == (5, 320)
    assert str(result).startswith("done at step 5: 320 examples, loss 0.")


def test_built_in_data_need_an_end(small):
    with pytest.raises(InputError, match="the built-in data is endless"):
        fit(small.Small())


def test_the_same_seed_gives_the_same_losses_and_another_does_not(small):
    one, same, other = (fit(small.Small(), ClickStream(seed), steps=4, batch=64).losses for seed in (0, 0, 1))
    assert one == same
    assert one != other


def test_watched_steps_compute_what_others_do():
    losses = []
    for watched in (False, True):
        made = make_recipe("ctrdnn-8", batch=64)
        session = Session(made.model, made.data, TrainOptions(batch=64))
        if watched:
            session.learner.clock = LayerClock(made.model, every=1, skipped=0)
        losses.append(session.run(4).losses)
    assert losses[0] == losses[1]
    seconds = session.learner.clock.seconds()
    assert list(seconds) == [*made.model.names, PUSH, UPDATE]
    assert all(value > 0 for value in seconds.values())


class Plain(torch.nn.Module):
    """No dropout: what workers add up to can be compared."""

    def __init__(self, small) -> None:
        super().__init__()
        whole = small.Small()
        self.rows, self.top = whole.rows, torch.nn.Sequential(whole.top[0], whole.top[2], whole.top[3])
        torch.manual_seed(3)

    def forward(self, inputs):
        rows = self.rows(inputs["slots"]).flatten(1)
        return self.top(torch.cat([rows, inputs["dense"]], dim=1)).squeeze(1)


class Summing(LocalStore):
    """Rows stay as they are; their gradients are summed by key, over all workers."""

    def __init__(self, sums) -> None:
        super().__init__()
        self.sums = sums

    def push(self, table, keys, gradients, *, shows=None, clicks=None):
        for key, gradient in zip(keys.tolist(), gradients, strict=True):
            self.sums[key] = self.sums.get(key, 0.0) + gradient.astype(np.float64)


class Clicks:
    """A given number of clicks; the last batch may be smaller."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def batches(self, batch, step, share, seed):
        keys, dense, _, labels = (torch.from_numpy(part) for part in ClickStream().draw(0, self.rows))
        for start in range(step * batch, self.rows, batch):
            mine = slice(start + share.worker, min(start + batch, self.rows), share.workers)
            inputs = {"slots": keys[mine][:, :, None].contiguous(), "dense": dense[mine]}
            yield Batch(inputs, labels[mine], len(labels[mine]), min(batch, self.rows - start))


@pytest.mark.parametrize(("workers", "rows"), [(2, 64), (3, 64), (3, 67), (3, 65)])
def test_gradients_of_workers_add_up_to_those_of_one(small, workers, rows):
    """Each worker's part of the mean is its share of the examples, of which it may have none."""
    found = []
    for count in (1, workers):
        total, sums = 0.0, {}
        for worker in range(count):
            model, reported = Plain(small), []

            def keep(model, loss, into=reported):
                dense = [weights.grad.flatten() for weights in model.parameters()]
                into.append(torch.cat([torch.tensor([loss]), *dense]))

            learner = Learner(
                model, Summing(sums), optimiser=torch.optim.SGD(model.parameters(), 0.0), workers=count,
                all_reduce=keep,
            )  # fmt: skip
            for step, batch in enumerate(Clicks(rows).batches(32, 0, Share(worker, count), 0)):
                value, _ = learner.step(step, batch)
                assert value == pytest.approx(float(reported[-1][0]))
            total = total + torch.stack(reported)
        assert len(total) == -(-rows // 32)
        assert bool(torch.isfinite(total).all())
        found.append((total, sums))
    (alone, rows_alone), (together, rows_together) = found
    torch.testing.assert_close(together, alone)
    assert rows_alone.keys() == rows_together.keys()
    for key, gradient in rows_alone.items():
        assert rows_together[key] == pytest.approx(gradient, rel=1e-4, abs=1e-8)


def test_example_streams_are_functions_of_the_step_and_shared_row_by_row():
    def draw(batch, seed):
        values = torch.from_numpy(np.random.default_rng(seed).random(batch))
        return {"x": values}, values

    stream = ExampleStream(draw, "x")
    batches = stream.batches(10, 0, Share(), 0)
    third = [next(batches) for _ in range(3)][2]
    assert torch.equal(next(stream.batches(10, 2, Share(), 0)).labels, third.labels)
    part = next(stream.batches(10, 2, Share(1, 3), 0))
    assert torch.equal(part.inputs["x"], third.labels[1::3])
    assert part.examples == 3


@pytest.mark.parametrize("name", ["own", "ctrdnn-8", "2emb"])
def test_the_keys_of_the_next_batch_are_announced(name, small):
    class Noting(LocalStore):
        pulled, announced = [], []

        def pull(self, table, keys, out=None):
            self.pulled.append((table, keys.tobytes()))
            return super().pull(table, keys, out)

        def prefetch(self, table, keys):
            self.announced.append((table, keys.tobytes()))

    made = None if name == "own" else make_recipe(name, batch=16)
    model, data = (small.Small(), ClickStream()) if made is None else (made.model, made.data)
    store = Noting()
    Session(model, data, TrainOptions(batch=16), store=store).run(4)
    tables = len(store.pulled) // 4
    assert store.announced[: 2 * tables] == store.pulled[2 * tables :]  # the first step shows which they are


class TestMetrics:
    @pytest.mark.parametrize("ties", [3, 1000])
    def test_auc_is_the_share_of_pairs_in_order(self, ties):
        random = np.random.default_rng(0)
        scores, labels = random.integers(0, ties, 200).astype(np.float32), random.integers(0, 2, 200)
        up, down = scores[labels == 1][:, None], scores[labels == 0][None]
        pairs = np.mean((up > down) + 0.5 * (up == down))
        assert auc(scores, labels) == pytest.approx(pairs)

    def test_auc_of_one_class_is_not_a_number(self):
        assert np.isnan(auc(np.ones(3), np.ones(3)))

    def test_best_auc_is_what_drawn_labels_give_on_average(self):
        random = np.random.default_rng(0)
        chances = random.random(300)
        drawn = [auc(chances, random.random(300) < chances) for _ in range(400)]
        assert best_auc(chances) == pytest.approx(np.mean(drawn), abs=0.003)

    def test_a_window_holds_the_newest(self):
        window = Window(5)
        for start in range(0, 12, 3):
            window.add(np.arange(start, start + 3, dtype=np.float32), np.arange(start, start + 3) % 2)
        assert window.arrays()["scores"].tolist() == [7, 8, 9, 10, 11]
        window.add(np.arange(20, 40, dtype=np.float32), np.zeros(20))
        assert window.arrays()["scores"].tolist() == [35, 36, 37, 38, 39]
        other = Window(5)
        other.load(window.arrays())
        assert other.arrays()["scores"].tolist() == [35, 36, 37, 38, 39]

    def test_loss_is_the_mean_of_the_last_fifty_steps(self):
        progress = Progress()
        for step in range(100):
            progress.add(float(step), 10, None, None)
        assert (progress.loss, progress.step, progress.examples) == (74.5, 100, 1000)


def test_a_model_may_answer_with_more_than_one_tensor(small):
    class Both(small.Small):
        def forward(self, inputs):
            return {"click": super().forward(inputs), "else": inputs["dense"]}

        def loss(self, output, labels):
            return click_loss(output["click"], labels)

    result = Session(Both(), options=TrainOptions(batch=16)).run(2)
    assert result.losses == pytest.approx(
        Session(small.Small(), options=TrainOptions(batch=16)).run(2).losses
    )
    assert np.isnan(result.auc)


@pytest.mark.parametrize(
    ("output", "labels"),
    [(torch.randn(6), torch.tensor([0, 1, 0, 1, 1, 0])), (torch.randn(6, 1), torch.ones(6))],
)
def test_logits_score_and_are_compared_with_their_labels(output, labels):
    expected = torch.nn.functional.binary_cross_entropy_with_logits(output.view(-1), labels.float())
    assert torch.equal(click_loss(output, labels), expected)
    scores, truth = scores_of(output, labels)
    assert scores.tolist() == output.view(-1).tolist()
    assert truth.tolist() == labels.tolist()


def test_what_does_not_rank_examples_has_no_scores():
    assert scores_of(torch.randn(4, 10), torch.zeros(4, dtype=torch.int64)) == (None, None)
    assert scores_of({"a": 1}, None) == (None, None)
    assert Batch({}, None, 3).examples == 3


def test_every_layer_of_a_chain_gets_its_own_part_of_the_backward_pass():
    """Outputs of a layer whose input autograd does not keep are freed at once: the next may have their number."""
    torch.manual_seed(0)
    layers = [
        Layer(f"{kind}{number}", kind, torch.nn.Linear(4, 4) if kind == "linear" else torch.nn.ReLU())
        for number in range(12)
        for kind in ("linear", "relu")
    ]
    model = LayeredModel("chain", layers, None, None, batch=1, sample="row")
    clock = LayerClock(model)
    for _ in range(20):
        clock.forward(torch.ones(2, 4)).sum().backward()
        assert [name for _, name in clock._arrivals] == list(reversed(model.names))
        clock.backward_done()
