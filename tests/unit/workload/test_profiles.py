"""Profiles: what is shipped, what a user writes, and compute times on devices without measurements."""

from __future__ import annotations

import json
import lzma

import polars as pl
import pytest

from berth.cluster.model import DeviceType
from berth.errors import InputError, SpecError, UnknownNameError
from berth.workload.profile import JobProfile, Number, Provenance
from berth.workload.profiles import all_profiles, gradient_bytes, load_profile, profile_names

KINDS = {"published", "measured", "modelled"}


def numbers_of(profile: JobProfile):
    yield profile.parameter_bytes
    yield profile.largest_tensor_bytes
    yield profile.overlap
    yield profile.all_to_all_bytes
    yield from profile.compute_s.values()


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("profile", all_profiles(), ids=profile_names())
def test_every_shipped_number_names_its_source(profile):
    for number in numbers_of(profile):
        assert number.source.kind in KINDS
        assert len(number.source.note) > 10
    assert all(number.source.year for number in [profile.parameter_bytes, *profile.compute_s.values()])


@pytest.mark.parametrize("profile", all_profiles(), ids=profile_names())
@pytest.mark.parametrize("device", [None, "GPU", DeviceType("GPU"), "K80", "T4", "A100", "H100"])
def test_every_profile_makes_traffic_on_every_common_device(profile, device):
    traffic = profile.traffic(device)
    assert traffic.compute_s > 0
    assert traffic.all_reduce_bytes == profile.parameter_bytes.value
    assert traffic.overlap >= 1


def test_names_and_aliases_are_all_different():
    names = [name.lower() for profile in all_profiles() for name in (profile.name, *profile.aliases)]
    assert len(names) == len(set(names))
    assert len(profile_names()) >= 18


@pytest.mark.parametrize(
    ("family", "least", "most"),
    [
        (["alexnet", "vgg11", "vgg16", "vgg19"], 0.61, 0.78),
        (["resnet50", "resnet101", "resnet152", "inception3"], 0.035, 0.14),
    ],
)
def test_skew_is_as_tiresias_reports_it(family, least, most):
    assert all(least <= load_profile(name).skew <= most for name in family)


@pytest.mark.parametrize(
    ("asked", "name"),
    [("bert", "bert-base"), ("BERT-Large", "bert-large"), (" VGG-16 ", "vgg16"), ("vit", "vit-b16")],
)
def test_a_model_answers_to_its_aliases_in_any_case(asked, name):
    assert load_profile(asked).name == name


def test_an_unknown_model_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'vgg16'"):
        load_profile("vg16")
    with pytest.raises(UnknownNameError, match="known: alexnet"):
        load_profile("qqqq")


def test_a_listed_device_keeps_its_number_and_source():
    compute = load_profile("resnet50").compute("v100")
    assert compute == Number(
        0.221, Provenance("measured", "Gavel's throughput measurements, alone on one GPU", 2020)
    )


def test_another_device_is_scaled_by_peak_rate_from_the_nearest_and_says_so():
    profile = load_profile("resnet50")
    compute = profile.compute("A100")
    assert compute.value == pytest.approx(0.221 * 125 / 312)
    assert compute.source.kind == "modelled"
    assert "221ms on V100 (measured)" in compute.source.note
    assert "1.34s on K80" in profile.compute("P4").source.note


def test_a_device_of_the_users_own_is_scaled_by_its_own_rate():
    mine = DeviceType("Mine", flops=62.5e12)
    assert load_profile("gpt2").traffic(mine).compute_s == pytest.approx(2 * 0.426)


def test_work_is_three_forward_passes_at_the_stated_efficiency():
    compute = load_profile("bert-large").compute("V100")
    assert compute.value == pytest.approx(3 * 7.89e10 * 32 / (125e12 * 0.3))
    assert compute.source.kind == "modelled"


def test_an_unnamed_gpu_is_the_reference_device():
    profile = load_profile("deepspeech2")
    assert profile.reference_device == "T4"
    assert profile.compute("gpu") == profile.compute() == profile.compute("T4")
    assert profile.compute(DeviceType("GPU")) == profile.compute("T4")
    assert profile.compute(DeviceType("GPU", flops=130e12)).value == pytest.approx(0.6797 / 2)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("V1000", "did you mean 'V100'"),
        ("A10G", "the speed of A10G is not known"),
        (DeviceType("X1"), r"the speed of X1 is not known.*\n.*give X1 its `flops:`"),
    ],
)
def test_an_unknown_device_is_refused(device, message):
    with pytest.raises(InputError, match=message):
        load_profile("vgg16").traffic(device)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("440MB", 440_000_000),
        ("109_482_240 fp32", 437_928_960),
        ("1000fp16", 2000),
        ("10 bf16", 20),
        ("1KiB", 1024),
    ],
)
def test_gradients_are_a_size_or_a_count_of_values(text, count):
    assert gradient_bytes(text) == count


def test_a_short_profile_is_enough(tmp_path):
    profile = load_profile(written(tmp_path, "bytes: 440MB\ncompute: {A100: 120ms}\n"))
    assert profile.name == "mine"
    assert profile.traffic("A100").compute_s == 0.12
    assert profile.traffic("A100").overlap == 6
    assert profile.parameter_bytes.source.kind == "stated"
    assert profile.overlap.source.kind == "modelled"


def test_a_full_profile_keeps_what_it_says(tmp_path):
    text = """
name: mine
family: language
batch: 8
bytes: {value: 100 fp16, source: log}
largest_tensor: {value: 50B, kind: published, note: "our paper", year: 2024}
compute: {H100: {value: 5ms, source: log}}
overlap: 3
all_to_all: 7MB
collective: tree
sources: {log: {kind: measured, note: "our own log", year: 2025}}
"""
    profile = load_profile(str(written(tmp_path, text)))
    assert profile.skew == 0.25
    assert profile.compute("H100") == Number(0.005, Provenance("measured", "our own log", 2025))
    assert profile.largest_tensor_bytes.source == Provenance("published", "our paper", 2024)
    traffic = profile.traffic()
    assert (traffic.all_to_all_bytes, traffic.collective, traffic.overlap) == (7e6, "tree", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compute: {A100: 120ms}", "bytes: is missing"),
        ("bytes: 440MB", "neither `compute` nor `work`"),
        ("bytes: 440\ncompute: {A100: 1ms}", r"mine.yaml:1:8: bytes.*'440' has no unit"),
        ("bytes: 1MB\ncompute:\n  A100: 0", r"mine.yaml:3:9: compute.A100.*greater than 0"),
        (
            "bytes: 1MB\ncompute: {A100: 1ms}\noverlap: 0.5",
            r"mine.yaml:3:10: overlap.*greater than or equal to 1",
        ),
        (
            "bytes: 1MB\nlargest_tensor: 2MB\ncompute: {A100: 1ms}",
            r"mine.yaml:2:17: largest_tensor: is larger",
        ),
        (
            "bytes: 1MB\ncompute: {A100: {value: 1ms, source: log}}",
            r"mine.yaml:2:10: compute: no source .*'log'",
        ),
        ("bytes: 1MB\ncomputes: {A100: 1ms}", r"computes: unknown key; did you mean 'compute'"),
        ("bytes: 1MB\nwork: {flop: 1e9, efficiency: 2}", r"work.efficiency.*less than or equal to 1"),
        (
            "sources: {a: {kind: measured, note: x, year: 2020}}\n"
            "bytes: {value: 1MB, source: a, year: 2021}\n"
            "compute: {A100: 1ms}",
            r"mine.yaml:2:21: bytes: has both",
        ),
    ],
)
def test_a_mistake_in_a_profile_is_reported_with_its_position(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        load_profile(written(tmp_path, text))


def test_a_profile_on_an_unknown_device_of_its_own_cant_be_scaled(tmp_path):
    profile = load_profile(written(tmp_path, "bytes: 1MB\ncompute: {Wafer: 1ms}"))
    assert profile.traffic("wafer").compute_s == 0.001
    with pytest.raises(InputError, match="the speed of Wafer is unknown"):
        profile.traffic("A100")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("resnet18", "ResNet-18 (batch size 128)"),
        ("resnet50", "ResNet-50 (batch size 64)"),
        ("transformer", "Transformer (batch size 64)"),
        ("lstm", "LM (batch size 20)"),
        ("autoencoder", "Recommendation (batch size 2048)"),
        ("cyclegan", "CycleGAN"),
    ],
)
def test_measured_times_are_gavels(shared_traces, name, key):
    with lzma.open(shared_traces / "gavel" / "physical_cluster_throughputs.json.xz") as stream:
        table = json.load(stream)
    for device in ("V100", "P100", "K80"):
        steps_per_s = table[device.lower()][f"('{key}', 1)"]["null"]
        assert load_profile(name).compute(device).value == pytest.approx(1 / steps_per_s, rel=2e-3)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "folder", "batch"),
    [("resnet18", "cifar10", 129), ("bert-base", "bert", 12), ("deepspeech2", "deepspeech2", 20)],
)
def test_measured_times_are_pollux(shared_traces, name, folder, batch):
    table = pl.read_csv(shared_traces / "pollux" / folder / "placements.csv")
    alone = table.filter((pl.col("placement") == 1) & (pl.col("local_bsz") == batch)).row(0, named=True)
    expected = alone["step_time"] - alone["sync_time"]
    assert load_profile(name).compute("T4").value == pytest.approx(expected, rel=1e-3)
