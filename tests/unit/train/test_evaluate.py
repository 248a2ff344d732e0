"""Held-out evaluation: exact metrics, no side effects, best checkpoint, early stop, divergence."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import ExitStack
from hashlib import sha256

import numpy as np
import pytest
import torch
from torch import nn

from berth.errors import DivergedError, InputError
from berth.train import ClickStream, Trainer, load_for_inference
from berth.train.data import Share
from berth.train.embedding import Embedding
from berth.train.evaluate import HeldOut
from berth.train.learner import click_loss
from berth.train.options import Checkpoints, TrainOptions
from berth.train.session import Session
from berth.train.tables import sgd


def naive_auc(scores, labels):
    """The share of (click, non-click) pairs in the right order, by counting them."""
    clicks, others = scores[labels == 1], scores[labels == 0]
    above = (clicks[:, None] > others[None, :]).sum() + 0.5 * (clicks[:, None] == others[None, :]).sum()
    return above / (len(clicks) * len(others))


def test_metrics_are_those_counted_by_hand_on_the_same_rows(small):
    trainer = Trainer(small.Small, batch=64, eval_data=500, eval_every=10)
    result = trainer.fit(steps=10)
    keys, dense, _, labels = ClickStream().draw((1 << 40) // 64 * 64, 500)
    inputs = {"slots": torch.from_numpy(keys)[:, :, None], "dense": torch.from_numpy(dense)}
    with torch.no_grad():
        scores = trainer.model(inputs).double().numpy()
    predicted = 1 / (1 + np.exp(-scores))
    found = result.evaluation
    assert (found.step, found.examples) == (10, 500)
    assert found.auc == pytest.approx(naive_auc(scores, labels), abs=1e-12)
    log_loss = -np.where(labels == 1, np.log(predicted), np.log(1 - predicted)).mean()
    assert found.log_loss == pytest.approx(log_loss, rel=1e-6)
    assert found.loss == pytest.approx(log_loss, rel=1e-4)
    assert found.calibration == pytest.approx(predicted.mean() / labels.mean(), rel=1e-6)
    assert trainer.predict(inputs) == pytest.approx(predicted, rel=1e-6)
    assert trainer.evaluate(500).auc == found.auc


def test_evaluating_creates_no_rows_and_changes_no_loss(small):
    plain = Trainer(small.Small, batch=64).fit(steps=8)  # it has dropout, so the random state matters too
    evaluated = Trainer(small.Small, batch=64, eval_data=300, eval_every=2).fit(steps=8)
    assert evaluated.losses == plain.losses
    rows = [result.statistics["tables"]["rows"]["rows"] for result in (plain, evaluated)]
    assert rows[0] == rows[1]


def test_workers_share_held_out_examples_without_overlap():
    held_out = HeldOut(ClickStream(), 75)
    whole = torch.cat([batch.inputs["dense"] for batch in held_out.batches(32, 0, Share(), 0)])
    parts = [
        batch.inputs["dense"] for worker in range(3) for batch in held_out.batches(32, 0, Share(worker, 3), 0)
    ]
    assert len(whole) == 75
    assert sorted(map(tuple, torch.cat(parts).tolist())) == sorted(map(tuple, whole.tolist()))


def examples(flip: bool = False, count: int = 40):
    made = torch.Generator().manual_seed(2)
    for _ in range(count):
        inputs = torch.randn(32, 4, generator=made)
        yield {"x": inputs}, ((inputs[:, 0] > 0) ^ flip).long()


def opposite():
    """Held-out data on which every step makes the model worse."""
    yield from examples(flip=True, count=4)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.line(inputs["x"]).squeeze(1)


def worsening(folder=None, **options):
    checkpoints = Checkpoints(folder, every=1, keep=1, full_every=1) if folder is not None else None
    return Trainer(
        Line,
        examples,
        optimiser="sgd",
        lr=0.1,
        eval_data=opposite,
        batch=32,
        checkpoints=checkpoints,
        **options,
    )


def test_the_run_stops_after_as_many_evaluations_without_a_better_one():
    result = worsening(eval_every=3, patience=2).fit(steps=30)
    assert (result.step, result.stopped_early, result.best.step) == (9, True, 3)
    assert "stopped early at step 9" in str(result)


def test_a_resumed_run_remembers_its_patience_and_does_not_train_on_after_it(tmp_path):
    early = worsening(tmp_path, eval_every=3, patience=2).fit(steps=7)
    assert (early.step, early.stopped_early) == (7, False)
    resumed = worsening(tmp_path, eval_every=3, patience=2).fit(steps=30)
    assert (resumed.step, resumed.stopped_early, resumed.best.step) == (9, True, 3)
    again = worsening(tmp_path, eval_every=3, patience=2).fit(steps=30)
    assert (again.step, again.losses, again.stopped_early) == (9, [], True)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["auc", "loss"])
def test_the_best_checkpoint_survives_retention_and_a_resume(metric, tmp_path):
    worsening(tmp_path, eval_every=2, best=metric).fit(steps=9)
    result = worsening(tmp_path, eval_every=2, best=metric).fit(steps=20)
    kept = sorted(path.name for path in tmp_path.glob("step-*"))
    assert kept[0] == "step-000000000002"
    assert kept[-1] == "step-000000000020"
    assert len(kept) <= 3, "all others were removed"
    assert (result.best.step, result.best_checkpoint) == (2, str(tmp_path / kept[0]))
    best = load_for_inference(tmp_path, Line(), step="best")
    scored = Trainer(best, examples, batch=32).evaluate(opposite)
    assert (scored.auc, scored.loss) == (result.best.auc, result.best.loss)


@pytest.mark.slow
def test_a_run_that_is_resumed_without_evaluations_keeps_the_best_checkpoint(tmp_path):
    worsening(tmp_path, eval_every=2, best="auc").fit(steps=6)
    plain = Checkpoints(tmp_path, every=1, keep=1, full_every=1)
    Trainer(Line, examples, optimiser="sgd", lr=0.1, batch=32, checkpoints=plain).fit(steps=15)
    assert (tmp_path / "step-000000000002").exists()
    assert worsening(tmp_path, eval_every=2, best="auc").fit(steps=16).best.step == 2


class Diverging(Line):
    def forward(self, inputs):
        return super().forward(inputs) * inputs["factor"][0]


def overflowing():
    for number, (inputs, labels) in enumerate(examples()):
        yield {**inputs, "factor": torch.full((32,), math.inf if number == 6 else 1.0)}, labels


def hashes(folder):
    return {path: sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_a_loss_that_is_not_finite_ends_the_run_and_names_step_and_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=2)
    Trainer(Diverging, overflowing, batch=32, checkpoints=checkpoints).fit(steps=4)
    before = hashes(tmp_path)
    with pytest.raises(DivergedError, match="the loss of step 7 is nan") as error:
        Trainer(Diverging, overflowing, batch=32, checkpoints=checkpoints).fit(steps=20)
    assert "the last good checkpoint is that of step 6" in error.value.hint
    assert error.value.exit_code == 2
    after = hashes(tmp_path)
    assert {path: after[path] for path in before} == before
    assert not (tmp_path / "step-000000000007").exists()


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    with pytest.raises(DivergedError, match="dense weights are not finite after step 1"):
        Trainer(
            Line, examples, batch=32, optimiser="sgd", lr=3e38, dense_options={"weight_decay": 1e30},
            checkpoints=Checkpoints(tmp_path, every=1),
        ).fit(steps=4)  # fmt: skip
    assert not list(tmp_path.glob("step-*"))


class Saturating(nn.Module):
    """Its loss stays finite whatever its rows are."""

    def __init__(self):
        super().__init__()
        self.rows = Embedding(4, optimiser=sgd(1e38), name="rows")
        self.top = nn.Linear(4, 1)

    def forward(self, inputs):
        while any(thread.name == "berth-checkpoint" for thread in threading.enumerate()):
            time.sleep(0.001)  # so the checkpoint of the last step has ended before this one does
        return self.top(torch.sigmoid(1000 * self.rows(inputs["slots"][:, 0, 0])))

    def loss(self, output, labels):
        return 1000 * click_loss(output, labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"memory": "8MiB"},
        {"workers": 2, "servers": 2},
        {"workers": 2, "servers": 1, "memory": "8MiB"},
        {"workers": 2, "servers": 1, "mode": "async"},
        {"workers": 2, "servers": 0, "tables": "resident"},
    ],
    ids=str,
)
def test_rows_that_are_not_finite_end_the_run_and_are_not_saved(tmp_path, options, request):
    if (
        options.get("mode") != "async"
    ):  # where one of two that start together may read what the other made infinite
        request.getfixturevalue("forked")
    checkpoints, seen = Checkpoints(tmp_path, every=2), []

    class Watch:
        def on_step(self, metrics):
            seen.append(metrics["step"])

    with pytest.raises(DivergedError, match=r"rows of table rows are not finite.*after step \d") as error:
        Trainer(Saturating, batch=32, checkpoints=checkpoints, callbacks=Watch(), **options).fit(steps=6)
    saved = int(str(error.value).partition("after step ")[2][0])
    # in async mode a worker sees that a checkpoint is due after the others' steps too
    assert saved == 2 or (options.get("mode") == "async" and saved == 3)
    assert sum(step > saved for step in seen) <= 1, (
        "it ended with the step during which the checkpoint failed"
    )
    assert "there is no checkpoint; start again with lower learning rates" in error.value.hint
    assert not list(tmp_path.glob("step-*"))


def diverging_at_its_end(folder, monkeypatch, closed):
    """A session with a pending checkpoint of rows that are not finite."""
    options = TrainOptions(batch=32, checkpoints=Checkpoints(folder, every=100))
    session = Session(Saturating(), options=options, notify=closed.append)
    close = session.store.close
    monkeypatch.setattr(session.store, "close", lambda: (close(), closed.append("the store")))
    assert len(list(session.steps(2))) == 2
    session.save()
    return session


def test_closing_a_session_whose_pending_checkpoint_diverged_closes_its_store(tmp_path, monkeypatch):
    closed = []
    session = diverging_at_its_end(tmp_path, monkeypatch, closed)
    with pytest.raises(DivergedError, match=r"rows of table rows are not finite.*after step 2"):
        session.close()
    assert closed == ["the store"]


def interrupted(session):
    with ExitStack() as stack:
        stack.callback(session.close)
        raise KeyboardInterrupt


def test_a_divergence_does_not_replace_the_exception_that_ends_the_run(tmp_path, monkeypatch):
    said = []
    session = diverging_at_its_end(tmp_path, monkeypatch, said)
    with pytest.raises(KeyboardInterrupt):
        interrupted(session)
    assert "rows of table rows are not finite" in said[0]
    assert said[1:] == ["the store"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 2}, "patience needs held-out data"),
        ({"eval_every": 2}, "eval-every needs held-out data"),
        ({"eval_data": 100, "best": "auc"}, "needs a folder"),
        (
            {"eval_data": 100, "best": "f1", "checkpoints": "x"},
            "no metric of the best checkpoint is called 'f1'",
        ),
    ],
)
def test_options_that_need_others_say_so(options, message):
    with pytest.raises(InputError, match=message):
        Trainer(Line, **options)


def test_held_out_examples_are_generated_for_built_in_data_only():
    with pytest.raises(InputError, match="built-in data only"):
        Trainer(Line, examples, eval_data=100)


def test_an_evaluation_is_plain_json_and_back():
    result = worsening().fit(steps=2)
    document = json.loads(json.dumps(result.evaluation.to_json()))
    assert type(result.evaluation).from_json(document) == result.evaluation
    assert document["calibration"] == result.evaluation.calibration


@pytest.mark.parametrize("own", [True, False], ids=["of the model", "given"])
def test_a_loss_that_requires_weights_gets_ones_where_there_are_none(own, small):
    def loss(output, labels, weights):
        return click_loss(output, labels, weights)

    class Weighted(small.Small):
        pass

    if own:
        Weighted.loss = staticmethod(loss)
    expected = Trainer(small.Small, batch=64, eval_data=200).fit(steps=2)
    found = Trainer(Weighted, batch=64, eval_data=200, loss=None if own else loss).fit(steps=2)
    assert found.losses == pytest.approx(expected.losses)
    assert found.evaluation.loss == pytest.approx(expected.evaluation.loss)
