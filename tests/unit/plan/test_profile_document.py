"""Layer profiles as facts and files: arrays for the planner, YAML that reads back equal, slips at their place."""

from __future__ import annotations

import math
from datetime import date
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.cluster.model import DeviceType
from berth.errors import InputError
from berth.plan.profile import (
    DeviceTimes,
    LayerFacts,
    LayerProfile,
    load_layer_profile,
    read_profile,
    shipped_profiles,
    write_profile,
)
from berth.plan.profile.files import profile_yaml
from berth.workload.profile import Provenance
from berth.zoo import zoo

MEASURED = Provenance("measured", "here, with care: 7 repeats", 2026)
NAMES = ("emb", "fc")


def two_layers(**changes):
    layers = (
        LayerFacts("emb", "embedding", 80, 640, 600, sparse_bytes=4096, touched_bytes=512, row_bytes=64),
        LayerFacts("fc", "fully_connected", 640, 40, 40, dense_bytes=1000, flops=9000, activation_bytes=700),
    )
    times = DeviceTimes(
        "cpu-core",
        MEASURED,
        MEASURED,
        MEASURED,
        (0.5, 2.0),
        (0.25, 5e-05),
        (0.9, 0.95),
        (0.8, 0.0),
        (0.01, 0.03),
    )
    whole = {"model": "mine", "batch": 10, "layers": layers, "devices": (times,)}
    return LayerProfile(**(whole | {"facts": MEASURED, "made": date(2026, 11, 16)} | changes))


def test_times_are_arrays_of_layers_by_devices():
    times = two_layers().times(["cpu", "T4", "H100"])
    assert [array.shape for array in times] == [(2, 3)] * 4
    assert times.oct_s[:, 0].tolist() == [0.5, 2.0]
    assert times.odt_s[:, 0].tolist() == [0.25, 5e-05]
    assert times.alpha[:, 0].tolist() == [0.9, 0.95]
    assert times.beta[:, 0].tolist() == [0.8, 0.0]
    assert (times.oct_s > 0).all()


def test_no_devices_give_no_columns():
    assert two_layers().times([]).oct_s.shape == (2, 0)


def test_what_crosses_and_what_is_held():
    profile = two_layers()
    assert profile.cross_bytes.tolist() == [1240, 0]
    assert profile.replicated_bytes.tolist() == [0, 4 * 1000 + 700]
    assert profile.sharded_bytes.tolist() == [2 * 4096, 0]
    assert (profile.names, profile.kinds) == (NAMES, ("embedding", "fully_connected"))


def test_a_number_says_where_it_is_from():
    profile = two_layers()
    assert profile.number("fc", "cpu-core", "oct_s").value == 2.0
    assert profile.number("fc", "cpu-core", "oct_s").source == MEASURED
    assert profile.number("fc", "V100", "odt_s").source.kind == "modelled"
    assert profile.number("fc", "V100", "beta").source.kind == "modelled"


def test_a_device_that_is_held_is_not_modelled_whatever_name_it_is_asked_by():
    own = two_layers().devices[0]
    profile = two_layers(devices=(own, DeviceTimes("V100", *[MEASURED] * 3, *[(1.0, 1.0)] * 4)))
    for name in ("V100-16", "v100", DeviceType("V100-16GB")):
        assert profile.on(name).is_measured
    assert not profile.on("V100-32").is_measured


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("H1000", "did you mean 'H100'"),
        ("A10G", "the peak rate of A10G is not known"),
        (DeviceType("own", flops=1e12), "the memory bandwidth of own is not known"),
    ],
)
def test_a_device_that_nothing_is_known_of_is_refused(device, message):
    with pytest.raises(InputError, match=message):
        two_layers().times([device])


def test_a_profile_reads_back_equal(tmp_path):
    path = tmp_path / "mine.yaml"
    write_profile(two_layers(), path)
    assert read_profile(path) == two_layers()
    assert load_layer_profile(str(path)) == two_layers()


FLOATS = st.floats(1e-12, 1e6, allow_nan=False)
SHARES = st.floats(0, 1)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30).map(
    str.strip
)
NAMED = st.one_of(
    TEXTS.filter(bool), st.sampled_from(["yes", "null", "1e5", "2emb", "a: b", "#", "-", "~", "0x1F"])
)
SOURCES = st.builds(
    Provenance, st.sampled_from(["measured", "modelled"]), TEXTS, st.none() | st.integers(1990, 2100)
)


@st.composite
def profiles(draw):
    names = draw(st.lists(NAMED, min_size=1, max_size=4, unique=True))
    counts = st.integers(0, 2**50)
    layers = [
        LayerFacts(
            name, draw(NAMED), draw(counts), draw(counts),
            touched_growth=draw(SHARES), row_bytes=draw(st.integers(1, 4096)), flops=draw(counts),
        )
        for name in names
    ]  # fmt: skip

    def column(values):
        return tuple(draw(values) for _ in names)

    devices = [
        DeviceTimes(
            device, draw(SOURCES), draw(SOURCES), draw(SOURCES), column(FLOATS), column(FLOATS), column(SHARES),
            column(SHARES), column(FLOATS) if draw(st.booleans()) else (),
        )
        for device in draw(st.lists(NAMED, max_size=2, unique=True))
    ]  # fmt: skip
    return two_layers(model=draw(NAMED), layers=tuple(layers), devices=tuple(devices), sample=draw(TEXTS))


@given(profile=profiles())
def test_any_profile_reads_back_equal(tmp_path_factory, profile):
    path = tmp_path_factory.mktemp("profiles") / "any.yaml"
    write_profile(profile, path)
    assert read_profile(path) == profile


GOOD = profile_yaml(two_layers())


@pytest.mark.parametrize(
    ("old", "new", "marked", "message"),
    [
        ("batch: 10", "batch: 0", "0", "greater than 0"),
        ("alpha: 0.9,", "alpha: 1.5,", "1.5", "less than or equal to 1"),
        ("oct_s: 2.0", "oct_s: -1", "-1", "greater than 0"),
        ("oct_s: 2.0", "oct_s: .nan", ".nan", "finite"),
        ("dense_bytes: 1000", "dense_bytes: lots", "lots", "valid integer"),
        ("kind: embedding", "knid: embedding", "knid", "did you mean 'kind'"),
        ("      fc: {oct_s", "      fd: {oct_s", "fd", "no layer is called 'fd'"),
        ("made: 2026-11-16", "made: yesterday", "yesterday", "date"),
    ],
)
def test_an_error_is_reported_with_line_and_column(tmp_path, old, new, marked, message):
    assert GOOD.count(old) == 1
    path = tmp_path / "slip.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_profile(path)
    at = GOOD.index(old) + new.rindex(marked)
    line, column = GOOD[:at].count("\n") + 1, at - GOOD.rfind("\n", 0, at)
    assert caught.value.where == f"{path}:{line}:{column}"
    assert message in str(caught.value)


def test_a_layer_without_a_time_is_missed(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text("\n".join(line for line in GOOD.splitlines() if not line.startswith("      fc:")))
    with pytest.raises(InputError, match=r"18:\d+: devices.cpu-core.layers: fc missing"):
        read_profile(path)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"did you mean 'matchnet'[\s\S]*--out"):
        load_layer_profile("matchnt")


def test_a_missing_folder_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="can't be written"):
        write_profile(two_layers(), tmp_path / "none" / "mine.yaml")


def test_every_model_of_the_zoo_has_a_shipped_profile():
    assert set(shipped_profiles()) == set(zoo())


@pytest.mark.parametrize("name", zoo())
def test_a_shipped_profile_is_whole_and_honest(name):
    profile, entry = load_layer_profile(name.upper()), zoo()[name]
    assert (profile.model, profile.batch, len(profile.layers)) == (name, entry.batch, entry.layers)
    core, v100 = profile.on("cpu-core"), profile.on("V100")
    assert (core.compute.kind, core.data.kind, core.scaling.kind) == ("measured",) * 3
    assert (v100.compute.kind, v100.data.kind, v100.scaling.kind) == ("modelled",) * 3
    assert "Xeon" in core.compute.note
    assert "torch" in core.compute.note
    times = profile.times(["cpu-core", "T4", "V100", "A100-40", "H100", "B200"])
    assert all(np.isfinite(array).all() for array in times)
    assert ((times.alpha >= 0) & (times.alpha <= 1) & (times.beta >= 0) & (times.beta <= 1)).all()
    assert (times.odt_s[[bool(layer.dense_bytes) for layer in profile.layers]] > 0).all()
    assert math.isclose(
        profile.cross_bytes[0], profile.layers[0].output_bytes + profile.layers[0].gradient_bytes
    )


@pytest.mark.parametrize("name", zoo())
def test_a_shipped_profile_is_as_its_writer_left_it(name):
    text = resources.files("berth.plan.profile").joinpath(f"data/{name}.yaml").read_text()
    assert text == profile_yaml(load_layer_profile(name))
