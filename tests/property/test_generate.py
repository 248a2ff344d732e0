"""Whatever is asked of the generator, a trace keeps its promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.workload.arrivals import Arrivals
from berth.workload.distributions import load_durations, load_sizes
from berth.workload.generate import GenerateSpec, generate
from berth.workload.mix import load_mix
from berth.workload.streams import uniforms

pytestmark = pytest.mark.slow

SIZES = st.one_of(
    st.sampled_from(["philly", "powers-of-two", "odd", "large"]),
    st.dictionaries(st.integers(1, 3000), st.integers(1, 9), min_size=1, max_size=5).map(
        lambda weights: ",".join(f"{size}={weight}" for size, weight in weights.items())
    ),
)
DURATIONS = st.sampled_from(
    [
        "philly",
        "lognormal:1h:3",
        "lognormal:1ms:0",
        "exponential:1s",
        "pareto:0.5:1s:90d",
        "fixed:1us",
        "fixed:9d",
    ]
)
ARRIVALS = st.builds(
    Arrivals, st.sampled_from(["poisson", "bursty"]), st.floats(1, 500), st.sampled_from([0.0, 0.3, 1.0])
)
MIXES = st.sampled_from([None, "balanced", "vgg16", "resnet50=1,bert=3"]).map(
    lambda text: text and load_mix(text)
)


@st.composite
def specs(draw):
    return GenerateSpec(
        jobs=draw(st.integers(2, 300)),
        load=draw(st.floats(0.01, 5)),
        gpus=draw(st.integers(1, 5000)),
        arrivals=draw(ARRIVALS),
        sizes=load_sizes(draw(SIZES)),
        durations=load_durations(draw(DURATIONS)),
        mix=draw(MIXES),
        users=draw(st.integers(0, 5)),
        seed=draw(st.integers(0, 2**70)),
    )


@given(specs())
@settings(max_examples=150, deadline=None)
def test_any_spec_gives_a_trace_in_order_that_fits_and_loads_as_asked(spec):
    trace = generate(spec)
    assert len(trace) == spec.jobs
    assert trace.submit_s[0] == 0
    assert (np.diff(trace.submit_s) >= 0).all()
    assert (trace.duration_s > 0).all()
    assert trace.num_gpu.min() >= 1
    assert trace.num_gpu.max() <= spec.gpus
    assert trace.frame["job_id"].n_unique() == spec.jobs
    wanted_s = trace.gpu_seconds / (spec.gpus * spec.load)
    assert abs(trace.span_s - max(wanted_s, 0.001)) <= 0.001 + 1e-12 * wanted_s


@given(specs())
@settings(max_examples=40, deadline=None)
def test_the_same_spec_gives_the_same_trace(spec):
    assert generate(spec).frame.equals(generate(spec).frame)


def naive_splitmix(seed, index):
    """The published algorithm, one number at a time in whole Python numbers."""
    mask = 2**64 - 1

    def scrambled(bits):
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
        return bits ^ (bits >> 31)

    state = (scrambled(seed & mask) + (index + 1) * 0x9E3779B97F4A7C15) & mask
    return (scrambled(state) >> 11) / 2**53


@given(st.integers(0, 2**70), st.integers(0, 2**40), st.integers(1, 20))
def test_a_jobs_number_depends_on_seed_and_index_alone(seed, first, count):
    expected = [naive_splitmix(seed, first + offset) for offset in range(count)]
    assert uniforms(seed, "models", count, first).tolist() == expected
