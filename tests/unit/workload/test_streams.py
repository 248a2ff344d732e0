"""Draws of different purposes and of neighbouring seeds have nothing in common."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.network.fabric import Fabric
from berth.simulate.engine_state import FaultKind, NetworkMode
from berth.simulate.faults import FaultSpec, draw_faults
from berth.simulate.jobs import read_jobs
from berth.simulate.trace_source import TraceSource
from berth.testing import jobs
from berth.workload.mix import load_mix
from berth.workload.streams import IndexedPurpose, Purpose, stream, uniforms

COUNT = 4000


def draws() -> dict[tuple[str, int], np.ndarray]:
    """The first numbers of every stream at three neighbouring seeds."""
    found = {}
    for seed in (0, 1, 2):
        for purpose in get_args(Purpose):
            found[purpose, seed] = stream(seed, purpose).random(COUNT)
        for machine in (0, 1, 2):
            found[f"failures of {machine}", seed] = stream(seed, "failures", machine).random(COUNT)
        for purpose in get_args(IndexedPurpose):
            found[purpose, seed] = uniforms(seed, purpose, COUNT)
    return found


@pytest.mark.slow
def test_no_two_streams_are_equal_or_correlated():
    for (_, one), (_, other) in itertools.combinations(draws().items(), 2):
        assert not np.isin(one, other).any()
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(COUNT)


def test_all_are_uniform():
    for values in draws().values():
        assert abs(values.mean() - 0.5) < 5 * np.sqrt(1 / 12 / COUNT)
        assert (values >= 0).all()
        assert (values < 1).all()


@pytest.mark.parametrize("seed", range(3))
def test_errors_of_estimates_are_not_the_next_seeds_models(seed):
    cluster = load_cluster("1x1x8:V100")
    trace = jobs([(0, 1, 100)] * 50)
    records = read_jobs(
        trace, cluster, Fabric(cluster), NetworkMode.OFF, load_mix("balanced"), seed=seed, estimate_error=0.5
    ).records
    errors = (records["estimate_error"] - 0.5) / 1.0
    for other in (seed - 1, seed, seed + 1):
        assert abs(np.corrcoef(errors, uniforms(max(0, other), "models", 50))[0, 1]) < 0.6


def test_failures_of_the_first_machine_are_not_the_arrivals():
    """The second number of each pair is a repair of no length."""
    cluster = load_cluster("1x1x8:V100")
    faults = draw_faults(FaultSpec(mtbf_s=3600.0, mttr_s=0.001, seed=7), cluster, 3600.0 * 400)
    up = np.diff(faults["time"][faults["what"] == FaultKind.FAIL], prepend=0.0)[:300]
    drawn = stream(7, "arrivals").random((300, 2))
    assert abs(np.corrcoef(up, -np.log1p(-drawn[:, 0]))[0, 1]) < 0.3


def test_a_seed_of_the_generator_keeps_its_promise():
    trace = TraceSource("generate:jobs=5,load=0.5,mix=balanced,seed=1").trace(load_cluster("1x1x8:V100"))
    assert trace.duration_s.tolist() == [107.303, 49.913, 684.069, 2589.062, 2721.515]
    assert trace.frame["model"].to_list() == ["transformer-xl", "vit-b16", "bert-base", "graphsage", "vgg16"]
