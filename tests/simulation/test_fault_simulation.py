"""The live controller under faults: each run is determined by its seed."""

import shutil
import tempfile
from pathlib import Path

import pytest

from berth.testing.fault_simulation import FaultRun

SEEDS, SHARD = 20, 10
SOAK_SEEDS, SOAK_SHARD = 5000, 250


def play(seed: int) -> FaultRun:
    quick = Path("/dev/shm")  # a sync is fast there
    folder = Path(tempfile.mkdtemp(prefix="berth-faults-", dir=quick if quick.is_dir() else None))
    try:
        run = FaultRun(seed, folder)
        run.play()
        return run
    except BaseException as error:
        error.add_note(f"again: python -m berth.testing.fault_simulation {seed}")
        raise
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_run_is_determined_by_its_seed():
    one, other = play(3), play(3)
    assert one.crashes == other.crashes > 0
    assert sorted(one.accepted) == sorted(other.accepted)
    assert one.last_seq == other.last_seq


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, SHARD))
def test_no_job_is_lost_or_run_twice_whatever_is_killed_when(first):
    runs = [play(seed) for seed in range(first, first + SHARD)]
    assert sum(run.crashes for run in runs) > SHARD  # else the runs have too few faults to show anything
    assert sum(run.changes for run in runs) > 0  # jobs with alternatives went on in another shape


@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 10_000 + SOAK_SEEDS, SOAK_SHARD))
def test_thousands_of_runs_have_no_error(first):
    for seed in range(first, first + SOAK_SHARD):
        play(seed)
