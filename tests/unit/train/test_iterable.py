"""Any restartable Python iterable is data, and resumes bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from berth.errors import InputError
from berth.train import Embedding, Trainer
from berth.train.data import Share
from berth.train.data.iterable import IterableSource


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = Embedding(4)
        self.top = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, inputs):
        return self.top(self.rows(inputs["ids"]).flatten(1)).squeeze(1)


def batches():
    draw = np.random.default_rng(5)
    for number in range(12):
        ids = draw.integers(0, 50, (20 + number, 2))  # batches may differ in size
        yield {"ids": ids}, (ids[:, 0] > ids[:, 1]).astype(np.int64)


def single_examples():
    for inputs, labels in batches():
        for ids, label in zip(inputs["ids"], labels, strict=True):
            yield {"ids": ids}, int(label)


def test_a_run_on_a_generator_resumes_bit_for_bit(tmp_path):
    whole = Trainer(Tiny, batches).fit()
    assert (whole.step, whole.examples) == (12, sum(range(20, 32)))
    Trainer(Tiny, batches, checkpoints=tmp_path).fit(steps=5)
    resumed = Trainer(Tiny, batches, checkpoints=tmp_path).fit()
    assert resumed.losses == whole.losses[5:]
    for key, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[key])


def test_fitting_again_continues_where_the_run_ended():
    whole = Trainer(Tiny, batches).fit()
    trainer = Trainer(Tiny, batches)
    first, then = trainer.fit(steps=4), trainer.fit()
    assert first.losses + then.losses == whole.losses


def test_single_examples_are_collected_into_batches():
    found = list(IterableSource(single_examples).batches(100, 0, Share(), 0))
    assert [batch.examples for batch in found] == [100, 100, 100, 6]
    ids = torch.cat([batch.inputs["ids"] for batch in found])
    assert torch.equal(ids, torch.cat([torch.as_tensor(inputs["ids"]) for inputs, _ in batches()]))
    later = next(IterableSource(single_examples).batches(100, 2, Share(), 0))
    assert torch.equal(later.inputs["ids"], found[2].inputs["ids"])


def test_workers_take_every_nth_row_of_a_batch():
    whole = next(IterableSource(batches).batches(0, 3, Share(), 0))
    parts = [next(IterableSource(batches).batches(0, 3, Share(worker, 2), 0)) for worker in range(2)]
    assert [part.whole for part in parts] == [23, 23]
    assert [part.examples for part in parts] == [12, 11]
    assert torch.equal(parts[1].labels, whole.labels[1::2])


def test_what_can_be_read_only_once_is_refused():
    with pytest.raises(InputError, match="can be read only once") as error:
        Trainer(Tiny, batches())
    assert "pass the function" in error.value.hint
    with pytest.raises(InputError, match="expected a path, a BatchSource"):
        Trainer(Tiny, 3.0)


def test_data_that_ends_too_soon_to_resume_is_reported():
    with pytest.raises(InputError, match="ends before step 40"):
        next(IterableSource(batches).batches(0, 40, Share(), 0))


def test_items_of_another_shape_are_reported():
    with pytest.raises(InputError, match=r"expected \(inputs, labels\)"):
        next(IterableSource([5]).batches(1, 0, Share(), 0))
    uneven = [({"ids": torch.zeros(3, 2)}, torch.zeros(4))]
    with pytest.raises(InputError, match="4 labels and an input of 3 rows"):
        next(IterableSource(uneven).batches(1, 0, Share(), 0))
