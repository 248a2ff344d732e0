"""Modes async, half-async and geo: workers that do not wait for each other, shown with one of them stopped."""

from __future__ import annotations

import importlib.util
import json
import signal
import time
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import torch

from berth.errors import InputError
from berth.train import Checkpoints, Trainer
from berth.train.checkpoint import CheckpointStore
from berth.train.data import ClickStream
from berth.train.embedding import Embedding
from berth.train.evaluate import Evaluations, HeldOut
from berth.train.launch import SERVERS
from berth.train.launch_config import resolve
from berth.train.options import TrainOptions
from berth.train.recipes import Recipe
from berth.train.rendezvous import RankInfo
from berth.train.servers import GeoStore, Secret
from berth.train.servers.process import in_process_servers
from berth.train.tables import adagrad
from berth.train.worker import worker_session

STEPS, BATCH = 40, 32
TICKETS = 2 * STEPS
STALENESS = 3


@pytest.fixture(scope="session")
def runs():
    spec = importlib.util.spec_from_file_location("async_runs", Path(__file__).with_name("async_runs.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def three_steps(steps):
    return steps == 3


def every_example_once(run, results):
    assert set(run.counts().values()) == {1}
    assert sorted(run.counts()) == list(range(STEPS * BATCH))
    assert {(one["step"], one["examples"]) for one in results} == {(STEPS, STEPS * BATCH)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stopped", "options"),
    [(1, {"mode": "async"}), (0, {"mode": "async"}), (1, {"mode": "geo", "geo_every": 4})],
    ids=["async", "rank 0 of async", "geo"],
)
def test_a_stopped_worker_holds_up_no_other(runs, small, tmp_path, stopped, options):
    """The other trains all examples but those that the stopped one has taken."""
    with runs.Run(
        tmp_path / "run", small.Small, steps=STEPS, batch=BATCH, hold=three_steps, **options
    ) as run:
        run.wait_for(lambda: run.is_held(stopped), "three steps")
        run.signal(stopped, signal.SIGSTOP)
        run.release()
        run.wait_for(lambda: run.steps_of(0) + run.steps_of(1) >= TICKETS - 2, "all steps but two")
        assert run.steps_of(stopped) == 3
        run.signal(stopped, signal.SIGCONT)
        every_example_once(run, run.finish())


@pytest.mark.slow
def test_in_half_async_mode_no_worker_gets_further_ahead_than_the_staleness(runs, small, tmp_path):
    options = {"mode": "half-async", "staleness": STALENESS}
    with runs.Run(
        tmp_path / "run", small.Small, steps=STEPS, batch=BATCH, hold=three_steps, **options
    ) as run:
        run.wait_for(lambda: run.is_held(1), "three steps")
        run.signal(1, signal.SIGSTOP)  # in its fourth step
        run.release()
        run.wait_for(lambda: run.steps_of(0) == 3 + STALENESS, "the bound")
        time.sleep(0.5)  # without a bound it would go on
        assert (run.steps_of(0), run.steps_of(1)) == (3 + STALENESS, 3)
        run.signal(1, signal.SIGCONT)
        every_example_once(run, run.finish())


@pytest.mark.slow
def test_after_a_kill_the_run_resumes_with_the_examples_that_were_not_trained(runs, small, tmp_path):
    saved = Checkpoints(tmp_path / "saved", every=4)
    options = {"steps": STEPS, "batch": BATCH, "mode": "async", "checkpoints": saved}

    def once_saved(steps):
        return any(saved.folder.glob("step-*/manifest.json"))

    with runs.Run(tmp_path / "killed", small.Small, hold=once_saved, **options) as run:
        run.wait_for(lambda: once_saved(0), "a checkpoint")
        run.signal(1, signal.SIGKILL)
        run.signal(0, signal.SIGKILL)
    store = CheckpointStore(saved.folder)
    manifest = store.newest(print)[-1]
    tickets = manifest.progress["tickets"]
    undone = set(tickets["undone"])
    completed = [ticket for ticket in range(tickets["first_untaken"]) if ticket not in undone]
    assert manifest.progress["examples"] == len(completed) * BATCH // 2
    with runs.Run(tmp_path / "resumed", small.Small, **options) as again:
        results = again.finish()
    assert {(one["step"], one["examples"]) for one in results} == {(STEPS, STEPS * BATCH)}
    trained_before = {
        number
        for ticket in completed
        for number in range(ticket // 2 * BATCH + ticket % 2, (ticket // 2 + 1) * BATCH, 2)
    }
    assert trained_before <= set(run.counts())
    assert again.counts() == Counter(set(range(STEPS * BATCH)) - trained_before)  # each of the others once
    last = store.newest(print)[-1]
    assert (last.step, last.progress["tickets"]["undone"]) == (STEPS, [])


@pytest.mark.slow
def test_asked_to_stop_workers_finish_the_batch_and_another_mode_goes_on(runs, small, tmp_path):
    saved = Checkpoints(tmp_path / "saved", every=1000)
    with runs.Run(
        tmp_path / "async", small.Small, steps=10_000, batch=BATCH, mode="async", checkpoints=saved
    ) as run:
        run.wait_for(lambda: run.steps_of(0) + run.steps_of(1) >= 5, "five steps")
        run.signal(1, signal.SIGTERM)  # one of them is enough
        results = run.finish()
    assert all(one["preempted"] for one in results)
    step = results[0]["step"]
    assert sorted(run.counts()) == list(range(step * BATCH))
    assert set(run.counts().values()) == {1}
    alone = small.Session(
        runs.Logging(small.Small(), tmp_path / "alone"),
        runs.Numbered(1),
        TrainOptions(batch=BATCH, checkpoints=saved),
    )
    result = alone.run(step + 2)
    alone.close()
    assert (alone.resumed_from, result.examples) == (step, (step + 2) * BATCH)


class TwoBatches(ClickStream):
    """Clicks that end after two batches."""

    def batches(self, batch, step, share, seed):
        return islice(super().batches(batch, step, share, seed), max(0, 2 - step))


@contextmanager
def one_worker(monkeypatch, recipe, options):
    """The session of the only worker of a run, whose server is in this process."""
    config, secret = resolve(recipe, options, RankInfo(), print), Secret.random()
    with in_process_servers(1, secret, config.server) as running:
        for name, value in secret.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(SERVERS, json.dumps([json.loads(running[0].address.to_json())]))
        session = worker_session(recipe, config, RankInfo())
        yield session
        session.close()


def test_geo_completes_no_ticket_before_its_exchange_also_at_the_end_of_the_data(small, monkeypatch):
    options = TrainOptions(batch=BATCH, servers=1, mode="geo", geo_every=1000)
    recipe = Recipe("small", small.Small(), TwoBatches(1), BATCH)
    with one_worker(monkeypatch, recipe, options) as session:
        retire, before = session._retire, []
        monkeypatch.setattr(
            session, "_retire", lambda: (before.append(session._coordinator.position()), retire())
        )
        assert len(list(session.steps())) == 2
        [position] = before
        assert (position.completed, position.undone) == (0, [0, 1])
        assert session._coordinator.position().completed == 2


@pytest.mark.parametrize(("held_out", "dropped"), [(None, 0), (100, 1)])
def test_geo_drops_its_copies_only_for_the_last_evaluation(small, monkeypatch, held_out, dropped):
    drops = []
    drop_copies = GeoStore.drop_copies
    monkeypatch.setattr(GeoStore, "drop_copies", lambda store: (drops.append(store), drop_copies(store)))
    options = TrainOptions(batch=BATCH, servers=1, mode="geo", geo_every=2)
    evaluations = held_out and Evaluations(HeldOut(ClickStream(1), held_out))
    recipe = Recipe("small", small.Small(), ClickStream(1), BATCH, evaluations=evaluations)
    with one_worker(monkeypatch, recipe, options) as session:
        assert session.run(3).step == 3
    assert len(drops) == dropped


class Wide(torch.nn.Module):
    """A weight for every id, and a small tower over the features: it learns the clicks within seconds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.rows = Embedding(1, optimiser=adagrad(0.1))
        self.top = torch.nn.Sequential(torch.nn.Linear(13, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, inputs):
        return self.rows(inputs["slots"]).sum(dim=(1, 2, 3)) + self.top(inputs["dense"]).squeeze(1)


class Rates:
    def __init__(self):
        self.rates = []

    def on_step(self, metrics):
        self.rates.append(metrics["learning_rate"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "geo"])
def test_a_learning_rate_schedule_and_adamw_do_what_they_do_in_one_process(
    small, monkeypatch, tmp_path, mode
):
    """One worker learns the same in all modes, so rates and losses are comparable. The second half is resumed."""
    learning = {"dense_optimiser": "adamw", "lr": 0.05, "dense_options": {"weight_decay": 0.3}}
    learning |= {"schedule": "one-cycle", "schedule_options": {"total_steps": 12}}
    alone = Rates()
    expected = small.Session(
        Wide(), ClickStream(1), TrainOptions(batch=BATCH, **learning), callbacks=alone
    ).run(12)
    plain = small.Session(Wide(), ClickStream(1), TrainOptions(batch=BATCH, lr=0.05)).run(12)
    # so they would not be equal by chance
    assert expected.losses[6:] != pytest.approx(plain.losses[6:], rel=1e-3)
    saved = Checkpoints(tmp_path / "saved", every=6)
    options = TrainOptions(batch=BATCH, servers=1, mode=mode, geo_every=1, checkpoints=saved, **learning)
    seen, losses = Rates(), []
    for until in (6, 12):
        recipe = Recipe("wide", Wide(), ClickStream(1), BATCH, callbacks=seen)
        with one_worker(monkeypatch, recipe, options) as session:
            assert session.resumed_from == (6 if losses else None)
            losses += session.run(until).losses
    assert losses == pytest.approx(expected.losses, rel=1e-4)
    # reported before the step of the schedule
    assert seen.rates == pytest.approx([0.05 / 25, *alone.rates[:11]])
    assert max(seen.rates) > 5 * min(seen.rates)


class HeldOutLosses:
    def __init__(self):
        self.losses = {}

    def on_evaluation(self, metrics):
        assert metrics["step"] not in self.losses
        self.losses[metrics["step"]] = metrics["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "half-async", "geo"])
def test_held_out_data_is_evaluated_in_every_mode(small, monkeypatch, mode):
    """With the weights that rank 0 has then, which may be a step older; at the end with those of all workers."""

    def evaluations():
        return Evaluations(HeldOut(ClickStream(1), 300), every=4)

    alone, seen = HeldOutLosses(), HeldOutLosses()
    learning = {"batch": BATCH, "lr": 0.02}
    expected = small.Session(
        Wide(), ClickStream(1), TrainOptions(**learning), evaluations=evaluations(), callbacks=alone
    ).run(12)
    options = TrainOptions(servers=1, mode=mode, geo_every=1, **learning)
    recipe = Recipe("wide", Wide(), ClickStream(1), BATCH, evaluations=evaluations(), callbacks=seen)
    with one_worker(monkeypatch, recipe, options) as session:
        found = session.run(12)
    assert list(seen.losses) == list(alone.losses) == [4, 8, 12]
    assert seen.losses[12] == pytest.approx(alone.losses[12], rel=1e-4)
    assert alone.losses[8] != pytest.approx(alone.losses[12], rel=1e-3)  # so it would not be equal by chance
    for step in (4, 8):
        assert seen.losses[step] == pytest.approx(alone.losses[step], rel=0.05)
    assert found.evaluation.step == 12
    rows = [one.statistics["tables"]["rows"]["rows"] for one in (found, expected)]
    assert rows[0] == rows[1]  # evaluating creates none


@pytest.mark.usefixtures("forked")
@pytest.mark.slow
def test_the_last_evaluation_of_geo_is_that_of_what_all_workers_learned():
    """The local copies of rank 0 lack what the other worker has learned since it fetched them."""
    trainer = Trainer(
        "ctrdnn-8", workers=2, servers=1, mode="geo", geo_every=7, batch=64, rows_lr=0.2, eval_data=2000
    )
    found = trainer.fit(steps=60).evaluation
    saved = trainer.evaluate(2000)
    trainer.close()
    assert (found.step, found.examples) == (60, 2000)
    assert (found.loss, found.auc) == pytest.approx((saved.loss, saved.auc), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "plateau"}, "plateau needs the loss of every batch"),
        ({"optimiser": "adamax"}, "servers can't update dense weights by Adamax: they have rules for Adam,"),
    ],
)
def test_what_servers_can_not_do_is_refused_before_anything_starts(options, message):
    with pytest.raises(InputError, match=message) as error:
        Trainer("ctrdnn-8", workers=2, mode="async", batch=64, **options)
    assert "--mode sync" in error.value.hint


@pytest.mark.slow
def test_all_modes_reach_the_auc_of_sync(runs, tmp_path):
    """On held-out examples, after the same examples: neither worse nor better.

    In async and half-async the share of each worker is a step of its own, so they are compared with as many steps of
    mode sync with batches of that size: what differs is how old gradients are. Geo averages the workers, so it is
    compared with the same steps.
    """

    def auc_of(mode, steps, batch):
        options = {"steps": steps, "batch": batch, "mode": mode, "geo_every": 4, "held_out": 1 << 15}
        with runs.Run(tmp_path / f"{mode}-{batch}", Wide, **options) as run:
            return run.finish()[0]["held_out"]

    shares, whole = auc_of("sync", 512, 256), auc_of("sync", 256, 512)
    assert min(shares, whole) > 0.7  # 0.5 is nothing learned; the best possible is 0.80
    assert auc_of("async", 256, 512) == pytest.approx(shares, abs=0.002)
    assert auc_of("half-async", 256, 512) == pytest.approx(shares, abs=0.002)
    assert auc_of("geo", 256, 512) == pytest.approx(whole, abs=0.002)
