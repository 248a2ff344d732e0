"""Tables: rows made on first touch, pushes that learn, statistics that add up."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from berth.train.tables import (
    Admission,
    Initialiser,
    Optimiser,
    Table,
    adagrad,
    adam,
    rowwise_adagrad,
    sgd,
    shard_of,
)


def gradients(count, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def test_a_row_depends_on_its_key_alone():
    keys = np.array([5, -3, 2**62, 0])
    whole, turned = Table(8), Table(8)
    expected = whole.pull(keys)
    assert (turned.pull(keys[::-1])[::-1] == expected).all()
    for shard in range(3):
        mine = shard_of(keys, 3) == shard
        assert (Table(8).pull(keys[mine]) == expected[mine]).all()


def test_another_seed_gives_other_rows():
    assert (Table(8, initialiser=Initialiser(seed=1)).pull([5]) != Table(8).pull([5])).all()


def test_unsigned_keys_keep_their_bits():
    table = Table(2)
    assert (table.pull(np.array([2**64 - 1], np.uint64)) == table.pull([-1])).all()
    assert len(table) == 1


@pytest.mark.parametrize(("kind", "deviation"), [("uniform", 0.3 / 3**0.5), ("normal", 0.3)])
def test_first_values_have_the_stated_spread(kind, deviation):
    rows = Table(16, initialiser=Initialiser(kind, 0.3)).pull(np.arange(4000))
    assert abs(rows.mean()) < 0.005
    assert rows.std() == pytest.approx(deviation, rel=0.02)
    assert len(np.unique(rows)) > 60_000 - 5_000


def test_sgd_steps_against_the_gradient():
    table = Table(3, optimiser=sgd(0.5))
    before, slopes = table.pull([1, 2]), gradients(2, 3)
    table.push([1, 2], slopes)
    assert table.pull([1, 2]) == pytest.approx(before - 0.5 * slopes)


def test_rowwise_adagrad_follows_its_formula():
    table = Table(4, optimiser=rowwise_adagrad())
    weights, total = table.pull([9])[0].astype(np.float64), 0.0
    for step in range(5):
        slope = gradients(1, 4, step)
        table.push([9], slope)
        weights -= 0.05 * slope[0] * np.sqrt(3 / (3 + total))
        total += np.mean(slope[0].astype(np.float64) ** 2)
    assert table.pull([9])[0] == pytest.approx(weights, rel=1e-5)


@pytest.mark.parametrize("kind", ["adagrad", "adam"])
def test_adagrad_and_adam_equal_torch_where_every_row_is_touched(kind):
    torch = pytest.importorskip("torch")
    table = Table(4, optimiser=adagrad(0.05) if kind == "adagrad" else adam(0.01))
    keys = np.arange(6)
    weights = torch.nn.Parameter(torch.from_numpy(table.pull(keys).copy()))
    rule = (
        torch.optim.Adagrad([weights], lr=0.05) if kind == "adagrad" else torch.optim.Adam([weights], lr=0.01)
    )
    for step in range(8):
        slopes = gradients(6, 4, step)
        table.push(keys, slopes)
        weights.grad = torch.from_numpy(slopes)
        rule.step()
    assert table.pull(keys) == pytest.approx(weights.detach().numpy(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
def test_duplicate_keys_learn_once_from_the_sum(kind):
    one, other = Table(5, optimiser=Optimiser(kind)), Table(5, optimiser=Optimiser(kind))
    slopes = gradients(4, 5)
    one.push([8, 3, 8, 8], slopes)
    other.push([3, 8], np.stack([slopes[1], slopes[0] + slopes[2] + slopes[3]]))
    assert (one.pull([3, 8]) == other.pull([3, 8])).all()


@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
def test_weights_stay_within_bounds(kind):
    table = Table(6, optimiser=Optimiser(kind, 100.0, bounds=(-0.5, 0.25)))
    table.push(np.arange(50), gradients(50, 6))
    rows = table.pull(np.arange(50))
    assert (rows.min(), rows.max()) == (-0.5, 0.25)


def test_a_deleted_row_starts_with_initial_values():
    table = Table(3)
    first = table.pull([4, 5])
    table.push([4, 5], gradients(2, 3))
    assert table.delete([4, 77]) == 1
    assert len(table) == 1
    assert (table.pull([4]) == first[:1]).all()
    assert (table.pull([5]) != first[1:]).any()


def test_freed_places_are_used_again():
    table = Table(3)
    table.pull(np.arange(100))
    table.delete(np.arange(0, 100, 2))
    table.pull(np.arange(200, 240))
    assert table.store.rows.top == 100
    assert table.store.rows.count == len(table) == 90


def test_statistics_count_what_was_asked():
    table = Table(2)
    table.pull([1, 1, 2])
    table.pull([1, 2, 2])
    table.push([1, 1, 1, 2], gradients(4, 2))
    reported = table.statistics()
    assert (reported.rows, reported.counts.pulled, reported.counts.created) == (2, 6, 2)
    assert reported.hit_rate == pytest.approx(4 / 6)
    assert reported.skew == 2.0


def test_rows_can_be_written_to_memory_that_is_there():
    table, out = Table(3), np.full((2, 3), 9, np.float32)
    assert table.pull([1, 2], out=out) is out
    assert (out == Table(3).pull([1, 2])).all()
    with pytest.raises(ValueError, match=r"contiguous float32 of shape \(1, 3\)"):
        table.pull([1], out=out)


@pytest.mark.parametrize(
    "admission",
    [
        None,
        Admission("count", 2),
        Admission("probability", 0.5),
        Admission("score", 0.0),
        Admission("score", 1),
    ],
    ids=str,
)
def test_what_is_only_looked_at_reads_as_if_it_were_pulled_and_makes_no_row(admission):
    table, keys = Table(4, admission=admission), np.arange(40)
    table.push(keys[:10], np.ones((10, 4), np.float32))
    table.pull(keys[5:20])
    before = len(table), table.admission_filter and table.admission_filter.pending.count
    seen = table.peek(keys)
    assert (len(table), table.admission_filter and table.admission_filter.pending.count) == before
    assert (seen == table.pull(keys)).all()


def test_nothing_asked_is_nothing_done():
    table = Table(2)
    assert table.pull([]).shape == (0, 2)
    table.push([], np.empty((0, 2), np.float32))
    assert len(table) == 0


def test_gradients_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"2 keys need gradients of shape \(2, 3\), not \(2, 4\)"):
        Table(3).push([1, 2], gradients(2, 4))


def test_an_unknown_optimiser_is_named():
    with pytest.raises(ValueError, match="did you mean 'adagrad'"):
        Optimiser("adagrat")  # type: ignore[arg-type]


UNDER_A_LIMIT = """
import resource
import numpy as np
from berth.train.tables import Table
first = Table(16)
first.pull([1])  # kernels are loaded
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
reserved = first.store.rows.data.nbytes + first.store.rows.changed.nbytes
del first
resource.setrlimit(resource.RLIMIT_AS, (taken - reserved + {more}, resource.RLIM_INFINITY))
tables = [Table(16), Table(16)]
for table in tables:
    table.push(np.arange(20_000), np.ones((20_000, 16), np.float32))
print([len(table) for table in tables])
"""


def under_a_limit(more):
    script = [sys.executable, "-c", UNDER_A_LIMIT.format(more=more)]
    compiled = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    return subprocess.run(script, capture_output=True, text=True, timeout=600, check=False, env=compiled)


@pytest.mark.slow
def test_where_the_system_promises_less_tables_are_smaller_and_not_refused():
    assert under_a_limit(1 << 30).stdout == "[20000, 20000]\n"


@pytest.mark.slow
def test_without_memory_the_error_says_what_to_check():
    reported = under_a_limit(1 << 20).stderr
    assert "grants no memory for a table" in reported
    assert "ulimit -v" in reported


def test_a_process_with_large_tables_can_still_start_others():
    tables = [Table(64) for _ in range(8)]  # together they reserve more than there is
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(tables) == 8
