"""The ledger gives whole gangs or nothing, and counts what is left."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from berth.cluster import Ledger, load_cluster
from berth.errors import LedgerError


@pytest.fixture
def ledger():
    return Ledger(load_cluster("2x2x4"))  # devices 0-3 4-7 | 8-11 12-15


def test_a_new_ledger_has_everything_free(ledger):
    assert ledger.free_by(0).tolist() == [4, 4, 4, 4]
    assert ledger.free_by(1).tolist() == [8, 8]
    assert ledger.total_free == ledger.free(2, 0) == ledger.free_of_type(0) == 16
    assert set(ledger.holder.tolist()) == {-1}


def test_a_gang_is_taken_and_given_back_in_the_order_it_was_asked_for(ledger):
    ledger.allocate(7, [5, 0, 9])
    assert ledger.devices_of(7).tolist() == [5, 0, 9]
    assert ledger.holder[[0, 5, 9]].tolist() == [7, 7, 7]
    assert ledger.free_by(0).tolist() == [3, 3, 3, 4]
    assert ledger.free_by(1).tolist() == [6, 7]
    assert ledger.release(7).tolist() == [5, 0, 9]
    assert ledger.total_free == 16
    assert ledger.jobs == ()


REFUSALS = [
    ([0, 3], "device 3 is held by job 1"),
    ([0, 0], "device 0 is named twice"),
    ([0, 16], "there is no device 16"),
    ([0, -1], "there is no device -1"),
    ([0, 12], "device 12 stands in machine r1-m1, which takes no new jobs"),
    ([], "at least one device"),
    ([0.5], "at least one device"),
    ([[0, 1]], "at least one device"),
]


@pytest.mark.parametrize(("devices", "message"), REFUSALS)
def test_a_gang_that_cannot_be_whole_changes_nothing(ledger, devices, message):
    ledger.allocate(1, [3])
    ledger.drain(3)
    before = ledger.snapshot()
    with pytest.raises(LedgerError, match=message):
        ledger.allocate(2, devices)
    after = ledger.snapshot()
    for name in ("holder", "following", "free", "shut"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
    assert ledger.jobs == (1,)


def test_a_job_holds_one_gang_only_and_a_stranger_none(ledger):
    ledger.allocate(1, [0])
    with pytest.raises(LedgerError, match="job 1 holds devices already"):
        ledger.allocate(1, [1])
    for asking in (ledger.release, ledger.devices_of, ledger.remove):
        with pytest.raises(LedgerError, match="job 2 holds nothing"):
            asking(2)
    with pytest.raises(LedgerError, match="job -1 is not a job number"):
        ledger.allocate(-1, [1])


@pytest.mark.parametrize(
    ("devices", "tier"), [([2], 0), ([0, 3], 0), ([3, 4], 1), ([0, 7, 5], 1), ([7, 8], 2), ([0, 15], 2)]
)
def test_the_tier_of_a_placement_is_the_nearest_that_holds_it(ledger, devices, tier):
    assert ledger.tier_of(devices) == tier


def test_the_tier_of_a_device_that_does_not_exist_is_refused(ledger):
    for devices in ([16], [-1], []):
        with pytest.raises(LedgerError):
            ledger.tier_of(devices)


def test_a_pool_has_one_tier():
    assert Ledger(load_cluster("16")).tier_of([0, 15]) == 0


def test_a_drained_machine_keeps_its_job_and_takes_back_nothing(ledger):
    ledger.allocate(1, [0, 1, 4])
    ledger.drain(0)
    assert ledger.free_by(0).tolist() == [0, 3, 4, 4]
    assert ledger.devices_of(1).tolist() == [0, 1, 4]
    ledger.release(1)
    assert ledger.free_by(0).tolist() == [0, 4, 4, 4]
    assert ledger.free_by(1).tolist() == [4, 8]
    ledger.undrain(0)
    assert ledger.free_by(1).tolist() == [8, 8]


def test_a_failed_machine_names_the_jobs_it_hits(ledger):
    ledger.allocate(5, [0, 8])
    ledger.allocate(3, [1])
    ledger.drain(0)
    assert ledger.fail(0) == (3, 5)
    assert ledger.shut.tolist() == [2, 0, 0, 0]
    assert ledger.free_by(0).tolist() == [0, 4, 3, 4]
    with pytest.raises(LedgerError, match="there is no machine 4"):
        ledger.fail(4)
    with pytest.raises(LedgerError, match="there is no machine -1"):
        ledger.drain(-1)


def test_draining_twice_counts_once(ledger):
    ledger.drain(1)
    ledger.drain(1)
    assert ledger.total_free == 12
    ledger.undrain(1)
    ledger.undrain(1)
    assert ledger.total_free == 16


def test_a_removal_undoes_itself_even_on_a_drained_machine(ledger):
    ledger.allocate(1, [2, 1])
    ledger.drain(0)
    before = ledger.snapshot()
    removal = ledger.remove(1)
    assert ledger.jobs == ()
    removal.undo()
    assert ledger.devices_of(1).tolist() == [2, 1]
    assert np.array_equal(before.free, ledger.snapshot().free)


def test_a_removal_cannot_be_undone_when_its_place_is_taken(ledger):
    ledger.allocate(1, [0, 1])
    removal = ledger.remove(1)
    ledger.allocate(2, [1])
    with pytest.raises(LedgerError, match="device 1 is held by job 2"):
        removal.undo()
    assert ledger.holder[0] == -1
    ledger.audit()


def test_restore_goes_back_and_keeps_views_alive(ledger):
    view = ledger.free_by(1)
    ledger.allocate(1, [0])
    snapshot = ledger.snapshot()
    ledger.release(1)
    ledger.allocate(2, [8, 9])
    ledger.drain(1)
    ledger.restore(snapshot)
    assert view.tolist() == [7, 8]
    assert ledger.jobs == (1,)
    ledger.audit()


def test_counts_per_device_type_in_mixed_machines():
    ledger = Ledger(load_cluster("cloud-mix"))
    names = [kind.name for kind in ledger.cluster.device_types]
    t4 = names.index("T4")
    first_t4 = int(np.flatnonzero(ledger.cluster.device_type == t4)[0])
    ledger.allocate(1, [0, first_t4])
    assert [ledger.free_of_type(kind) for kind in range(len(names))] == [767, 31, 32, 16, 8]
    assert ledger.free_by(0, t4).sum() == 31
    assert ledger.free(0, 0, t4) == 0


def test_views_cannot_be_written(ledger):
    for view in (ledger.holder, ledger.free_by(0), ledger.shut):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_an_audit_finds_a_count_or_a_holder_gone_astray(ledger):
    ledger.allocate(1, [0])
    ledger.audit()
    ledger.books.free[0, 0] += 1
    with pytest.raises(LedgerError, match="free counts"):
        ledger.audit()
    ledger.books.free[0, 0] -= 1
    ledger.books.holder[5] = 9
    with pytest.raises(LedgerError, match="does not know"):
        ledger.audit()
    ledger.books.holder[5] = 1
    with pytest.raises(LedgerError, match="disagree"):
        ledger.audit()


def test_counts_are_integers(ledger):
    assert ledger.free_by(0).dtype == np.int32
    assert ledger.holder.dtype == np.int64
    assert all(np.issubdtype(array.dtype, np.integer) for array in ledger.books)


def test_a_compiled_loop_can_call_the_same_kernels():
    """What the simulator will do: no Python object between the events."""
    code = """
import numpy as np
from numba import njit
from berth.cluster import Ledger, load_cluster
from berth.cluster._ledger_kernels import give_back, take
@njit
def loop(books, jobs):
    for job in range(jobs):
        take(books, job, np.arange(8 * job, 8 * job + 8), False)
    for job in range(0, jobs, 2):
        give_back(books, 8 * job)
ledger = Ledger(load_cluster("10x10x8"))
loop(ledger.books, 50)
print(ledger.total_free)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(800 - 25 * 8)
