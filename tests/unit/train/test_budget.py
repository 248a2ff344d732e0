"""A memory budget that can't hold the keys of a run is refused when it begins, with the smallest that can."""

from __future__ import annotations

import numpy as np
import pytest

from berth.errors import InputError
from berth.train import ClickStream
from berth.train.budget import check_budget
from berth.train.recipes import make_recipe
from berth.train.tables import Table, adagrad
from berth.train.tables.tiers import max_keys, min_memory


def filled_table(tmp_path, memory, keys, dim=4, batch=5000):
    table = Table(dim, optimiser=adagrad(), memory_bytes=memory, folder=tmp_path)
    for start in range(0, keys, batch):
        some = np.arange(start, min(start + batch, keys), dtype=np.uint64)
        table.pull(some)
        table.push(some, np.ones((len(some), dim), np.float32))
    return table


@pytest.mark.parametrize("keys", [1_000, 40_000, 60_000, 150_000])
def test_the_least_memory_for_some_keys_is_enough_for_them(tmp_path, keys):
    table = filled_table(tmp_path, min_memory(8, keys), keys)
    assert table.store.index.count == keys
    assert table.store.bytes <= min_memory(8, keys)


def test_much_less_than_the_least_is_not(tmp_path):
    with pytest.raises(InputError, match="is too small for"):
        filled_table(tmp_path, min_memory(8, 150_000) * 6 // 10, 150_000)


def test_the_most_keys_of_a_budget_are_the_inverse():
    for keys in (1_000, 49_153, 10**6, 10**7):
        most = max_keys(8, min_memory(8, keys))
        assert most >= keys
        assert min_memory(8, most) <= min_memory(8, keys)
        assert min_memory(8, most + 1) > min_memory(8, keys)


def test_a_table_that_comes_near_its_end_says_so_once(tmp_path, capfd):
    memory = min_memory(8, 100_000)
    filled_table(tmp_path, memory, max_keys(8, memory) * 7 // 10)
    assert capfd.readouterr().err == ""
    filled_table(tmp_path, memory, max_keys(8, memory) * 9 // 10)
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f"holds up to {max_keys(8, memory):,} keys" in said


@pytest.mark.parametrize("examples", [1_000, 20_000])
def test_the_keys_of_the_built_in_clicks_are_foreseen(examples):
    drawn = len(np.unique(ClickStream().draw(0, examples)[0]))
    assert ClickStream().expected_keys(examples) == pytest.approx(drawn, rel=0.02)


@pytest.mark.slow
def test_a_budget_too_small_for_the_run_fails_before_it_begins():
    made = make_recipe("ctrdnn-8", batch=512)
    keys = made.data.expected_keys(400_000)
    width = 2 * 16
    with pytest.raises(InputError, match=r"--memory 8MB is too small for the .* keys") as error:
        check_budget(made, 400_000, "8MB", servers=0)
    assert "minimum" in error.value.hint
    check_budget(made, 400_000, f"{min_memory(width, round(keys * 1.02))}B", servers=0)
    check_budget(made, 1_000, "8MB", servers=0)
    check_budget(made, None, "8MB", servers=0)  # not known: it is reported when it comes close
