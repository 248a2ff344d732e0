"""Resampled traces: the given jobs, in blocks of neighbours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from berth.workload.resampling import BLOCKS, outlasts_blocks, resampled
from berth.workload.shapes import EVERY, Offer, Part, Shape, Work
from berth.workload.trace import Trace

ONE = Shape("one", (Part("all", (("V100-16", 1),)),), ((EVERY, 1.0),))


def made(jobs: int, *, gaps_s: np.ndarray | None = None) -> Trace:
    """Jobs whose duration is their number plus one, and whose user is their number."""
    gaps_s = np.random.default_rng(1).exponential(60.0, jobs) if gaps_s is None else gaps_s
    columns = {
        "job_id": [f"job-{number}" for number in range(jobs)],
        "submit_s": np.cumsum(gaps_s),
        "num_gpu": [1 + number % 4 for number in range(jobs)],
        "duration_s": np.arange(1.0, jobs + 1),
        "user": [str(number) for number in range(jobs)],
    }
    return Trace.from_columns(columns, source="test")


def numbers(trace: Trace) -> np.ndarray:
    """Which of the given jobs each is."""
    return trace.duration_s.astype(int) - 1


def test_as_many_jobs_and_each_is_one_of_the_given():
    trace = made(203)
    drawn = resampled(trace, 1)
    assert len(drawn) == 203
    assert drawn.job_ids == [str(number) for number in range(203)]
    assert (drawn.num_gpu == trace.num_gpu[numbers(drawn)]).all()
    assert drawn.frame["user"].to_list() == [str(number) for number in numbers(drawn)]


def test_neighbours_stay_neighbours_with_the_gaps_between_them():
    trace = made(1000)
    drawn = resampled(trace, 1)
    which = numbers(drawn)
    together = np.diff(which) == 1
    assert (~together).sum() <= 2 * BLOCKS  # the ends of blocks, and where a block wraps around
    gaps_s = np.diff(drawn.submit_s)[together]
    np.testing.assert_allclose(gaps_s, np.diff(trace.submit_s)[which[:-1][together]], rtol=0, atol=1e-6)


def test_a_seed_gives_the_same_trace_and_another_seed_another():
    trace = made(100)
    assert resampled(trace, 3).frame.equals(resampled(trace, 3).frame)
    assert not resampled(trace, 3).frame.equals(resampled(trace, 4).frame)


@pytest.mark.slow
def test_on_average_the_load_stays():
    trace = made(400)
    loads = [drawn.gpu_seconds / drawn.span_s for drawn in (resampled(trace, seed) for seed in range(200))]
    assert abs(np.mean(loads) / (trace.gpu_seconds / trace.span_s) - 1) < 0.05


def test_jobs_that_are_submitted_at_once_are_resampled_too():
    drawn = resampled(made(40, gaps_s=np.zeros(40)), 1)
    assert drawn.span_s == 0
    assert len(np.unique(numbers(drawn))) < 40


def test_one_job_stays_one_job():
    drawn = resampled(made(1), 1)
    assert (len(drawn), drawn.duration_s.tolist()) == (1, [1.0])


def correlated(jobs: int, over: int, generator: np.random.Generator) -> np.ndarray:
    """Standard normal numbers that are correlated over a number of jobs."""
    rho, values = np.exp(-1 / over), generator.standard_normal(jobs)
    for at in range(1, jobs):
        values[at] = rho * values[at - 1] + np.sqrt(1 - rho * rho) * values[at]
    return values


@pytest.mark.slow
@pytest.mark.parametrize("column", ["duration_s", "submit_s"])
@pytest.mark.parametrize(("over", "least", "most"), [(1, 0, 4), (50, 45, 50)])
def test_correlation_over_more_jobs_than_a_block_has_is_found_and_shorter_is_not(column, over, least, most):
    """A block of 1,000 jobs is 50."""
    generator, found = np.random.default_rng(2), 0
    for _ in range(50):
        columns = {
            "job_id": [str(number) for number in range(1000)],
            "submit_s": np.cumsum(generator.exponential(600.0, 1000)),
            "num_gpu": np.ones(1000, dtype=np.int32),
            "duration_s": generator.lognormal(8.0, 1.0, 1000),
        }
        times_s = np.exp(8.0 + correlated(1000, over, generator))
        columns[column] = np.cumsum(times_s) if column == "submit_s" else times_s
        found += outlasts_blocks(Trace.from_columns(columns, source="test"))
    assert least <= found <= most


def test_traces_of_few_or_equal_jobs_have_no_correlation():
    assert not outlasts_blocks(made(30))
    equal = made(100, gaps_s=np.zeros(100))
    same = equal.frame.with_columns(duration_s=10.0, num_gpu=1)
    assert not outlasts_blocks(Trace.from_columns({name: same[name] for name in same.columns}, source="test"))


def test_jobs_keep_their_alternatives():
    trace = made(200)
    offers = {f"job-{number}": Offer(Work(float(number + 1), "steps"), (ONE,)) for number in range(0, 200, 3)}
    drawn = resampled(replace(trace, offers=offers), 1)
    for name, number in zip(drawn.job_ids, numbers(drawn), strict=True):
        assert drawn.offers.get(name) == offers.get(f"job-{number}")
    assert len(drawn.offers) > 40
