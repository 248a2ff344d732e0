"""What a run compiles: only what its rules ask for and its jobs reach."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CHILD = """
import sys
from berth.cluster.load import load_cluster
from berth.native.deferred import deferred_kernels
from berth.schedule.policies.registry import load_policy
from berth.simulate.run import Setting, simulate
from berth.workload.generate import GenerateSpec, generate
from berth.workload.shapes import EVERY, Offer, Part, Shape, Work, canonical
from berth.workload.trace import Trace

def shape(step_s, gpus):
    return Shape(str(gpus), (Part("all", (("GPU", gpus),), None),), ((EVERY, step_s),), 1.0)

policy, *features = sys.argv[1:]
if "alternatives" in features:
    offer = canonical(Offer(Work(1000.0), (shape(1.0, 2), shape(0.3, 8))))
    columns = {"job_id": ["a"], "submit_s": [0.0], "num_gpu": [2], "duration_s": [1.0]}
    trace = Trace.from_columns(columns, source="test", offers={"a": offer})
else:
    trace = generate(GenerateSpec(jobs=60, load=1.2, gpus=64))
setting = Setting(log="log" in features, network="off")
run = simulate(trace, load_cluster("2x4x8"), load_policy(policy), setting)
assert not run.unfinished
print(*(name for name, kernel in deferred_kernels().items() if kernel.pointer is not None))
"""

ALTERNATIVES = {
    f"berth.schedule.{name}"
    for name in (
        "shape_choice.begin_prices",
        "shape_choice.choose",
        "shapes.claim_shape",
        "shapes.find_shape",
        "shapes.find_vector",
        "start_waiting.start_chosen",
        "reservation.soonest_for_need",
    )
}
LOG = {"berth.simulate.log.has_room", "berth.simulate.log.write_event"}
UNASKED = {
    "berth.schedule.estimates.learn_duration",  # durations are known
    "berth.schedule.estimates.record_untracked",
    "berth.schedule.links.may_send",  # links are not limited
    "berth.schedule.start_waiting.sort_by_order",  # the order does not depend on totals
    "berth.schedule.start_waiting.reserve_from_lower",  # one priority
    "berth.simulate.engine.apply_due_faults",
}


def reached(*arguments):
    """The deferred kernels that a fresh process compiles or reads for a run."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], env=os.environ, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("policy", ["fifo", "dally", "berth"])
def test_a_run_compiles_nothing_for_features_that_it_does_not_use(policy):
    kernels = reached(policy)
    assert "berth.schedule.allocation.start_job" in kernels
    assert not kernels & (ALTERNATIVES | LOG | UNASKED)


def test_a_log_is_compiled_where_it_is_written():
    assert reached("fifo", "log") >= LOG


def test_alternatives_are_compiled_where_a_job_has_some():
    kernels = reached("fifo", "alternatives")
    assert kernels >= ALTERNATIVES - {
        "berth.schedule.shapes.find_vector",
        "berth.schedule.reservation.soonest_for_need",
    }
    assert not kernels & (LOG | UNASKED)
