"""The live controller under faults: hundreds of seeds, each one a story that repeats itself."""

import shutil
import tempfile
from pathlib import Path

import pytest

from berth.testing.drama import Drama

SHARDS = 20


def play(seed: int) -> Drama:
    quick = Path("/dev/shm")  # a sync costs nothing there, and is still a sync
    folder = Path(tempfile.mkdtemp(prefix="berth-drama-", dir=quick if quick.is_dir() else None))
    try:
        drama = Drama(seed, folder)
        drama.play()
        return drama
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", range(3))
def test_a_story_with_crashes_ends_well(seed):
    play(seed)
