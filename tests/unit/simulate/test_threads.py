"""Simulations that run in several threads of one process give the same bits as one after the other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

POLICIES = ("fifo", "tiresias", "dally", "berth")

CHILD = """
import hashlib, sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.run import Setting, simulate
from berth.workload.generate import GenerateSpec, generate

POLICIES = sys.argv[3:]
start = Barrier(len(POLICIES))

def run(number):
    if sys.argv[1] == "threads":
        start.wait()
    trace = generate(GenerateSpec(jobs=150 + 30 * number, load=0.9, gpus=64, seed=number))
    run = simulate(trace, load_cluster("2x4x8"), load_policy(POLICIES[number]), Setting(log=True, network=sys.argv[2]))
    digest = hashlib.sha256()
    for array in (run.records, run.accounts, run.log, run.log_places):
        for name in array.dtype.names:  # field by field: what is between them is undefined
            digest.update(array[name].tobytes())
    return digest.hexdigest()

numbers = range(len(POLICIES))
if sys.argv[1] == "threads":
    with ThreadPoolExecutor(len(POLICIES)) as pool:
        found = list(pool.map(run, numbers))
else:
    found = [run(number) for number in numbers]
print(*found)
"""


def digests(mode, network="on", policies=POLICIES, **environment):
    """The results of a process that has neither compiled nor loaded anything before."""
    command = [sys.executable, "-c", CHILD, mode, network, *policies]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_concurrent_simulations_of_a_fresh_process_equal_sequential_ones_to_the_bit():
    found = digests("threads")
    assert len(set(found)) == len(POLICIES)
    assert found == digests("sequential")


@pytest.mark.slow
def test_threads_that_compile_at_the_same_time_simulate_the_same_to_the_bit(tmp_path):
    some = ("off", ("fifo", "srtf"))  # compiling every phase for every network takes minutes
    assert digests("threads", *some, XDG_CACHE_HOME=str(tmp_path)) == digests("sequential", *some)
