"""The packet-level study without ns-3: its scenarios, the model's side, and the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import ns3_page  # noqa: E402
import ns3_scenarios as cases  # noqa: E402
import ns3_study as study  # noqa: E402
from ns3_scenarios import MIB, Job, Scenario, Shape  # noqa: E402

RATE, LINK_S = 12.5e9, 1.25e-6
ALL = tuple(range(8))


def result(**changed):
    values = {
        "group": "one job", "kind": "flat", "racks": 2, "hosts": 4, "oversubscription": 1,
        "transport": cases.WINDOW.name, "message": 4 * MIB, "algorithm": "flat", "regime": "mid",
        "packets_s": 1.0, "model_s": 1.0, "fluid_s": 1.0, "packets_alone_s": 1.0, "model_alone_s": 1.0,
    }  # fmt: skip
    return ns3_page.Result(**(values | changed))


class Recorded(study.Packets):
    """Iterations of a fixed length instead of a program."""

    def __init__(self, seconds):
        super().__init__(Path("unused"))
        self.length_s, self.asked = seconds, []

    def ends_s(self, text):
        self.asked.append(text)
        jobs = sum(line.startswith("job ") for line in text.splitlines())
        iterations = int(next(line.split()[3] for line in text.splitlines() if line.startswith("job ")))
        return [[self.length_s * (n + 1) for n in range(iterations)] for _ in range(jobs)]


def test_a_flat_ring_by_hand():
    total_s, latency_s = cases.collective_s(Shape(2, 4, 4), Job(ALL, 4 * MIB, "flat"))
    assert latency_s == pytest.approx(14 * 4 * LINK_S)
    assert total_s == pytest.approx(14 / 8 * 4 * MIB / RATE + latency_s)


def test_a_hierarchical_ring_by_hand():
    total_s, latency_s = cases.collective_s(Shape(2, 4, 1), Job(ALL, 4 * MIB, "hierarchical"))
    assert latency_s == pytest.approx(6 * 2 * LINK_S + 2 * 4 * LINK_S)
    assert total_s == pytest.approx((6 / 4 + 2 / 2 / 4) * 4 * MIB / RATE + latency_s)


def test_the_rings_of_a_hierarchical_all_reduce():
    rings = cases.rings(Job(ALL, 8 * MIB, "hierarchical"), Shape(2, 4))
    inside = [(3, 2 * MIB, (0, 1, 2, 3)), (3, 2 * MIB, (4, 5, 6, 7))]
    across = [(2, 1 * MIB, (place, place + 4)) for place in range(4)]
    expected = [(0, *ring) for ring in inside] + [(1, *ring) for ring in across]
    assert rings == expected + [(2, *ring) for ring in inside]


def test_a_scenario_as_text():
    job = Job((0, 2), MIB, "flat", compute_s=1e-3)
    text = cases.as_text(Scenario("one job", "flat", Shape(2, 2, 2, 4, (0, 3, 1, 2)), (job,)), (5e-4,))
    lines = text.splitlines()
    assert {"rate 100000000000", "racks 2", "hosts 2", "oversubscription 2", "paths 0 3 1 2"} <= set(lines)
    assert lines[-2:] == ["job 0.0005 0.001 2 0.001", f"ring 0 2 {MIB // 2} 0 2"]


def test_buckets_of_an_overlapping_job_carry_its_message_and_appear_in_the_backward_pass():
    job = Job((0, 2), MIB, "flat", compute_s=3.0, overlaps=True)
    ready = job.ready_s
    assert ready == sorted(ready)
    assert ready[0] > 1.0
    assert ready[-1] < 3.0
    ((_, steps, size, _),) = cases.rings(job, Shape(2, 2))
    assert steps * size * len(ready) == MIB


def test_regimes_go_by_latency():
    sizes = (16 * 1024, 2 * MIB, 64 * MIB)
    assert [cases.regime(Shape(), Job(ALL, size, "flat")) for size in sizes] == list(cases.REGIMES)


def test_two_like_jobs_on_one_up_link_take_what_the_formula_says():
    scenario = cases.pair(Shape(2, 2, 2), 4 * MIB, 1, 2.0, False)
    comm_s = cases.collective_s(scenario.shape, scenario.jobs[0])[0]
    expected = comm_s + (comm_s**2 + (2 * comm_s) ** 2) ** 0.5
    assert cases.modelled_s(scenario) == pytest.approx([expected] * 2, rel=0.02)
    assert cases.fluid_s(scenario) == pytest.approx([expected] * 2, rel=0.1)


def test_every_scenario_has_a_row_and_every_group_a_table():
    every = list(cases.scenarios())
    assert {one.group for one in every} == {"one job", "busy", "two jobs", "transport", "hashed"}
    for one in every:
        hosts = one.shape.racks * one.shape.hosts
        taken = [host for job in one.jobs for host in job.hosts]
        assert len(set(taken)) == len(taken)
        assert max(taken) < hosts


def test_the_mean_leaves_the_first_iterations_out_and_offsets_are_averaged():
    scenario = cases.pair(Shape(2, 2, 4), MIB, 4, 0.5, False)
    packets = Recorded(2.0)
    assert packets.seconds(scenario) == [2.0, 2.0]
    assert len(packets.asked) == cases.OFFSETS
    ends = [100.0, 200.0, 300.0, 400.0, *(400.0 + 3.0 * n for n in range(1, 9))]
    assert study.mean_iteration_s(ends, scenario) == 3.0


def test_the_output_is_parsed():
    assert study.parse("job 0.5 1\njob 2\ndropped 7\n") == [[0.5, 1.0], [2.0]]


def test_a_result_per_job_and_one_for_a_busy_fabric():
    both = study.result_of(cases.pair(Shape(2, 4, 4), 4 * MIB, 4, 0.5, False), Recorded(1e-3))
    assert [one.message for one in both] == [4 * MIB, MIB]
    assert both[0].error == pytest.approx(both[0].model_s / 1e-3 - 1)
    (busy,) = study.result_of(next(cases.busy_fabric()), Recorded(1e-3))
    assert busy.group == "busy"


def test_errors_show_the_median_and_the_furthest():
    assert ns3_page.errors([0.01, -0.2, 0.03]) == "+1.0 / -20.0"
    assert ns3_page.errors([]) == "-"


def test_a_slowdown_is_compared_with_that_of_packets():
    one = result(packets_s=3.0, packets_alone_s=2.0, model_s=2.4, model_alone_s=2.0)
    assert (one.slowdown, one.slowdown_error) == (1.5, pytest.approx(-0.2))


def test_the_page_says_what_the_results_say():
    results = [
        result(model_s=1.05),
        result(model_s=0.9, regime="latency-bound", oversubscription=4),
        result(group="two jobs", kind="in turn, equal", model_s=1.2, packets_s=1.5, regime="bandwidth-bound"),
        result(group="busy", model_s=1.5),
    ]
    page = (ROOT / "docs" / "design" / "network-packets.md").read_text(encoding="utf-8")
    made = ns3_page.fill(page, results, {"date": "2026-01-02", "took_s": 60})
    assert "| one job | 2 | -10.0 / -10.0 | +5.0 / +5.0 | - |" in made
    assert "| flat ring | latency-bound | - | - | -10.0 / -10.0 |" in made
    assert "| in turn, equal | 1 | 1.50-1.50 | -20.0 / -20.0 |" in made
    assert "2026-01-02, 4 results, 1m" in made
    first = made.split("<!-- begin: worst -->")[1].splitlines()[3]
    assert first.startswith("| busy: flat |")
    assert first.endswith("| +50.0 |")


def test_a_wrong_choice_of_the_ring_is_counted_with_its_cost():
    results = [
        result(model_s=1.0, packets_s=1.1),
        result(algorithm="hierarchical", model_s=1.2, packets_s=1.0),
        result(message=MIB, model_s=1.0, packets_s=1.0),
        result(message=MIB, algorithm="hierarchical", model_s=2.0, packets_s=2.0),
    ]
    text = ns3_page.choice(results)
    assert "in 1 of 2 cells; a wrong choice costs 10.0 % at most" in text


def test_without_ns3_the_packages_are_named(tmp_path, monkeypatch, capsys):
    with pytest.raises(study.MissingError, match="libns3-dev"):
        study.Packets.compiled(tmp_path, header=tmp_path / "missing.h")
    monkeypatch.setattr(study.shutil, "which", lambda name: None)
    assert study.main(["--docs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: g++ is not installed\n  Debian 12: apt-get install")


def test_the_page_needs_stored_figures(tmp_path, capsys):
    assert study.main(["--page", "--docs", str(tmp_path)]) == 2
    assert "no stored figures" in capsys.readouterr().err
