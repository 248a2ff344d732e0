"""Freed memory that a training keeps for its next step."""

from __future__ import annotations

import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import numpy as np
from berth.train.tables.memory import keep_freed_memory

keep_freed_memory()
faults = []
for step in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    rows = np.empty(100 << 20, np.uint8)  # far above the 32 MiB to which glibc raises its threshold for mappings
    rows[:: 4096] = 1
    del rows
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_a_large_block_is_faulted_in_once_and_not_at_every_step():
    ended = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    first, *later = map(int, ended.stdout.split())
    assert first > 20
    assert max(later) < first / 10
