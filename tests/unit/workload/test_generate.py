"""The generator: same seed same bytes, exact loads, shares as asked, aspects that don't touch each other."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from berth.errors import InputError, UnknownNameError
from berth.workload.arrivals import Arrivals, load_arrivals
from berth.workload.distributions import like, load_durations, load_sizes
from berth.workload.generate import GenerateSpec, generate
from berth.workload.mix import MIXES, load_mix
from berth.workload.profiles import load_profile
from berth.workload.trace import Trace

GOLDEN = Path(__file__).parents[2] / "golden"
DAY_S = 86400.0


def spec(**changes):
    usual = {"jobs": 2000, "load": 0.8, "gpus": 640, "mix": load_mix("balanced"), "users": 20, "seed": 7}
    return GenerateSpec(**(usual | changes))


GOLDEN_SPECS = {
    "philly": spec(jobs=20, seed=1),
    "bursty-odd": spec(
        jobs=5000,
        gpus=8,
        arrivals=load_arrivals("bursty", daily=0.7),
        sizes=load_sizes("odd"),
        durations=load_durations("lognormal:1h:2"),
        mix=load_mix("sensitive"),
    ),
    "pareto-span": spec(
        jobs=None,
        span_s=2 * DAY_S,
        sizes=load_sizes("large"),
        durations=load_durations("pareto:1.1:1m:7d"),
        users=0,
    ),
    "exponential-at-once": spec(
        load=None,
        arrivals=Arrivals("at-once"),
        sizes=load_sizes("1=0.7,3=0.3"),
        durations=load_durations("exponential:2h"),
        mix=None,
    ),
}


def csv_bytes(trace, tmp_path):
    path = tmp_path / "trace.csv"
    trace.write_csv(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", GOLDEN_SPECS)
def test_the_bytes_of_a_seed_never_change(name, tmp_path):
    stored = dict(line.split() for line in (GOLDEN / "generate.sha256").read_text().splitlines())
    written = csv_bytes(generate(GOLDEN_SPECS[name]), tmp_path)
    assert hashlib.sha256(written).hexdigest() == stored[name]


def test_the_first_golden_trace_reads_as_stored(tmp_path):
    assert (
        csv_bytes(generate(GOLDEN_SPECS["philly"]), tmp_path) == (GOLDEN / "generate-philly.csv").read_bytes()
    )


def test_another_seed_gives_another_trace():
    one, other = generate(spec(seed=1)), generate(spec(seed=2))
    for column in ("submit_s", "num_gpu", "duration_s", "model", "user"):
        assert one.frame[column].to_list() != other.frame[column].to_list()


@pytest.mark.parametrize("arrivals", ["poisson", "bursty", "bursty:100"])
@pytest.mark.parametrize("daily", [0.0, 0.9])
@pytest.mark.parametrize("load", [0.1, 0.8, 3.0])
def test_the_load_is_exact_to_the_millisecond(arrivals, daily, load):
    trace = generate(spec(load=load, arrivals=load_arrivals(arrivals, daily)))
    span_s = trace.gpu_seconds / (640 * load)
    assert trace.span_s == pytest.approx(span_s, abs=0.001)


def test_a_span_and_a_load_choose_the_number_of_jobs():
    trace = generate(spec(jobs=None, span_s=90 * DAY_S))
    assert trace.span_s == pytest.approx(90 * DAY_S, rel=0.02)
    assert trace.gpu_seconds / (640 * trace.span_s) == pytest.approx(0.8, rel=1e-9)


def test_a_number_and_a_span_need_no_cluster():
    trace = generate(GenerateSpec(jobs=10, span_s=60.0))
    assert (len(trace), trace.span_s) == (10, 60.0)


def test_jobs_at_once_all_come_at_zero():
    assert not generate(spec(load=None, arrivals=Arrivals("at-once"))).submit_s.any()


@pytest.mark.parametrize("sizes", ["philly", "powers-of-two", "odd", "large", "1=0.7,2=0.1,8=0.2", "4"])
def test_sizes_occur_as_often_as_asked(sizes):
    distribution = load_sizes(sizes)
    trace = generate(spec(jobs=50_000, sizes=distribution))
    for size, share in zip(distribution.gpus, distribution.weighted.shares, strict=True):
        assert (trace.num_gpu == size).mean() == pytest.approx(share, abs=4 * np.sqrt(share / 50_000))


@pytest.mark.parametrize(
    ("durations", "quantiles"),
    [
        ("lognormal:1h:1.5", {0.5: 3600, 0.8413447: 3600 * np.exp(1.5)}),
        ("exponential:2h", {0.5: 7200 * np.log(2), 0.9: 7200 * np.log(10)}),
        ("pareto:1:1m:1h", {0.5: 60 / (1 - 0.5 * (1 - 1 / 60)), 0.9: 60 / (1 - 0.9 * (1 - 1 / 60))}),
        ("fixed:90s", {0.1: 90, 0.9: 90}),
        ("philly", {0.5: 1117, 0.9: 8512}),
    ],
)
def test_durations_have_the_quantiles_of_their_law(durations, quantiles):
    trace = generate(spec(jobs=100_000, sizes=load_sizes("1"), durations=load_durations(durations)))
    for probability, expected in quantiles.items():
        assert np.quantile(trace.duration_s, probability) == pytest.approx(expected, rel=0.05)


def test_larger_philly_jobs_run_longer():
    trace = generate(spec(jobs=20_000))
    assert np.median(trace.duration_s[trace.num_gpu == 8]) > 10 * np.median(
        trace.duration_s[trace.num_gpu == 1]
    )


@pytest.mark.slow
def test_burstiness_is_the_squared_variation_of_the_gaps():
    for arrivals, expected in (("poisson", 1.0), ("bursty:4", 4.0), ("bursty:16", 16.0)):
        gaps = np.diff(generate(spec(jobs=200_000, arrivals=load_arrivals(arrivals))).submit_s)
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(expected, rel=0.1)


def test_days_are_busier_than_nights():
    trace = generate(spec(jobs=50_000, arrivals=load_arrivals("poisson", daily=0.8)))
    whole_days = trace.submit_s[trace.submit_s < trace.span_s // DAY_S * DAY_S]
    by_hour = np.bincount((whole_days % DAY_S // 3600).astype(int), minlength=24) / len(whole_days) * 24
    assert by_hour[14] == pytest.approx(1.8, abs=0.15)
    assert by_hour[2] == pytest.approx(0.2, abs=0.1)


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        ({"mix": load_mix("sensitive")}, {"model"}),
        ({"users": 3}, {"user"}),
        ({"arrivals": load_arrivals("bursty")}, {"submit_s"}),
        ({"load": 0.4}, {"submit_s"}),
        ({"sizes": load_sizes("odd")}, {"num_gpu", "duration_s", "submit_s"}),
        ({"durations": load_durations("fixed:1h")}, {"duration_s", "submit_s"}),
    ],
)  # fmt: skip
def test_a_change_of_one_aspect_leaves_the_others_alone(change, touched):
    base, changed = generate(spec()), generate(spec(**change))
    different = {
        name for name in base.frame.columns if base.frame[name].to_list() != changed.frame[name].to_list()
    }
    assert different == touched


def test_a_longer_trace_begins_with_the_same_jobs():
    short, long = generate(spec(jobs=100)), generate(spec(jobs=1000))
    columns = ["job_id", "num_gpu", "duration_s", "model", "user"]
    assert long.frame[:100].select(columns).equals(short.frame.select(columns))


def test_no_job_is_larger_than_the_cluster_and_cuts_are_noted():
    trace = generate(spec(gpus=4, sizes=load_sizes("2=1,8=1")))
    assert set(trace.num_gpu.tolist()) == {2, 4}
    cut = int((trace.num_gpu == 4).sum())
    assert trace.notes == (f"{cut} jobs requested more and were cut to 4 GPUs",)


def test_like_keeps_sizes_with_their_durations():
    known = {1: [10.0, 20.0, 40.0], 3: [1000.0, 4000.0], 8: [7.0]}
    rows = [(size, seconds) for size, all_seconds in known.items() for seconds in all_seconds]
    columns = {"job_id": [str(n) for n in range(6)], "submit_s": np.arange(6.0)}
    columns |= {"num_gpu": [size for size, _ in rows], "duration_s": [seconds for _, seconds in rows]}
    sizes, durations = like(Trace.from_columns(columns, source="known"))
    trace = generate(spec(jobs=30_000, sizes=sizes, durations=durations))
    for size, seconds in known.items():
        drawn = trace.duration_s[trace.num_gpu == size]
        assert len(drawn) / 30_000 == pytest.approx(len(seconds) / 6, abs=0.02)
        assert (drawn.min(), drawn.max()) == (
            pytest.approx(seconds[0], rel=0.01),
            pytest.approx(seconds[-1], rel=0.01),
        )
        assert np.median(drawn) == pytest.approx(np.exp(np.median(np.log(seconds))), rel=0.05)


@pytest.mark.parametrize("name", MIXES)
def test_every_named_mix_holds_known_models(name):
    mix = load_mix(name)
    assert all(load_profile(model).name == model for model in mix.models)
    assert sum(mix.weighted.shares) == pytest.approx(1)


def test_sensitive_models_send_more_per_second_of_compute_than_insensitive_ones():
    def rates(mix):
        traffics = [load_profile(model).traffic("V100") for model in load_mix(mix).models]
        return [traffic.bytes / traffic.compute_s for traffic in traffics]

    assert min(rates("sensitive")) > 3 * max(rates("insensitive"))


def test_a_mix_gives_each_job_its_model_whatever_the_others_are():
    mix = load_mix("vgg16=2,bert=1")
    assert mix.models == ("vgg16", "bert-base")
    indices = mix.assign(10_000, seed=3)
    assert (indices == 0).mean() == pytest.approx(2 / 3, abs=0.02)
    assert (mix.assign(100, seed=3) == indices[:100]).all()
    assert (mix.assign(10_000, seed=4) != indices).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load_sizes("phily"), "did you mean 'philly'"),
        (lambda: load_sizes("1=0.7,x=1"), "'x' is not a number of GPUs"),
        (lambda: load_sizes("0=1"), "'0' is not a number of GPUs"),
        (lambda: load_sizes("1=-1"), "'-1' is not a weight"),
        (lambda: load_sizes("1=1,1=2"), "'1' is given twice"),
        (lambda: load_sizes("1=0"), "all weights are 0"),
        (lambda: load_durations("lognorm"), "did you mean 'lognormal'"),
        (lambda: load_durations("lognormal:3600"), "'3600' has no unit"),
        (lambda: load_durations("lognormal:1h:99"), "sigma '99'"),
        (lambda: load_durations("exponential:0"), "must be greater than 0"),
        (lambda: load_durations("pareto:1:1h:1m"), "is shorter than the shortest"),
        (lambda: load_durations("fixed:1h:2h"), "too many numbers"),
        (lambda: load_durations("pareto:steep"), "alpha 'steep' is not a number from 0.01 to 100"),
        (lambda: load_arrivals("bursty:very"), "from 1 to 1000"),
        (lambda: spec(load=None, span_s=1e14), "to 35,000 years (given: 1e+14 s)"),
        (lambda: generate(spec(sizes=load_sizes("2000000000"), gpus=2**31, durations=load_durations("fixed:1000000d"))),
         "total GPU time of the jobs is too large"),
        (lambda: load_mix("vgg16=2,resnt50=1"), "did you mean 'resnet50'"),
        (lambda: load_mix("vgg16,"), "a name is missing"),
        (lambda: load_mix("vgg16=2,resnet50,VGG=1"), "'vgg16' is given twice"),
        (lambda: load_mix("balancd"), "did you mean 'balanced'"),
        (lambda: load_arrivals("poison"), "did you mean 'poisson'"),
        (lambda: load_arrivals("bursty:0.5"), "from 1 to 1000"),
        (lambda: load_arrivals("poisson:3"), "poisson has no number"),
        (lambda: load_arrivals("poisson", daily=2), "a share from 0 to 1"),
        (lambda: spec(jobs=0), "jobs: from 1"),
        (lambda: spec(load=0.0), "load: above 0"),
        (lambda: spec(load=float("nan")), "load: above 0"),
        (lambda: spec(gpus=None), "a load needs a cluster"),
        (lambda: spec(gpus=0), "no GPU"),
        (lambda: spec(span_s=60.0), "all given"),
        (lambda: spec(load=None), "are needed"),
        (lambda: spec(jobs=1), "a single job has no span"),
        (lambda: spec(seed=-1), "seed: a whole number"),
        (lambda: spec(users=-1), "users: from 0"),
        (lambda: spec(arrivals=Arrivals("at-once")), "no span and no load"),
        (lambda: generate(spec(jobs=None, span_s=1e12)), "more than 20,000,000 jobs"),
    ],
)  # fmt: skip
def test_what_cant_be_is_refused_with_a_hint(make, message):
    with pytest.raises(InputError, match=re.escape(message)) as raised:
        make()
    assert raised.value.what


def test_an_unknown_name_is_an_unknown_name():
    with pytest.raises(UnknownNameError):
        load_sizes("huge")


def test_as_many_jobs_as_there_may_be_are_tried_before_a_span_is_refused(monkeypatch):
    wanted = spec(jobs=None, load=1.0, gpus=20_000, span_s=7 * 3600.0, durations=load_durations("fixed:1h"))
    monkeypatch.setattr("berth.workload.generate.MAX_JOBS", 10**6)
    jobs = len(generate(wanted))
    assert jobs > 2**16  # more than are tried first
    monkeypatch.setattr("berth.workload.generate.MAX_JOBS", jobs)
    assert len(generate(wanted)) == jobs
    monkeypatch.setattr("berth.workload.generate.MAX_JOBS", jobs - 1)
    with pytest.raises(InputError, match="to fill that span"):
        generate(wanted)
