"""The fit of parallel shares, the roofline of absent devices, and the job profile that falls out."""

from __future__ import annotations

import pytest

from berth.cluster.catalogue import known_devices
from berth.cluster.model import DeviceType
from berth.errors import InputError
from berth.plan.profile import (
    LayerFacts,
    job_profile,
    load_layer_profile,
    modelled_times,
    write_job_profile,
)
from berth.plan.profile.machine import catalogued_gpu
from berth.plan.profile.roofline import device_speeds
from berth.workload import load_profile

FC = LayerFacts(
    "fc", "fully_connected", 8_000_000, 8_000_000, 8_000_000,
    dense_bytes=1_000_000, flops=6_000_000_000, moved_bytes=45_000_000, kernels=7,
)  # fmt: skip
EMB = LayerFacts(
    "emb", "embedding", 2_000_000, 20_000_000, 20_000_000,
    sparse_bytes=64_000_000, touched_bytes=9_000_000, touched_growth=0.8, row_bytes=64, moved_bytes=84_000_000,
    kernels=4,
)  # fmt: skip


BATCHES = (16, 64, 256)


def modelled(layer, device):
    """Model one layer whose facts are those of 64 examples."""
    return modelled_times([layer], 64, BATCHES, device)


def test_a_layer_that_computes_is_bound_by_the_single_precision_peak():
    v100 = modelled(FC, "V100")
    for examples, seconds in zip(BATCHES, v100.compute_s[0], strict=True):
        work = 6e9 * examples / 64 / (15.7e12 * 0.60)
        assert seconds == pytest.approx(work + 7 * 5e-6, rel=1e-3)
    assert v100.step_s[0] == pytest.approx(7 * 1e6 / (900e9 * 0.75) + 5e-6, rel=1e-3)


def test_a_layer_that_looks_up_is_bound_by_memory():
    v100 = modelled(EMB, "V100")
    assert v100.compute_s[0, 1] == pytest.approx(84e6 / (900e9 * 0.4) + 4 * 5e-6, rel=1e-3)
    assert v100.step_s == (0.0,)


def test_plain_units_have_one_peak():
    p100 = modelled(FC, "P100")
    assert p100.compute_s[0, 1] == pytest.approx(6e9 / (9.3e12 * 0.60) + 7 * 5e-6, rel=1e-3)


def test_a_device_of_ones_own_is_modelled_from_its_own_figures():
    slow = DeviceType("mine", "gpu", flops=1e12, memory_bytes_per_s=1e11)
    times = modelled(FC, slow)
    assert times.device == "mine"
    assert times.compute_s[0, 1] == pytest.approx(6e9 / (1e12 * 0.60) + 7 * 5e-6, rel=1e-3)


def test_a_peak_that_a_cluster_states_scales_the_single_precision_peak():
    half = DeviceType("V100-16", "gpu", flops=62.5e12, memory_bytes_per_s=900e9)
    assert device_speeds(half).flops == pytest.approx(15.7e12 / 2)


def test_launches_and_weights_do_not_divide():
    tiny = LayerFacts("loss", "loss", 100, 100, moved_bytes=500, kernels=5)
    seconds = modelled(tiny, "H100").compute_s[0]
    assert seconds[2] < 1.01 * seconds[0]
    heavy = LayerFacts("fc", "fully_connected", 0, 0, dense_bytes=10**9, moved_bytes=3 * 10**9, kernels=5)
    assert modelled(heavy, "H100").compute_s[0, 0] > 3e9 / 3.35e12


@pytest.mark.parametrize("name", known_devices())
def test_every_device_with_figures_can_be_modelled_and_has_a_link_with_a_source(name):
    entry = known_devices()[name]
    assert (entry.device.link_bytes_per_s is None) == (entry.link_source is None)
    if entry.device.flops is None or entry.device.memory_bytes_per_s is None:
        with pytest.raises(InputError, match="is not known"):
            device_speeds(name)
    else:
        assert entry.device.link_bytes_per_s is not None
        assert entry.device.fp32_flops is not None
        assert entry.device.fp32_flops <= entry.device.flops
        assert modelled_times([FC, EMB], 64, BATCHES, name).compute.kind == "modelled"


@pytest.mark.parametrize(
    ("driver", "gib", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.3, "A100-80"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40"),
        ("Tesla T4", 14.6, "T4"),
        ("Tesla V100-SXM2-32GB", 31.7, "V100-32"),
        ("Tesla V100-SXM2-16GB", 15.8, "V100-16"),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100"),
        ("NVIDIA L4", 22.0, "L4"),
        ("NVIDIA GeForce RTX 4090", 23.6, "RTX-4090"),
        ("NVIDIA RTX A6000", 47.5, "RTX-A6000"),
        ("NVIDIA GeForce GTX 1080", 8.0, None),
    ],
)
def test_a_gpu_is_known_by_its_drivers_name_and_memory(driver, gib, name):
    assert catalogued_gpu(driver, int(gib * 2**30)) == name


def test_the_scheduler_learns_what_a_profiled_model_asks_for(tmp_path):
    profile = load_layer_profile("ctrdnn")
    job = job_profile(profile)
    assert job.batch == profile.batch
    assert job.parameter_bytes.value == sum(layer.dense_bytes for layer in profile.layers)
    assert job.all_to_all_bytes.value == 2 * profile.layers[0].touched_bytes
    assert 0 < job.skew < 1
    assert job.reference_device == "V100-16"
    assert job.compute("cpu-core").value == pytest.approx(profile.on("cpu-core").at(profile.batch).sum())
    assert job.compute("cpu-core").source.kind == "measured"
    assert job.compute("H100").source.kind == "modelled"
    path = tmp_path / "job.yaml"
    write_job_profile(job, path)
    assert load_profile(str(path)) == job


def test_a_job_profile_can_be_for_chosen_devices_and_have_a_name():
    job = job_profile(load_layer_profile("nce"), ["B200"], name="words")
    assert (job.name, list(job.compute_s)) == ("words", ["B200"])


def test_a_model_that_reduces_nothing_has_no_job_profile():
    from dataclasses import replace

    profile = load_layer_profile("nce")
    bare = replace(profile, layers=tuple(replace(layer, dense_bytes=0) for layer in profile.layers))
    with pytest.raises(InputError, match="nothing to all-reduce"):
        job_profile(bare)
