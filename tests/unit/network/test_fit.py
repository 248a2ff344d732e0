"""The step-time model, its fit, the reader of measurements, and `berth network fit`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.errors import InputError
from berth.network.fit import fit_step_time, left_out_errors, quantiles
from berth.network.measurements import Measurements, parse_placement, read_measurements
from berth.network.step_time import StepTimeModel, save_models

TRUE = StepTimeModel("true", 0.2, 0.4, 0.03, 0.5, 0.9, 1.6, 0.07, batch=8.0)
SHAPES = [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (3, 3), (6, 3), (8, 4), (16, 4), (12, 3)]


def synthetic(
    shapes=SHAPES, batches=(2.0, 4.0, 8.0, 12.0, 16.0), noise=0.02, runs=3, with_batch=True
) -> Measurements:
    rows = [(gpus, machines, batch) for gpus, machines in shapes for batch in batches for _ in range(runs)]
    gpus, machines, batch = (np.array(column) for column in zip(*rows, strict=True))
    jitter = np.exp(np.random.default_rng(1).normal(0, noise, len(rows)))
    step_s = TRUE.predict(gpus, machines, batch) * jitter
    labels = tuple(f"{n} on {m}" for n, m, _ in rows)
    return Measurements(labels, gpus, machines, step_s, batch if with_batch else None)


def write(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "berth.cli.main", "network", "fit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_one_gpu_only_computes():
    assert TRUE.predict([1], [1], [16.0])[0] == pytest.approx(0.2 + 0.4 * 2 + 0.03 * 4)


def test_a_step_is_the_formula_worked_by_hand():
    compute, comm = 0.63, 2 * 3 / 4 * 0.9 * 1.6
    expected = 4**0.07 * (compute / 3 + ((2 / 3 * compute) ** 6 + comm**6) ** (1 / 6))
    assert TRUE.predict([4], [2])[0] == pytest.approx(expected)


def test_two_machines_have_a_factor_that_three_have_not():
    alike = StepTimeModel("x", 0.001, within_machine=1.0, network=1.0, two_machines=1.5)
    two, three = alike.predict([6, 6], [2, 3])
    assert two / three == pytest.approx(1.5, rel=1e-3)


def test_a_distance_that_was_never_measured_is_unknown_not_near():
    predicted = StepTimeModel("x", 0.2, within_machine=0.1).predict([1, 4, 4], [1, 1, 2])
    assert np.isnan(predicted).tolist() == [False, False, True]


@given(
    st.integers(1, 64),
    st.integers(1, 16),
    st.floats(0.5, 64),
    st.floats(1.01, 4),
)
@settings(max_examples=60)
def test_a_larger_batch_never_takes_less_time(gpus, machines, batch, times):
    small, large = TRUE.predict([gpus] * 2, [min(gpus, machines)] * 2, [batch, batch * times])
    assert large > small


def test_known_numbers_are_found_again_through_noise():
    fit = fit_step_time(synthetic())
    assert fit.fixed == {}
    for number in ("network", "two_machines", "within_machine"):
        assert getattr(fit.model, number) == pytest.approx(getattr(TRUE, number), rel=0.05)
    assert fit.model.growth == pytest.approx(TRUE.growth, abs=0.02)
    asked = synthetic(noise=0.0, runs=1)
    predicted = fit.model.predict(asked.gpus, asked.machines, asked.batch)
    assert np.abs(predicted / asked.step_s - 1).max() < 0.03


@pytest.mark.slow
def test_without_noise_left_out_shapes_are_predicted_nearly_exactly():
    errors = left_out_errors(synthetic(noise=0.0, runs=1), folds=5)
    assert quantiles(errors)[1] < 0.01


@pytest.mark.parametrize(
    ("rows", "fixed"),
    [
        (synthetic(with_batch=False), {"per_batch", "per_batch_squared"}),
        (synthetic(batches=(8.0,)), {"per_batch", "per_batch_squared"}),
        (synthetic(batches=(4.0, 8.0)), {"per_batch_squared"}),
        (synthetic([(1, 1), (2, 1), (4, 1)]), {"network", "two_machines"}),
        (synthetic([(1, 1), (2, 2), (4, 2)]), {"within_machine", "two_machines"}),
        (synthetic([(1, 1), (2, 1), (2, 2), (3, 3)]), {"growth"}),
    ],
    ids=["no batch", "one batch", "two batches", "one machine", "two machines", "one size per distance"],
)
def test_a_number_the_rows_cannot_determine_is_fixed_and_named(rows, fixed):
    fit = fit_step_time(rows)
    assert set(fit.fixed) == fixed
    assert not fixed & fit.deviation.keys()


def test_few_points_give_up_the_finer_numbers_first_and_then_say_how_many_are_needed():
    few = fit_step_time(synthetic([(2, 1), (4, 1), (2, 2), (3, 3)], (8.0,)))
    assert few.fixed["growth"] == "only 4 different points were measured"
    with pytest.raises(InputError, match="at least 3 are needed"):
        fit_step_time(synthetic([(2, 1), (2, 2)], (8.0,)))


@pytest.mark.slow
def test_rows_without_similar_rows_are_not_predicted_when_left_out():
    errors = left_out_errors(synthetic([(1, 1), (2, 1), (4, 1), (8, 1), (4, 2)]), folds=5)
    assert int(np.isnan(errors).sum()) == 15


def test_a_model_that_was_written_is_read_again(tmp_path):
    path = tmp_path / "fitted.yaml"
    save_models([TRUE, StepTimeModel("small", 1e-5)], path)
    assert StepTimeModel.load(path, "true") == TRUE
    assert StepTimeModel.load(path, "small").network is None
    with pytest.raises(InputError, match="2 models"):
        StepTimeModel.load(path)
    with pytest.raises(InputError, match="no fitted model"):
        StepTimeModel.load(path, "tru")


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1", (1,)), ("1124", (4, 2, 1, 1)), ("4+4+12", (12, 4, 4)), ("16", (6, 1))],
)
def test_a_placement_is_read_as_gpus_per_machine(text, counts):
    assert parse_placement(text) == counts


def test_the_columns_gpus_and_machines_settle_what_digits_leave_open(tmp_path):
    path = write(tmp_path, "placement,gpus,machines,seconds\n16,16,1,0.4\n10,10,1,0.4\n16,7,2,0.4\n")
    rows = read_measurements(path)["runs"]
    assert (rows.gpus.tolist(), rows.machines.tolist()) == ([16, 10, 7], [1, 1, 2])


def test_each_model_has_its_own_rows(tmp_path):
    found = read_measurements(write(tmp_path, "model,gpus,machines,seconds\na,1,1,1\nb,2,1,2\na,2,2,3\n"))
    assert {name: rows.step_s.tolist() for name, rows in found.items()} == {"a": [1, 3], "b": [2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("placement,step_time\n", "no rows"),
        ("placement,time\n1,1\n", r"1:1: there is no column step_time"),
        ("gpus,step_time\n1,1\n", r"1:1: there is no column placement"),
        ("step_time,seconds,placement\n1,1,1\n", r"1:11: column 'seconds' says the same"),
        ("placement,step_time\n1,1\n1124,x\n", r"3:6: 'x' is not a step time"),
        ("placement,step_time\n1,-1\n", r"2:3: '-1' is not a step time"),
        ("placement,step_time\n1,nan\n", r"2:3: 'nan' is not a step time"),
        ("placement,step_time\n104,1\n", r"2:1: '104' is not a placement"),
        ("placement,step_time\n4+x,1\n", r"2:1: '4\+x' is not a placement"),
        ("placement,step_time\n1,1,1\n", r"2:1: has 3 fields"),
        ("gpus,machines,seconds\n2,4,1\n", r"2:3: 4 machines can't share 2 GPUs"),
        ("placement,gpus,step_time\n16,5,1\n", r"2:1: placement '16' does not agree with gpus = 5"),
        ('placement,step_time\n"1,1\n', r"2:1: is not CSV"),
    ],
)
def test_a_bad_row_is_named_with_its_place(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        read_measurements(write(tmp_path, text))
    assert re.search(message, str(caught.value))


@pytest.mark.slow
def test_the_command_prints_what_it_fitted_and_writes_it(tmp_path):
    rows = synthetic(noise=0.01, runs=1)
    lines = [
        f"{n},{m},{b},{s}"
        for n, m, b, s in zip(rows.gpus, rows.machines, rows.batch, rows.step_s, strict=True)
    ]
    path = write(tmp_path, "\n".join(["gpus,machines,batch,seconds", *lines]))
    out = tmp_path / "fitted.yaml"
    done = run(str(path), "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    (document,) = json.loads(done.stdout)["models"]
    assert document["left_out"]["p90"] < 0.06
    assert StepTimeModel.load(out).network == pytest.approx(document["numbers"]["network"])
    shown = run(str(path))
    assert "Predicted step time" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.slow
def test_the_command_refuses_too_few_rows_with_one_message(tmp_path):
    done = run(str(write(tmp_path, "placement,step_time\n2,1\n")))
    assert done.returncode == 2
    assert "at least 2 are needed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("model", ["bert", "cifar10", "deepspeech2", "imagenet"])
def test_measured_placements_that_were_left_out_are_predicted_within_the_bar(shared_traces, model):
    rows = read_measurements(shared_traces / "pollux" / model / "placements.csv")["placements"]
    median, p90 = quantiles(left_out_errors(rows, folds=5, seed=100))
    assert median <= 0.06
    assert p90 <= 0.20
