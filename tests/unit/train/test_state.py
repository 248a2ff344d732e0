"""States: the same table gives the same arrays, and they load anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from berth.train.tables import (
    Admission,
    Table,
    adam,
    arrays_of,
    from_arrays,
    join,
    sgd,
    shard_of,
    shard_skew,
    split,
)


def trained(dim=4, count=300, **options):
    table = Table(dim, **options)
    random = np.random.default_rng(2)
    for _ in range(5):
        keys = random.integers(-count, count, 100)
        table.pull(keys)
        table.push(keys, random.standard_normal((100, dim)).astype(np.float32))
    return table


def test_a_loaded_table_goes_on_as_the_saved_one():
    table, other = trained(optimiser=adam()), Table(4, optimiser=adam())
    other.load(table.save())
    for one in (table, other):
        one.push(np.arange(50), np.ones((50, 4), np.float32))
    assert (table.save().records == other.save().records).all()


def test_a_state_survives_a_file(tmp_path):
    state = trained().save()
    np.savez(tmp_path / "table.npz", **arrays_of(state))
    with np.load(tmp_path / "table.npz") as arrays:
        back = from_arrays(dict(arrays))
    assert (back.whole, back.day) == (True, 0)
    assert (back.records == state.records).all()


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_train_as_one_table_does(shards):
    keys, gradients = (
        np.arange(200) * 7,
        np.random.default_rng(1).standard_normal((200, 4)).astype(np.float32),
    )
    whole, parts = Table(4), [Table(4) for _ in range(shards)]
    whole.push(keys, gradients)
    for shard, part in enumerate(parts):
        mine = shard_of(keys, shards) == shard
        part.push(keys[mine], gradients[mine])
    merged, state = join([part.save() for part in parts]), whole.save()
    assert (merged.keys == state.keys).all()
    assert (merged.records == state.records).all()
    again = split(state, shards)
    assert sum(len(part.keys) for part in again) == len(whole)


def test_a_delta_holds_what_changed_and_what_is_gone():
    table = Table(2)
    table.pull(np.arange(10))
    table.save()
    table.push([3], np.ones((1, 2), np.float32))
    table.pull([4, 11])
    table.delete([5, 6])
    table.pull([6])
    delta = table.save(changed_only=True)
    assert delta.keys.tolist() == [3, 6, 11]
    assert delta.removed.tolist() == [5]
    assert not delta.whole
    assert len(table.save(changed_only=True).keys) == 0


@pytest.mark.parametrize("changed_only", [False, True])
def test_a_table_saved_in_parts_is_the_same_table(changed_only):
    table, other = trained(admission=Admission("count", 2)), Table(4, admission=Admission("count", 2))
    other.pull([10**9] * 2)
    other.load(table.save())
    table.pull(np.arange(-200, 0))
    table.push(np.arange(-100, 100), np.ones((200, 4), np.float32))
    table.delete(np.arange(40))
    for part in table.save_parts(changed_only=changed_only):
        other.load(part)
    for name, column in arrays_of(table.save()).items():
        assert (getattr(other.save(), name) == column).all()
    assert other.admission_filter.pending.count > 0
    assert len(other) > 0


def test_a_whole_state_replaces_what_is_there():
    table = trained()
    other = Table(4)
    other.pull([10**9])
    other.load(table.save())
    assert (other.save().keys == table.save().keys).all()


def test_a_state_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="saved rows have 5 numbers each, rows of this table have 4"):
        Table(4, optimiser=sgd()).load(trained().save())


def test_the_skew_over_shards_is_that_of_the_busiest():
    assert shard_skew([30, 10]) == 1.5
    assert shard_skew([7]) == 1.0
    assert shard_skew([0, 0]) == 1.0
