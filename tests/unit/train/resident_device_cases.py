"""Resident tables on the stand-in accelerator; run by test_devices.py in a process of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from resident_ranks import in_ranks, resident

from berth.errors import InputError
from berth.testing import accelerator
from berth.testing.accelerator import register
from berth.train import ClickStream, Embedding, LocalStore, Session, TrainOptions
from berth.train.sparse import TableSpec
from berth.train.tables import Admission, DecayPolicy, Initialiser, Optimiser, join

DEVICE = register()
STANDIN = torch.device("standin")
DIM, STEPS, KEYS = 4, 4, 3000


def spec(kind="adagrad", **more):
    return TableSpec("rows", DIM, Optimiser(kind, 0.1), Initialiser("uniform"), **more)


def batches(ranks, *, empty=None):
    draw = np.random.default_rng(ranks)
    counts = [[0 if rank == empty else 900 for rank in range(ranks)] for _ in range(STEPS)]
    return [
        [
            (
                draw.integers(1, KEYS, count).astype(np.uint64),
                (draw.integers(-8, 9, (count, DIM)) / 8).astype(np.float32),
                draw.integers(0, 2, count).astype(np.float32),
            )
            for count in step
        ]
        for step in counts
    ]


def alone(table, steps, day):
    store, pulled = LocalStore(), []
    store.open([table])
    for number, parts in enumerate(steps):
        keys, gradients, clicks = (np.concatenate([part[column] for part in parts]) for column in range(3))
        pulled.append(store.pull("rows", keys))
        store.push("rows", keys, gradients, clicks=clicks if table.counts_clicks else None)
        if number == day:
            store.end_day()
    return pulled, join([state for _, state in store.save()])


def together(table, steps, ranks, day):
    def work(process_group):
        rank, store, pulled = (
            process_group.rank_info.rank,
            resident(process_group, table, device=STANDIN),
            [],
        )
        for number, parts in enumerate(steps):
            keys, gradients, clicks = parts[rank]
            rows = store.pull_to_device("rows", keys)
            assert rows.device.type == "standin"
            pulled.append(rows.cpu().numpy())
            if number + 1 < len(steps):
                store.prefetch("rows", steps[number + 1][rank][0])
            there = torch.from_numpy(gradients).to(STANDIN)
            store.push_from_device("rows", keys, there, clicks=clicks if table.counts_clicks else None)
            store.end_step(number)
            if number == day:
                store.end_day()
        return pulled, join(list(store._shard.parts(0, changed_only=False))), store.statistics()

    return in_ranks(ranks, work)


@pytest.mark.parametrize(
    ("table", "ranks", "empty"),
    [
        (spec(), 1, None),
        (spec(), 2, None),
        (spec("adam"), 2, 0),
        (spec("rowwise_adagrad", decay=DecayPolicy(min_score=0.5)), 2, None),
        (spec("sgd", admission=Admission("count", 2)), 3, 1),
    ],
    ids=["alone", "adagrad", "adam, an empty share", "decay", "admission"],
)
def test_rows_on_the_device_are_those_of_one_process_in_host_memory(table, ranks, empty):
    steps = batches(ranks, empty=empty)
    day = 2 if table.decay else None
    pulled, state = alone(table, steps, day)
    found = together(table, steps, ranks, day)
    for step, rows in enumerate(pulled):
        np.testing.assert_array_equal(np.concatenate([part[0][step] for part in found]), rows)
    saved = join([part[1] for part in found])
    np.testing.assert_array_equal(saved.keys, state.keys)
    np.testing.assert_array_equal(saved.records, state.records)
    for _, shard, facts in found:  # every row of the shard has its place on the device
        cache = facts["device_cache"]["rows"]
        assert cache["rows"] == facts["tables"]["rows"]["rows"] == len(shard.keys)
        assert cache["evictions"] == 0


def test_only_rows_and_gradients_of_others_cross_between_host_and_device():
    """Once the rows are on the device: rows to others and from them, gradients likewise, and which row is whose."""
    keys = np.arange(1, 401, dtype=np.uint64)

    def work(process_group):
        store = resident(process_group, spec(), device=STANDIN)
        gradients = torch.ones((len(keys), DIM), device=STANDIN)
        store.pull_to_device("rows", keys)
        store.push_from_device("rows", keys, gradients)
        store.end_step(0)
        others = 4 * DIM * (len(keys) - store.statistics()["tables"]["rows"]["rows"])
        own = 4 * DIM * store.statistics()["tables"]["rows"]["rows"]
        with accelerator._DEVICE.counting() as counted:
            store.pull_to_device("rows", keys)
            store.push_from_device("rows", keys, gradients)
            store.end_step(1)
        return others, own, counted.to_host, counted.to_device

    for others, own, to_host, to_device in in_ranks(2, work):
        assert to_host.bytes == own + others  # own rows for the other rank, gradients of its rows
        numbers = 2 * 4 * 2 * len(keys)  # places and positions of a look-up, at most twice
        assert own + others <= to_device.bytes <= own + others + numbers


def test_a_shard_that_does_not_fit_is_one_message_with_what_to_do():
    def work(process_group):
        register(memory_bytes=120_000)
        store = resident(process_group, spec(), device=STANDIN)
        for step in range(50):
            store.pull_to_device("rows", np.arange(500 * step, 500 * step + 500, dtype=np.uint64))
            store.end_step(step)

    (error,) = in_ranks(1, work)
    assert isinstance(error, InputError)
    assert "standin is out of memory" in str(error)
    assert "rows of table 'rows' have" in str(error)
    assert "use more workers, a smaller --batch, or --tables servers" in str(error)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.rows = Embedding(8, name="rows")
        self.top = torch.nn.Linear(26 * 8, 1)

    def forward(self, inputs):
        return self.top(self.rows(inputs["slots"]).flatten(1)).squeeze(1)


def test_one_process_has_all_rows_on_its_device(tmp_path):
    """With the bits of rows in host memory, also after a checkpoint is resumed."""
    losses = {}
    for place, steps in (("host", (6,)), ("device", (3, 6))):
        options = {} if place == "host" else {"device": "standin", "tables": "resident"}
        losses[place] = []
        for end in steps:
            session = Session(
                Model(), ClickStream(), TrainOptions(batch=32, checkpoints=tmp_path / place, **options)
            )
            losses[place] += session.run(end).losses
            facts = session.store.statistics()
            session.close()
        if place == "device":
            assert facts["device_cache"]["rows"]["rows"] == facts["tables"]["rows"]["rows"] > 0
    assert losses["host"] == losses["device"]
