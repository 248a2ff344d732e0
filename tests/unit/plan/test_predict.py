"""The predicted step: what adds up, what overlaps, and when cores run out; host rates as a file."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from berth.errors import InputError
from berth.plan.profile import DeviceTimes, LayerFacts, LayerProfile, load_layer_profile
from berth.plan.profile.files import for_vendor, write_profile
from berth.plan.profile.host import (
    HostRates,
    PerRow,
    host_rates,
    host_yaml,
    read_host_rates,
    write_host_rates,
)
from berth.plan.profile.layer_profile import INDEX_BYTES
from berth.workload.profile import Provenance

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from plan_predict import HANDOVER_S, Processes, StepPrediction, plan_of, predict_step

HERE = Provenance("measured", "one core of AMD EPYC (AVX-512), CPU time, by hand", 2026)
RATES = HostRates(
    server_pull_s_per_row=PerRow(1e-3, 0.0),
    server_push_s_per_row=PerRow(1e-3, 1e-4),
    server_call_s=0.01,
    client_row_s=PerRow(1e-3, 0.0),
    client_lookup_s=PerRow(0.0, 1e-4),
    client_call_s=0.02,
    local_row_s=PerRow(2e-3, 1e-4),
    local_lookup_s=PerRow(1e-3, 0.0),
    local_call_s=0.03,
    new_row_s=PerRow(1e-3, 0.0),
    fresh_byte_s=0.0,
    worker_step_s=0.05,
    worker_example_s=0.0,
    decode_bytes_per_s={"parquet": 1e3, "tsv": 5e2},
    allreduce_call_s=0.1,
    allreduce_bytes_per_s=1e4,
    disk_row_s=1e-3,
    stage_call_s=0.0,
    stage_byte_s=0.0,
    row_slowdown=1.0,
    compute_slowdown_at={1e6: 1.0},
    source=HERE,
)
LAYERS = (
    LayerFacts("emb", "embedding", 100, 0, touched_bytes=1000, row_bytes=10, lookups=200),
    LayerFacts("fc", "fully_connected", 0, 0, dense_bytes=1000),
)
PROFILE = LayerProfile(
    "mine", 10, LAYERS, (10, 20),
    (DeviceTimes("cpu-core", 10, (10, 20), ((0.5, 1.0), (1.5, 3.0)), (0.0, 0.2), 0.1, HERE, HERE),),
    HERE, date(2026, 11, 17),
)  # fmt: skip


def step_of(rates: HostRates, workers: int, servers: int, cores: int, **more) -> StepPrediction:
    return predict_step(PROFILE, rates, Processes(workers, servers, 10, cores), **more)


def test_tables_in_the_worker_are_part_of_its_time():
    step = step_of(RATES, 1, 0, 4)
    rows = 100 * (2e-3 + 10 * 1e-4) + 200 * 1e-3 + 0.03
    assert step.compute_s == pytest.approx(2.0 + rows)
    assert step.step_s == pytest.approx(2.0 + rows + 0.2 + 0.05)
    assert (step.server_cpu_s, step.allreduce_s) == (0.0, 0.0)


@pytest.mark.slow
def test_servers_work_while_dense_weights_are_updated():
    step = step_of(RATES, 1, 1, 4)
    worker = 2.0 + 200 * 10 * 1e-4 + 100 * 1e-3 + 0.02 + 0.2 + 0.05
    server = 100 * (2e-3 + 10 * 1e-4) + 0.01
    assert step.worker_cpu_s == pytest.approx(worker)
    assert step.server_cpu_s == pytest.approx(server)
    assert step.step_s == pytest.approx(worker + server - 0.25), (
        "the optimiser and the loop hide a quarter second"
    )
    two = step_of(RATES, 1, 2, 4)
    assert two.server_cpu_s < step.server_cpu_s


@pytest.mark.slow
def test_more_busy_threads_than_cores_share_them():
    step = step_of(RATES, 2, 1, 1, reader_s=0.3)
    total = 2 * (step.worker_cpu_s + 0.3) + step.server_cpu_s
    assert step.step_s == pytest.approx(total + HANDOVER_S)
    assert step.cores_s == pytest.approx(total)
    assert step_of(RATES, 2, 1, 8, reader_s=0.3).step_s < total


@pytest.mark.slow
def test_the_phases_of_a_step_share_the_cores_by_themselves():
    """While the only server works, one of two cores idles: dividing all CPU time by two would be too little."""
    rates = RATES.model_copy(update={"server_call_s": 1.0})
    step = step_of(rates, 2, 1, 2, reader_s=0.0)
    hidden = step.allreduce_s + step.optimiser_s + 0.05
    assert step.server_cpu_s > 2 * hidden
    assert step.step_s == pytest.approx(step.worker_cpu_s - hidden + step.server_cpu_s + HANDOVER_S)
    assert step.step_s > step.cores_s
    free = step_of(rates, 2, 1, 3, reader_s=0.0)
    assert free.step_s == pytest.approx(step.step_s - HANDOVER_S), "each process has a core"


@pytest.mark.slow
def test_a_device_that_waits_leaves_its_core_to_others():
    whole = step_of(RATES, 2, 0, 1)
    half = step_of(RATES, 2, 0, 1, host_share=0.5)
    assert half.worker_cpu_s == pytest.approx(whole.worker_cpu_s - 0.5 * (2.0 + 0.2))
    alone = [step_of(RATES, 1, 0, 1, reader_s=0.0, host_share=share).step_s for share in (0.5, 1.0)]
    assert alone[0] == pytest.approx(alone[1])


@pytest.mark.slow
def test_new_rows_take_time_and_memory():
    rates = RATES.model_copy(update={"fresh_byte_s": 1e-3})
    old, new = (step_of(rates, 1, 1, 4, new_share=share).server_cpu_s for share in (0.0, 0.5))
    assert new - old == pytest.approx(100 * 0.5 * (1e-3 + 1e-3 * (2 * 10 + INDEX_BYTES)))


@pytest.mark.slow
def test_a_worker_speaks_to_every_server_about_every_table():
    one, three = (step_of(RATES, 1, servers, 8) for servers in (1, 3))
    assert three.worker_cpu_s - one.worker_cpu_s == pytest.approx(2 * 0.02)
    assert 3 * three.server_cpu_s - one.server_cpu_s == pytest.approx(2 * 0.01)


@pytest.mark.slow
def test_busy_cores_slow_each_other_down():
    rates = RATES.model_copy(update={"row_slowdown": 1.5, "compute_slowdown_at": {1.0: 1.2}})
    assert step_of(rates, 1, 0, 2, reader_s=0.0) == step_of(RATES, 1, 0, 2, reader_s=0.0), (
        "the other core idles"
    )
    step = step_of(rates, 2, 0, 2, reader_s=0.0)
    assert 0.9 < step.busy_cores <= 1.0
    alone = step_of(RATES, 2, 0, 2, reader_s=0.0)
    rows = 100 * (2e-3 + 10 * 1e-4) + 200 * 1e-3 + 0.03
    slower = 2.0 * 0.2 + rows * 0.5
    assert step.compute_s - alone.compute_s == pytest.approx(slower * step.busy_cores, rel=0.05)


def test_the_planner_s_stage_is_what_is_predicted():
    """The CPU time of a worker is the plan's stage with the run's counts, not a second formula."""
    run = Processes(2, 1, 10, cores=8)
    plan = plan_of(PROFILE, RATES, run, 0.0)
    stage, batch = plan.stages[0], plan.problem.batch
    step = predict_step(PROFILE, RATES, run)
    parts = (stage.compute_s + stage.sync_s + stage.optimiser_s) * batch
    assert step.worker_cpu_s == pytest.approx(parts)
    assert stage.sync_s * batch == pytest.approx(0.1 + 1000 / 1e4, rel=1e-4), "and the latency of a ring"


@pytest.mark.slow
def test_a_slow_reader_is_waited_for():
    assert step_of(RATES, 1, 0, 4, reader_s=50.0).step_s == 50.0
    assert step_of(RATES, 1, 0, 4).reader_cpu_s == pytest.approx(100 / 1e3)


def test_rates_read_back_equal(tmp_path):
    path = tmp_path / "host.yaml"
    write_host_rates(RATES, path)
    assert read_host_rates(path) == RATES
    assert RATES.cpu == "one core of AMD EPYC (AVX-512)"


def test_a_slip_in_rates_is_reported_with_its_line(tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text(host_yaml(RATES).replace("disk_row_s: 0.001", "disk_row_s: -1"))
    with pytest.raises(InputError, match=r"host\.yaml:\d+:\d+: disk_row_s.*greater than or equal to 0"):
        read_host_rates(path)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("{}", Provenance("stated", "")),
        ("{note: by hand}", Provenance("stated", "by hand")),
        ("{kind: measured, year: 2020}", Provenance("measured", "", 2020)),
    ],
)
def test_a_source_of_rates_may_be_short(text, read, tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text(re.sub(r"(?m)^source: .*$", f"source: {text}", host_yaml(RATES)))
    assert read_host_rates(path) == RATES.model_copy(update={"source": read})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("source: {note: x, yeer: 3}", r":19: source.yeer: unknown key; did you mean 'year'\?$"),
        (
            "new_row_s: {row_s: 1, byte_s: 1, bite_s: 2}",
            r":34: new_row_s.bite_s: unknown key; did you mean 'byte_s'\?$",
        ),
    ],
)
def test_an_unknown_key_in_rates_is_reported_where_it_is(line, message, tmp_path):
    path = tmp_path / "host.yaml"
    key = line.partition(":")[0]
    path.write_text(re.sub(rf"(?m)^{key}: .*$", line, host_yaml(RATES)))
    with pytest.raises(InputError, match=message):
        read_host_rates(path)


def test_shipped_rates_are_plausible(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    rates = host_rates()
    assert rates.source.kind == "measured"
    assert "one core of" in rates.source.note
    for row in (rates.server_pull_s_per_row, rates.server_push_s_per_row, rates.local_row_s):
        assert 1e-8 < row(64) < 1e-5
    assert 1e-5 < rates.server_call_s < 1e-2
    assert all(1e7 < rate < 1e10 for rate in rates.decode_bytes_per_s.values())


def test_what_was_measured_here_replaces_what_is_shipped(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    shipped = load_layer_profile("nce")
    write_host_rates(RATES, tmp_path / "host.yaml")
    core = shipped.on("cpu-core")
    own = replace(core, curves=tuple(tuple(2 * one for one in row) for row in core.curves), compute=HERE)
    write_profile(replace(shipped, devices=(own,)), tmp_path / "nce.yaml")
    assert host_rates() == RATES
    found = load_layer_profile("nce")
    assert found.on("cpu-core").compute.note == f"by `berth profile --here`, {HERE.note}"
    assert found.on("cpu-core").at(4096).sum() == pytest.approx(2 * core.at(4096).sum(), rel=1e-3)
    assert found.on("V100") == shipped.on("V100")


def test_a_core_of_another_vendor_is_used_where_it_matches():
    other = replace(PROFILE.devices[0], device="cpu-core@intel", uncertainty=0.5)
    both = replace(PROFILE, devices=(*PROFILE.devices, other))
    assert for_vendor(both, "intel").on("cpu-core").uncertainty == 0.5
    assert for_vendor(both, "amd") == both
