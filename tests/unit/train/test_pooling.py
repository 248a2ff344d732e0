"""Multi-valued slots: rows of lists pooled, with the gradients of torch.nn.EmbeddingBag."""

from __future__ import annotations

import copy

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from berth.errors import InputError
from berth.train import DecayPolicy, EmbeddingBag, Session, export_for_serving, fit, load_for_inference
from berth.train.data import Batch, Share
from berth.train.data.files import FileStream
from berth.train.data.rows import Ragged
from berth.train.learner import Learner
from berth.train.options import TrainOptions
from berth.train.recipes import make_recipe
from berth.train.servers import RemoteStore, Secret, ServerConfig
from berth.train.servers.process import in_process_servers
from berth.train.tables import join, sgd

LISTS = [[3, 1, 3], [], [2], [5, 4, 3, 2, 1], [], [6]]
ROWS, DIM = 8, 4


def padded(lists):
    offsets = np.append(0, np.cumsum([len(one) for one in lists]))
    values = np.array([value for one in lists for value in one], np.int64)
    return torch.from_numpy(Ragged(values, offsets).padded())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_pooled_rows_and_their_updates_are_those_of_torch(mode):
    bag = EmbeddingBag(DIM, mode, optimiser=sgd(0.5))
    reference = nn.EmbeddingBag(ROWS, DIM, mode=mode)
    with torch.no_grad():
        reference.weight.copy_(bag.rows.eval()(torch.arange(ROWS)))
    bag.train()
    keys = padded(LISTS)
    values = torch.tensor([value for one in LISTS for value in one])
    offsets = torch.tensor(np.append(0, np.cumsum([len(one) for one in LISTS])[:-1]))
    wanted = torch.randn(len(LISTS), DIM)
    for _ in range(3):
        ours, theirs = bag(keys), reference(values, offsets)
        torch.testing.assert_close(ours, theirs)
        assert not ours[1].any()  # an empty list
        (ours * wanted).sum().backward()
        (theirs * wanted).sum().backward()
        bag.rows.push()
        with torch.no_grad():
            reference.weight -= 0.5 * reference.weight.grad
            reference.weight.grad = None
    torch.testing.assert_close(bag.eval().rows(torch.arange(ROWS)), reference.weight.detach())


def test_rows_are_pulled_once_for_each_distinct_key_and_never_for_padding():
    bag = EmbeddingBag(DIM)
    bag(padded(LISTS)).sum().backward()
    assert bag.rows.pulled_keys().tolist() == [value for one in LISTS for value in one]
    bag.rows.push()
    table = bag.rows._store.table("embedding")
    assert sorted(table.store.index.entries()[0].tolist()) == [1, 2, 3, 4, 5, 6]
    assert (table.counts.pushed, table.counts.pushed_distinct) == (10, 6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_padding_of_the_next_batch_is_not_prefetched(mode):
    """Lists of equal length look like plain keys; the padding of later ones must not become a row."""
    secret = Secret.random()
    with in_process_servers(1, secret, ServerConfig(mode=mode)) as running:
        store = RemoteStore([running[0].address], secret)
        model = Bagged()
        learner = Learner(model, store)
        batches = [
            Batch({"tags": padded(lists)}, torch.zeros(2), 2)
            for lists in ([[1, 2], [3, 4]], [[1], [2, 5, 6]])
        ]
        learner.step(0, batches[0])
        learner.prefetch(batches[1])
        [route] = store._table("bag.rows").announced
        assert route.keys_of(0).tolist() == [1, 2, 5, 6]
        store.end_step(1)
        learner.step(2, batches[1])
        keys = join([part for _, part in store.save()]).keys
        assert sorted(keys.tolist()) == [1, 2, 3, 4, 5, 6]
        store.close()


def test_lists_are_prefetched_in_the_order_of_their_look_ups(tmp_path):
    """Also if the first batch has padding; one table may hold several inputs."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = EmbeddingBag(DIM)

        def forward(self, inputs):
            tags = self.bag(inputs["tags"])
            return (tags + self.bag.rows(inputs["slots"])).sum(dim=1)

    secret = Secret.random()
    with in_process_servers(1, secret, ServerConfig()) as running:
        store = RemoteStore([running[0].address], secret)
        learner = Learner(Both(), store)
        batches = [
            Batch({"slots": torch.tensor(slots), "tags": padded(lists)}, torch.zeros(2), 2)
            for slots, lists in (([7, 8], [[1], [3, 4]]), ([7, 9], [[1], [2, 5, 6]]))
        ]
        learner.step(0, batches[0])
        assert learner.tables_without_prefetch == []
        learner.prefetch(batches[1])
        announced = [route.keys_of(0).tolist() for route in store._table("bag.rows").announced]
        assert announced == [[1, 2, 5, 6], [7, 9]]
        store.close()


class Bagged(nn.Module):
    """A score that is the sum of pooled rows."""

    def __init__(self):
        super().__init__()
        self.bag = EmbeddingBag(DIM)

    def forward(self, inputs):
        return self.bag(inputs["tags"]).sum(dim=1)


def test_a_batch_of_empty_lists_is_zeros():
    bag = EmbeddingBag(DIM, "mean")
    pooled = bag(padded([[], []]))
    assert pooled.tolist() == [[0.0] * DIM] * 2
    (pooled + torch.ones(1, requires_grad=True)).sum().backward()
    bag.rows.push()
    assert len(bag.rows._backing_store().table("embedding")) == 0


def test_what_can_not_be_pooled_is_refused():
    with pytest.raises(InputError, match="sum or mean, not 'max'"):
        EmbeddingBag(DIM, "max")
    with pytest.raises(InputError, match="3 dimensions"):
        EmbeddingBag(DIM)(torch.zeros(2, 2, 2, dtype=torch.int64))
    with pytest.raises(InputError, match="can't decay"):
        EmbeddingBag(DIM, decay=DecayPolicy())(padded(LISTS))


@pytest.fixture
def log(tmp_path):
    random = np.random.default_rng(0)
    rows = 300
    tags = [random.integers(0, 12, count).tolist() for count in random.integers(0, 5, rows)]
    liked = np.array([1 in one for one in tags])
    frame = pl.DataFrame(
        {
            "click": liked.astype(int),
            "buy": (liked & (random.random(rows) < 0.5)).astype(int),
            "user_id": random.integers(0, 50, rows),
            "item_id": random.integers(0, 50, rows),
            "price": random.random(rows),
            "tags": tags,
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ctrdnn-8", "dlrm", "dcn-v2", "deepfm", "wide-deep"])
def test_a_zoo_model_is_built_for_the_columns_and_learns_from_lists(log, name):
    recipe = make_recipe(name, data=str(log), columns="{labels: click, multi: {tags: mean}, ignore: [buy]}")
    recipe.data.epochs = None
    result = Session(recipe.model, recipe.data, TrainOptions(batch=50)).run(30)
    assert result.training_auc > 0.7  # only a tag decides
    assert recipe.model.example_batch(2, 0)[0]["tags"].ndim == 2


class Own(nn.Module):
    """Inputs by name, and two labels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tags = EmbeddingBag(4, "mean", name="tags")
        self.top = nn.Linear(5, 2)

    def forward(self, inputs):
        return self.top(torch.cat([self.tags(inputs["tags"]), inputs["dense"]], dim=1))


COLUMNS = "{labels: [click, buy], slots: [], multi: [tags], dense: [price]}"


@pytest.mark.slow
def test_your_own_model_pools_lists_and_reports_each_task(log):
    stream = FileStream(log, columns=COLUMNS, epochs=None)
    session = Session(Own(), stream, TrainOptions(batch=50))
    result = session.run(60)
    assert list(result.tasks) == ["click", "buy"]
    model = session.model.eval()
    batches = [batch for _, batch in zip(range(60), stream.batches(50, 0, Share(), 0), strict=False)]
    labels = torch.cat([batch.labels for batch in batches]).numpy()
    window = session.progress.window.arrays()
    assert (window["labels"] == labels).all()
    assert window["scores"].shape == labels.shape
    assert result.tasks["click"]["auc"] == result.training_auc
    assert result.tasks["click"]["auc"] > result.tasks["buy"]["auc"] > 0.5
    assert model(batches[0].inputs).shape == (50, 2)
    # before the first update: the sum of the tasks' log losses
    fresh = copy.deepcopy(batches[0].labels).double()
    logits = torch.from_numpy(window["scores"][:50]).double()
    first = nn.functional.binary_cross_entropy_with_logits(logits, fresh, reduction="sum") / 50
    assert result.losses[0] == pytest.approx(float(first), rel=1e-5)


def test_mmoe_learns_the_labels_of_a_file(log, tmp_path):
    columns = "{labels: [click, buy], multi: {tags: mean}}"
    recipe = make_recipe("mmoe", data=str(log), columns=columns)
    result = fit(recipe.model, recipe.data, batch=50, checkpoints=str(tmp_path / "run"))
    assert list(result.tasks) == ["click", "buy"]
    inputs = next(recipe.data.batches(50, 0, Share(), 0)).inputs
    loaded = load_for_inference(tmp_path / "run")
    with torch.no_grad():
        assert torch.equal(loaded(inputs), recipe.model(inputs))


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("ctrdnn-8", "{labels: [click, buy]}", "ctrdnn-8 learns one label; the columns have 2"),
        ("mmoe", "{labels: [click]}", "mmoe learns several labels; the columns have 1"),
        ("dlrm", "{labels: click, dense: []}", "at least two slots and one dense feature"),
        ("deepfm", "{labels: click, slots: {user: [user_id]}}", "one group of slots"),
        ("nce", "{labels: click}", "does not read click logs"),
    ],
)
def test_columns_that_do_not_fit_a_zoo_model_are_refused(log, name, columns, message):
    with pytest.raises(InputError, match=message):
        make_recipe(name, data=str(log), columns=columns)


def test_weights_scale_the_loss_of_examples(log):
    frame = pl.read_parquet(log).with_columns(w=pl.Series(np.arange(300) % 3, dtype=pl.Float64))
    frame.write_parquet(log)
    columns = "{labels: click, slots: [user_id, item_id], multi: [], dense: [price], weight: w}"
    recipe = make_recipe("ctrdnn-8", data=str(log), columns=columns)
    batch = next(recipe.data.batches(50, 0, Share(), 0))
    with torch.no_grad():
        output = recipe.model.eval()(batch.inputs)
    each = -output[torch.arange(50), batch.labels]
    result = Session(recipe.model, recipe.data, TrainOptions(batch=50)).run(1)
    assert batch.weights.unique().tolist() == [0.0, 1.0, 2.0]
    assert result.losses[0] == pytest.approx(float((each * batch.weights).mean()), rel=1e-5)
    plain = Own()
    plain.loss = lambda output, labels: output.mean()
    with pytest.raises(InputError, match="does not take weights"):
        Session(plain, FileStream(log, columns=COLUMNS[:-1] + ", weight: w}"), TrainOptions(batch=50)).run(1)


@pytest.mark.slow
def test_an_export_takes_lists_of_any_length(log, tmp_path, monkeypatch, request):
    monkeypatch.syspath_prepend(str(request.config.rootpath / "examples"))
    from serve import Served

    stream = FileStream(log, columns=COLUMNS)
    fit(Own(), stream, batch=50, checkpoints=str(tmp_path / "run"))
    export_for_serving(tmp_path / "run", tmp_path / "served", Own())
    served, model = Served(tmp_path / "served"), load_for_inference(tmp_path / "run", Own())
    assert served.manifest["inputs"]["tags"]["shape"] == ["batch", "longest"]
    for lists in (LISTS, [[1] * 9, []], [[]], [[2]]):
        inputs = {
            "slots": torch.zeros(len(lists), 0, 1, dtype=torch.int64),
            "dense": torch.rand(len(lists), 1),
        }
        inputs["tags"] = torch.where(padded(lists) < 0, -1, padded(lists) + (1 << 56))
        with torch.no_grad():
            torch.testing.assert_close(served.predict(inputs), model(inputs), rtol=1e-6, atol=1e-6)
