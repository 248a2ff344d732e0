"""Rows in the memory of the stand-in accelerator; run by test_devices.py in a process of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from berth.testing.accelerator import register
from berth.train import Checkpoints, ClickStream, DecayPolicy, Embedding, Session, TrainOptions
from berth.train.device_store import DeviceCachedStore
from berth.train.devices import to_device
from berth.train.local import LocalStore
from berth.train.sparse import TableSpec
from berth.train.tables import Admission, Initialiser, Optimiser, adagrad, adam, rowwise_adagrad, sgd
from berth.train.tables.state import arrays_of

DEVICE = register()
STANDIN = torch.device("standin")
BATCH, STEPS, DIM = 32, 12, 4
OPTIMISERS = {
    "sgd": sgd(0.3),
    "sgd with bounds": Optimiser("sgd", 0.3, bounds=(-0.02, 0.01)),
    "rowwise_adagrad": rowwise_adagrad(),
    "adagrad": adagrad(),
    "adam": adam(0.01),
}


class Model(nn.Module):
    """A table and a layer with dropout."""

    def __init__(self, **table):
        super().__init__()
        torch.manual_seed(3)
        self.rows = Embedding(DIM, name="rows", **table)
        self.top = nn.Sequential(nn.Linear(26 * DIM, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, inputs):
        return self.top(self.rows(inputs["slots"]).flatten(1)).squeeze(1)


def session(device, model=None, rows=None, **options):
    """A session with a cache of this many rows."""
    model = model or Model(optimiser=adagrad())
    spec = model.rows.spec
    row_bytes = 4 * (spec.dim + len(spec.optimiser.first_state(spec.dim)))
    cache = None if rows is None or device == "cpu" else rows * row_bytes
    return Session(
        model, ClickStream(), TrainOptions(batch=BATCH, device=device, device_cache=cache, **options)
    )


def tables(trained):
    parts = enumerate(trained.store.save())
    return {
        (name, number, column): values
        for number, (name, part) in parts
        for column, values in arrays_of(part).items()
    }


def ended(trained, steps=STEPS):
    losses = trained.run(steps).losses
    dense, _ = trained._dense()
    return losses, dense, tables(trained), trained.store.statistics().get("device_cache", {}).get("rows")


def assert_same(one, other):
    assert one[0] == other[0]
    for ours, theirs in zip(one[1:3], other[1:3], strict=True):
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            assert np.array_equal(np.asarray(values), np.asarray(theirs[name])), name


@pytest.mark.parametrize("rows", [0, 150, 100_000])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_cache_of_any_size_changes_no_bit(name, rows):
    """Less than a batch, with evictions in every step, and all rows."""
    optimiser = OPTIMISERS[name]
    expected = ended(session("cpu", Model(optimiser=optimiser)))
    found = ended(session("standin", Model(optimiser=optimiser), rows))
    assert_same(expected, found)
    cache = found[3]
    assert cache["capacity"] == rows
    assert 0 <= cache["rows"] <= rows
    assert cache["evictions"] > 0 if rows == 150 else cache["evictions"] < STEPS
    assert (cache["hits"] > 0) == (rows > 1)
    assert cache["prefetched"] > 0


@pytest.mark.parametrize(
    "table",
    [
        {"decay": DecayPolicy(min_score=0.25)},
        {"admission": Admission("count", 3)},
        {"admission": Admission("probability", 0.5)},
        {"admission": Admission("score", 0.5), "decay": DecayPolicy(min_score=0.1)},
    ],
    ids=["decay", "count", "probability", "score and decay"],
)
def test_decay_and_admission_are_those_of_the_table(table):
    table = {"optimiser": adagrad(), **table}
    expected = ended(session("cpu", Model(**table), day_every=4 * BATCH))
    for rows in (150, 2000):
        found = ended(session("standin", Model(**table), rows, day_every=4 * BATCH))
        assert_same(expected, found)
        assert found[3]["hits"] > 100


@pytest.mark.parametrize("rows", [150, 100_000])
def test_a_resumed_run_with_a_cache_equals_an_uninterrupted_one(rows, tmp_path):
    """The checkpoint has the rows that only the device has; the cache of the resumed run begins empty."""
    whole = ended(session("standin", rows=rows))
    every = Checkpoints(tmp_path, every=STEPS // 2)
    begun = session("standin", rows=rows, checkpoints=every)
    losses = begun.run(STEPS // 2).losses
    assert begun.store.statistics()["device_cache"]["rows"]["rows"] >= 150
    begun.close()
    resumed = session("standin", rows=rows, checkpoints=every)
    assert resumed.resumed_from == STEPS // 2
    rest, *others = ended(resumed)
    assert_same(whole, (losses + rest, *others))
    assert others[2]["hits"] > 0
    resumed.close()


def test_rows_go_from_the_device_to_host_memory_to_a_file_and_back(tmp_path):
    """A cache above a memory budget above a file."""
    spec = TableSpec("rows", 8, adam(0.01), Initialiser())
    plain = LocalStore()
    tiers = DeviceCachedStore(STANDIN, 200 * 4 * 25, memory_bytes=5 << 19, folder=tmp_path)
    random = np.random.default_rng(5)
    for store in (plain, tiers):
        store.open([spec])
    for _ in range(12):
        keys = (random.zipf(1.2, 2000) % 20_000).astype(np.uint64)
        rows = plain.pull("rows", keys)
        there = tiers.pull_to_device("rows", keys)
        assert np.array_equal(there.cpu().numpy(), rows)
        plain.push("rows", keys, rows * 2 + 1)
        tiers.push_from_device("rows", keys, there * 2 + 1)
    statistics = tiers.statistics()
    assert statistics["tables"]["rows"]["cold_bytes"] > 0
    assert statistics["device_cache"]["rows"]["evictions"] > 50
    everything = np.unique(np.concatenate([part.keys for _, part in plain.save()]))
    assert np.array_equal(tiers.peek("rows", everything), plain.peek("rows", everything))
    list(tiers.save())
    states = [arrays_of(store.table("rows").save()) for store in (plain, tiers)]
    for name, values in states[0].items():
        assert np.array_equal(values, states[1][name]), name
    tiers.push("rows", everything[:500], np.ones((500, 8), np.float32))  # from the host
    plain.push("rows", everything[:500], np.ones((500, 8), np.float32))
    assert np.array_equal(tiers.pull("rows", everything), plain.pull("rows", everything))


def counted_steps(rows, steps, keys_of, dim=16):
    """Bytes of rows and gradients that the stand-in counts for the last half of some steps, and the statistics."""
    store = DeviceCachedStore(STANDIN, rows * 4 * 2 * dim)
    layer = Embedding(dim, name="rows", optimiser=adagrad())
    store.open([layer.spec])
    layer.connect(store)

    def train(first, after):
        for step in range(first, after):
            found = layer(to_device(torch.from_numpy(keys_of(step)), STANDIN))
            (found * found).sum().backward()
            layer.push()
        return store.statistics()["device_cache"]["rows"]

    before = train(0, steps // 2)
    with DEVICE.counting() as counted:
        after = train(steps // 2, steps)
    hits, misses = (after[name] - before[name] for name in ("hits", "misses"))
    return counted, hits / (hits + misses)


def test_the_bytes_of_a_step_fall_by_the_hit_rate():
    """Zipf keys; the stand-in counts every copy. Keys and places are copied with and without a cache."""
    steps, examples, dim = 60, 1500, 16

    def keys_of(step):
        return np.random.default_rng(step).zipf(1.3, examples).astype(np.int64) % 50_000

    distinct = np.mean([len(np.unique(keys_of(step))) for step in range(steps // 2, steps)])
    bare, no_hits = counted_steps(0, steps, keys_of)
    assert no_hits == 0
    half = steps // 2
    rows = distinct * dim * 4 * half
    assert bare.to_host.bytes == rows  # a gradient for each distinct key
    numbers = bare.to_device.bytes - rows
    # keys; for each of them, and each distinct one, a place
    assert 0 < numbers <= half * examples * (8 + 2 * 4)
    cached, hit_rate = counted_steps(1000, steps, keys_of)
    assert hit_rate > 0.5
    # A miss costs a row and its gradient, or its record there and an evicted record back, twice as long.
    up, down = cached.to_device.bytes - numbers, cached.to_host.bytes
    assert (1 - hit_rate) * rows <= up <= 2 * (1 - hit_rate) * rows + half * distinct * 3 * 4
    assert down <= 2 * (1 - hit_rate) * rows
    assert down < 0.7 * bare.to_host.bytes
    everything, all_hits = counted_steps(50_000, steps, keys_of)
    assert all_hits > hit_rate
    assert everything.to_host.bytes == 0  # nothing is evicted, and no gradient leaves the device
    both = [one.to_device.bytes + one.to_host.bytes - numbers for one in (everything, cached, bare)]
    assert both[0] < both[1] < 0.8 * both[2]
