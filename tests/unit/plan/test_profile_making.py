"""Profiling for real: what is counted on the tensors, what two processes measure, what the command prints."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from functools import partial

import numpy as np
import pytest
import torch

from berth.errors import InputError
from berth.plan.profile import load_layer_profile, profile_model, read_profile
from berth.plan.profile.core import curves_of_whole
from berth.plan.profile.facts import layer_facts
from berth.plan.profile.gpu import gpu_times
from berth.plan.profile.measure import Measurements, ProfilingTask, environment, measure
from berth.plan.profile.timing import Timing, chain_states, summarize, time_layer, without_tables
from berth.plan.threads import single_thread
from berth.testing.accelerator import SPEED, register
from berth.train.measure.contention import measure_contention
from berth.train.measure.row_storage import fresh_byte_s, new_row_s
from berth.zoo import load_model, make_model

OWN = """
import torch
from torch import nn

def make_model():
    table = nn.EmbeddingBag(1000, 8, mode="sum", sparse=True)
    return nn.Sequential(table, nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

def example_batch(batch):
    return torch.randint(0, 1000, (batch, 5)), torch.arange(batch) % 2
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return str(path)


@pytest.mark.slow
def test_the_facts_of_a_small_model_are_those_one_counts_by_hand(own):
    with single_thread():
        table, first, relu, last = layer_facts(load_model(own), 10)
    assert (table.kind, first.kind, relu.kind, last.kind) == (
        *("embedding", "fully_connected", "other", "fully_connected"),
    )
    assert (table.input_bytes, table.output_bytes, table.gradient_bytes) == (
        10 * 5 * 8,
        10 * 8 * 4,
        10 * 8 * 4,
    )
    assert (table.sparse_bytes, table.dense_bytes, table.flops, table.row_bytes) == (1000 * 32, 0, 0, 32)
    assert 0 < table.touched_bytes <= 50 * 32
    assert table.touched_bytes % 32 == 0
    assert table.moved_bytes == table.input_bytes + 2 * 50 * 32 + 2 * table.output_bytes + _kept(table)
    assert first.dense_bytes == 4 * (8 * 16 + 16)
    assert first.largest_tensor_bytes == 4 * 8 * 16
    assert first.flops == 3 * 2 * 10 * 8 * 16
    assert first.moved_bytes == 3 * first.input_bytes + 2 * first.output_bytes + 3 * first.dense_bytes
    assert relu.flops == relu.dense_bytes == 0
    assert relu.activation_bytes == relu.output_bytes
    assert last.kernels >= 3


def _kept(layer):
    return 2 * max(0, layer.activation_bytes - layer.input_bytes - layer.output_bytes)


def test_what_a_layer_hands_on_untouched_crosses_but_does_not_move():
    facts = {layer.name: layer for layer in layer_facts(make_model("matchnet", rows=256), 8)}
    user, item = facts["user_fc1"], facts["item_fc1"]
    assert user.output_bytes == 8 * 4 * (512 + 10 * 16)
    assert user.moved_bytes == 3 * 8 * 4 * 256 + 2 * 8 * 4 * 512 + 3 * user.dense_bytes + _inner(
        user, 256, 512
    )
    assert item.input_bytes == user.output_bytes


def _inner(layer, inputs, outputs):
    return 2 * max(0, layer.activation_bytes - 8 * 4 * (inputs + outputs))


@pytest.mark.slow
def test_rows_that_repeat_make_touched_bytes_grow_slower_than_the_batch():
    embedding = layer_facts(make_model("ctrdnn-8"), 512)[0]
    assert 0.5 < embedding.touched_growth < 0.95
    assert embedding.touched_bytes < 512 * 26 * 3 * 64


def test_ids_count_as_rows_of_their_own_even_if_the_zoo_folds_them():
    model = make_model("ctrdnn-8", rows=64)
    ids = model.example_batch(512, 0)[0]["slots"]
    facts = layer_facts(model, 512)[0]
    assert facts.touched_bytes == len(ids.unique()) * facts.row_bytes > 64 * facts.row_bytes
    assert facts.lookups == ids.numel()


@pytest.mark.parametrize("name", ["deepfm", "wide-deep", "mmoe", "dlrm", "dcn-v2"])
def test_every_layer_of_a_model_with_two_tables_runs_without_them(name):
    model = without_tables(make_model(name, rows=64))
    states, labels = chain_states(model, 32, 0)
    assert len(states) == len(model)
    assert float(model.loss(model(states[0]), labels).detach()) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_device_that_waits_is_timed_by_the_wall_clock():
    """The stand-in accelerator computes at half the speed of a core: CPU time alone would miss the wait."""
    layers = tuple(layer_facts(make_model("ctrdnn-8", rows=64), 256))
    with environment({SPEED: "0.25"}):
        slow = measure(
            ProfilingTask("ctrdnn-8", 256, (256,), 2, layers, place="standin", register=register), str
        )
    core = measure(ProfilingTask("ctrdnn-8", 256, (256,), 2, layers), str)
    assert slow.whole[0].seconds > 2.5 * core.whole[0].seconds


GROWING = """
import torch
from torch import nn
import berth.train as bt

def make_model():
    return nn.Sequential(bt.Embedding(8), nn.Flatten(), nn.Linear(3 * 8, 1))

def example_batch(batch):
    keys = torch.arange(batch * 3).reshape(batch, 3) % 5 + 2**40
    return keys, torch.arange(batch) % 2
"""


def test_rows_that_are_made_as_keys_are_met_count_as_sparse(tmp_path):
    path = tmp_path / "growing.py"
    path.write_text(GROWING)
    model = load_model(str(path))
    with single_thread():
        table, _, linear = layer_facts(model, 10)
        taken = time_layer(model, 0, *chain_states_of_first(model), repeats=2)
    row = 8 * 4
    assert (table.kind, table.dense_bytes, table.row_bytes) == ("embedding", 0, row)
    assert (table.touched_bytes, table.sparse_bytes, table.lookups) == (5 * row, 5 * row, 30)
    assert table.touched_growth < 0.5, "only the smallest parts of a batch have fewer than all five keys"
    assert linear.dense_bytes == 4 * (3 * 8 + 1)
    assert taken.seconds > 0
    assert len(model.layer(0).pulled_keys()) == 4 * 3, "pulls of earlier runs are discarded"


def chain_states_of_first(model):
    states, labels = chain_states(model, 4, 0)
    return states[0], labels


def test_raw_inputs_have_no_gradient_to_send_back():
    embedding = layer_facts(make_model("ctrdnn-8", rows=64), 4)[0]
    assert embedding.output_bytes - embedding.gradient_bytes == 4 * 13 * 4


def test_a_layer_is_timed_as_often_as_asked():
    model = make_model("ctrdnn-8", rows=64)
    states, labels = chain_states(model, 4, 0)
    for index in range(len(model)):
        timing = time_layer(model, index, states[index], labels, repeats=3)
        assert timing.seconds > 0
        assert timing.spread >= 0


def test_median_and_spread():
    assert summarize([4.0, 1.0, 2.0, 3.0, 100.0]) == (3.0, pytest.approx(2 / 3))
    assert summarize([2.0]) == (2.0, 0.0)


def test_counting_leaves_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    with single_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_absent_devices_alone_need_no_measuring(own):
    seen = []
    profile = profile_model(own, 16, ["T4", "v100"], progress=lambda *step: seen.append(step))
    assert profile.device_names == ("T4", "V100-16")
    assert not any(times.is_measured for times in profile.devices)
    assert [done for done, _, _ in seen] == [1, 2, 3, 4]
    assert profile.batch == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "at least one example"),
        ({"repeats": 0}, "at least once"),
        ({"devices": ["H10"]}, "no device type is called 'H10'"),
        ({"devices": ["A10G"]}, "peak rate of A10G"),
    ],
)
def test_nonsense_is_refused_before_anything_is_measured(own, change, message):
    with pytest.raises(InputError, match=message):
        profile_model(own, **change)


def test_a_layer_that_fails_is_named(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(
        "from torch import nn\ndef make_model(): return nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 2))"
    )
    with pytest.raises(InputError, match=r"bad\.py:2: layer 'linear1' of bad fails: mat1 and mat2"):
        profile_model(str(path), 2, ["T4"], input_shape=(4,))


def test_a_layer_of_ones_own_fails_at_its_line(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(
        "from torch import nn\nclass Mine(nn.Module):\n    def forward(self, x):\n        return x.nothing\n"
        "def make_model(): return nn.Sequential(Mine())"
    )
    with pytest.raises(InputError, match=r"bad\.py:4: layer 'mine0' of bad fails"):
        profile_model(str(path), 2, ["T4"], input_shape=(4,))


def test_a_gpu_is_measured_layer_by_layer(own):
    """The same code on a CPU, which stands in for the GPU: only CUDA's events are left out."""
    layers = tuple(layer_facts(load_model(own), 16))
    task = ProfilingTask(own, 16, (4, 16), 2, layers)
    seen: list[str] = []
    times = gpu_times(task, "T4", "cpu", date(2026, 11, 16), seen.append)
    assert (times.compute.kind, times.step.kind) == ("measured", "measured")
    assert len(seen) == len(task.batches)
    assert (times.compute_s > 0).all()
    assert [step > 0 for step in times.step_s] == [bool(layer.dense_bytes) for layer in layers]


def test_layers_add_up_to_the_whole_step_and_curves_never_fall():
    def column(*seconds):
        return [Timing(value, 0.0) for value in seconds]

    measured = Measurements([column(1.0, 4.0, 3.0), column(1.0, 1.0, 6.0)], column(4.0, 5.0, 18.0), [])
    curves, apart = curves_of_whole(measured)
    assert curves == ((2.0, 4.0, 6.0), (1.414, 1.414, 12.0))
    assert apart == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_this_machine_is_measured_in_a_process_of_its_own(own):
    steps = []
    profile = profile_model(own, 64, ["cpu-core", "T4"], repeats=2, progress=lambda *step: steps.append(step))
    core = profile.on("cpu-core")
    assert {core.compute.kind, core.step.kind} == {"measured"}
    assert profile.batches == (4, 16, 64, 256)
    assert (core.compute_s > 0).all()
    assert (np.diff(core.compute_s) >= 0).all()
    assert [seconds > 0 for seconds in core.step_s] == [bool(layer.dense_bytes) for layer in profile.layers]
    assert steps[-1][0] == steps[-1][1]
    assert profile.rows is None, "only a model of the zoo has tables of a stated size"


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_layer_that_fails_only_on_a_part_of_the_batch_is_named(tmp_path):
    path = tmp_path / "norms.py"
    path.write_text(
        "from torch import nn\ndef make_model(): return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))"
    )
    with pytest.raises(InputError, match="layer 'batchnorm1d0' of norms fails: Expected more than 1 value"):
        profile_model(str(path), 1, ["cpu-core"], repeats=1, input_shape=(4,))


def run(capsys, monkeypatch, *arguments):
    from berth.cli.main import main

    monkeypatch.setattr(sys, "argv", ["berth", "profile", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


def test_without_a_model_the_zoo_is_listed(capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch)
    assert code == 0
    assert "14 models" in out
    assert "matchnet" in out


def test_a_stored_profile_is_shown_within_80_columns(capsys, monkeypatch):
    code, out, _ = run(
        capsys, monkeypatch, "nce", "--stored", "--devices", "cpu,T4,L4,V100,A100,H100,H200,B200"
    )
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "candidate_embedding" in out
    assert out.count("modelled") >= 7


def test_json_holds_all_numbers_and_their_sources(capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch, "nce", "--stored", "--json")
    document = json.loads(out)
    profile = load_layer_profile("nce")
    assert code == 0
    assert [layer["name"] for layer in document["layers"]] == list(profile.names)
    assert document["layers"][0]["cross_bytes"] == profile.cross_bytes[0]
    assert document["devices"][0]["compute"]["kind"] == "measured"
    assert document["devices"][0]["compute_s"] == profile.devices[0].compute_s.tolist()
    assert document["batches"] == list(profile.batches)


def test_a_profile_and_a_job_profile_are_written(capsys, monkeypatch, tmp_path, own):
    out, job = tmp_path / "out.yaml", tmp_path / "job.yaml"
    code, said, _ = run(
        capsys,
        monkeypatch,
        own,
        "--batch",
        "8",
        "--devices",
        "T4",
        "--out",
        str(out),
        "--job-profile",
        str(job),
    )
    assert code == 0
    assert read_profile(out).batch == 8
    assert f"berth models {job}" in said.replace("\n", " ")
    code, said, _ = run(capsys, monkeypatch, str(out), "--devices", "H100")
    assert (code, "H100" in said) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ctrdn"], "did you mean 'ctrdnn'"),
        (["ctrdn", "--stored"], "did you mean 'ctrdnn'"),
        (["nce", "--batch", "0"], "'--batch': should be greater than or equal to 1"),
        (["nce", "--devices", ","], "--devices names nothing"),
        (["nce", "--stored", "--batch", "8"], "has its own batch"),
        (["none.py"], "no such file"),
        (["nce", "2emb"], "profile one model at a time"),
        (["--here", "ncee"], "did you mean 'nce'"),
        (["nce", "--input-shape", "3,a"], "is not a shape"),
        (["nce", "--stored", "--out", "/none/out.yaml"], "can't be written"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_two(capsys, monkeypatch, arguments, message):
    code, out, err = run(capsys, monkeypatch, *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_this_machine_is_measured_and_forgotten(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "home"))
    # What other tests disturb is not repeated, and nothing is measured for long: the figures do not matter here.
    sizes = {"host._EXTRA_S": 0.0, "contention._LEAST_S": 0.01, "loop._STEPS": 8}
    sizes |= {
        "contention.ROWS": 100_000,
        "contention.LOOKUPS": 10_000,
        "rows.ROWS": 100_000,
        "rows.SIZES": (1_024, 16_384, 65_536),
    }
    sizes |= {
        "host.new_row_s": partial(new_row_s, 65_536),
        "host.fresh_byte_s": partial(fresh_byte_s, 1 << 22),
    }
    sizes |= {
        "host.measure_contention": partial(measure_contention, rounds=3),
        "contention.BATCHES": (16, 64, 256),
    }
    for name, size in sizes.items():
        monkeypatch.setattr(f"berth.train.measure.{name}", size)
    code, out, _ = run(capsys, monkeypatch, "--here", "nce", "--repeats", "1")
    assert code == 0
    assert "planning uses them from now on" in out
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["host.yaml", "nce.yaml"]
    assert (
        load_layer_profile("nce")
        .on("cpu-core")
        .compute.note.startswith("by `berth profile --here`, one core of")
    )
    code, out, _ = run(capsys, monkeypatch, "--forget")
    assert (code, "removed 2 measurements" in out) == (0, True)
    assert not list((tmp_path / "home").iterdir())


def test_without_torch_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setattr("berth.extras.find_spec", lambda name: None)
    code, _, err = run(capsys, monkeypatch, "nce")
    assert code == 2
    assert "pip install 'berth-ml[train]'" in err


@pytest.mark.slow
def test_planning_from_a_shipped_profile_needs_no_torch():
    program = (
        "import sys, berth.zoo, berth.plan.profile as p; profile = p.load_layer_profile('ctrdnn');"
        "profile.on('cpu').at(64), profile.on('H200'); p.job_profile(profile); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
