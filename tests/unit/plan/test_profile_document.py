"""Layer profiles as facts and files: arrays for the planner, YAML that reads back equal, slips at their place."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from importlib import resources
from itertools import pairwise

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
    files,
    load_layer_profile,
    read_profile,
    shipped_profiles,
    write_profile,
)
from berth.plan.profile.files import profile_yaml
from berth.plan.profile.layer_profile import grid, non_decreasing
from berth.workload.profile import Provenance
from berth.zoo import zoo

MEASURED = Provenance("measured", "here, with care: 7 repeats", 2026)
NAMES = ("emb", "fc")
BATCHES = (2, 10, 40)


def two_layers(**changes):
    layers = (
        LayerFacts("emb", "embedding", 80, 640, 600, sparse_bytes=4096, touched_bytes=512, row_bytes=64),
        LayerFacts("fc", "fully_connected", 640, 40, 40, dense_bytes=1000, flops=9000, activation_bytes=700),
    )
    times = DeviceTimes(
        "cpu-core", 10, BATCHES, ((0.1, 0.5, 2.0), (0.4, 2.0, 8.0)), (0.0, 5e-05), 0.07, MEASURED, MEASURED
    )
    whole = {"model": "mine", "batch": 10, "batches": BATCHES, "layers": layers, "devices": (times,)}
    return LayerProfile(**(whole | {"facts": MEASURED, "made": date(2026, 11, 16)} | changes))


def test_computation_is_a_curve_by_layer():
    core = two_layers().on("cpu")
    assert core.compute_s.tolist() == [[0.1, 0.5, 2.0], [0.4, 2.0, 8.0]]
    assert core.at(10).tolist() == [0.5, 2.0]
    assert core.at(25).tolist() == [1.25, 5.0]
    assert core.at(80).tolist() == pytest.approx([4.0, 16.0])
    assert core.at(1).tolist() == pytest.approx([0.05, 0.2])


def test_a_call_below_the_first_point_is_never_faster_than_its_share_of_it():
    flat = DeviceTimes("x", 10, (8, 16), ((1.0, 4.0),), (0.0,), 0.1, MEASURED, MEASURED)
    assert flat.at(4).tolist() == [0.5], "the line through both points would be below zero"
    fixed = DeviceTimes("x", 10, (8, 16), ((1.0, 1.5),), (0.0,), 0.1, MEASURED, MEASURED)
    assert fixed.at(0).tolist() == [0.5]
    single = DeviceTimes("x", 10, (8,), ((1.0,),), (0.0,), 0.1, MEASURED, MEASURED)
    assert single.at(16).tolist() == [2.0]


@pytest.mark.slow
@given(seconds=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=7))
def test_isotonic_regression_only_changes_what_decreases(seconds):
    found = non_decreasing(seconds)
    assert len(found) == len(seconds)
    assert all(low <= high * (1 + 1e-12) for low, high in pairwise(found))
    assert sum(map(math.log, found)) == pytest.approx(sum(map(math.log, seconds)), abs=1e-6)
    if seconds == sorted(seconds):
        assert list(found) == seconds


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [(4096, (16, 64, 256, 1024, 4096, 16384)), (32, (2, 8, 32, 128)), (1, (1, 4)), (5, (5, 20))],
)
def test_the_grid_is_around_the_profiled_batch(batch, sizes):
    assert grid(batch) == sizes


def test_distinct_rows_grow_slower_than_look_ups_and_never_exceed_them():
    layer = LayerFacts(
        "e", "embedding", 0, 0, touched_bytes=640, row_bytes=64, touched_growth=0.5, lookups=20
    )
    assert layer.touched_rows(100, 100) == 10
    assert layer.touched_rows(400, 100) == 20
    assert layer.touched_rows(1, 100) == pytest.approx(0.2), "one in a hundred examples looks up 0.2 rows"
    assert layer.looked_up_rows(50, 100) == 10


def test_what_crosses_and_what_is_held():
    profile = two_layers()
    assert profile.cross_bytes.tolist() == [1240, 0]
    assert profile.replicated_bytes.tolist() == [0, 4 * 1000 + 700]
    assert profile.sharded_bytes.tolist() == [2 * 4096, 0]
    assert (profile.names, profile.kinds) == (NAMES, ("embedding", "fully_connected"))


def test_a_device_that_is_held_is_not_modelled_whatever_name_it_is_asked_by():
    own = two_layers().devices[0]
    profile = two_layers(devices=(own, replace(own, device="V100")))
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
        two_layers().on(device)


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

    sizes = tuple(sorted(draw(st.sets(st.integers(1, 10**6), min_size=1, max_size=4))))
    curves = st.lists(FLOATS, min_size=len(sizes), max_size=len(sizes)).map(sorted).map(tuple)
    devices = [
        DeviceTimes(
            device, 10, sizes, column(curves), column(FLOATS), draw(FLOATS), draw(SOURCES), draw(SOURCES)
        )
        for device in draw(st.lists(NAMED, max_size=2, unique=True))
    ]
    return two_layers(
        model=draw(NAMED), layers=tuple(layers), devices=tuple(devices), sample=draw(TEXTS), batches=sizes,
        rows=draw(st.none() | FLOATS),
    )  # fmt: skip


@pytest.mark.slow
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
        ("uncertainty: 0.07", "uncertainty: -1", "-1", "greater than or equal to 0"),
        ("[0.1,", "[-1,", "-1", "greater than 0"),
        ("[0.1,", "[.nan,", ".nan", "finite"),
        ("emb: {compute_s: [0.1, 0.5, 2.0]", "emb: {compute_s: [0.1, 0.5]", "{", "2 times for 3 batches"),
        ("emb: {compute_s: [0.1, 0.5, 2.0]", "emb: {compute_s: [0.1, 2.5, 2.0]", "{", "compute_s decreases"),
        ("emb: {compute_s: [0.1, 0.5, 2.0], step_s", "emb: {step_s", "{", "compute_s is missing"),
        ("batches: [2, 10, 40]", "batches: [2, 10, 10]", "[", "must be ascending"),
        ("dense_bytes: 1000", "dense_bytes: lots", "lots", "valid integer"),
        ("kind: embedding", "knid: embedding", "knid", "did you mean 'kind'"),
        ("      fc: {compute_s", "      fd: {compute_s", "fd", "no layer is called 'fd'"),
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
    with pytest.raises(InputError, match=r"19:\d+: devices.cpu-core.layers: fc missing"):
        read_profile(path)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"did you mean 'matchnet'[\s\S]*--out"):
        load_layer_profile("matchnt")


def test_a_missing_folder_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="can't be written"):
        write_profile(two_layers(), tmp_path / "none" / "mine.yaml")


def test_every_model_of_the_zoo_has_a_shipped_profile():
    assert set(shipped_profiles()) == set(zoo())


def test_a_model_without_a_shipped_profile_is_refused_with_how_to_measure_one(monkeypatch):
    monkeypatch.setattr(files, "shipped_profiles", lambda: ("ctrdnn",))
    with pytest.raises(InputError, match=r"berth profile nce --out nce\.yaml"):
        load_layer_profile("nce")


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_shipped_profile_is_whole_and_honest(name):
    profile, entry = load_layer_profile(name.upper()), zoo()[name]
    assert (profile.model, profile.batch, len(profile.layers)) == (name, entry.batch, entry.layers)
    core, v100 = profile.on("cpu-core"), profile.on("V100")
    assert (core.compute.kind, v100.compute.kind, v100.step.kind) == ("measured", "modelled", "modelled")
    assert "one core of" in core.compute.note
    assert "torch" in core.compute.note
    assert profile.batch in profile.batches
    for device in ("cpu-core", "T4", "V100", "A100-40", "H100", "B200"):
        times = profile.on(device)
        assert times.compute_s.shape == (len(profile.layers), len(profile.batches))
        assert (np.diff(times.compute_s) >= 0).all()
        assert np.isfinite(times.compute_s).all()
        assert 0 < times.uncertainty <= 0.5
        assert [step > 0 for step in times.step_s] == [layer.dense_bytes > 0 for layer in profile.layers]
    assert math.isclose(
        profile.cross_bytes[0], profile.layers[0].output_bytes + profile.layers[0].gradient_bytes
    )


OLD = """\
model: mine
batch: 64
made: 2026-11-16
layers:
  emb: {output_bytes: 640}
  fc: {output_bytes: 40, dense_bytes: 1000}
devices:
  cpu-core:
    compute: {kind: measured, note: here}
    data: {kind: measured, note: gloo}
    scaling: {kind: measured, note: "k = 1, 2"}
    layers:
      emb: {oct_s: 0.8, odt_s: 0.25, alpha: 0.75, beta: 0.8, spread: 0.2}
      fc: {oct_s: 2.0}
"""


def test_a_file_of_an_older_version_is_read_as_a_line(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    profile = read_profile(path)
    core = profile.on("cpu-core")
    assert profile.batches == (4, 16, 64, 256)
    for examples in (4, 10, 64, 100, 1000):
        assert core.at(examples)[0] == pytest.approx(0.8 * (0.25 + 0.75 * examples / 64))
        assert core.at(examples)[1] == pytest.approx(2.0 * examples / 64)
    assert core.compute == Provenance("measured", "here")
    assert core.step.kind == "modelled"
    assert core.step_s == (0.0, 7 * 1000 / 10e9)
    assert core.uncertainty == 0.2
    write_profile(profile, path)
    assert read_profile(path) == profile


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_shipped_profile_is_as_its_writer_left_it(name):
    text = resources.files("berth.plan.profile").joinpath(f"data/{name}.yaml").read_text()
    assert text == profile_yaml(load_layer_profile(name))
