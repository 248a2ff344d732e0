"""Measured tables: what overrides, what corrects, what is refused."""

from __future__ import annotations

import pytest

from berth.errors import InputError
from berth.network.fabric import Fabric
from berth.network.iteration import formula_s, iteration_time
from berth.network.measured import read_measured
from berth.network.placement import Placement
from berth.network.traffic import Traffic

TRAFFIC = Traffic(0.1, 1e9)


@pytest.fixture(name="fabric")
def _fabric(build):
    return Fabric(build([[8] * 4, [8] * 4]))


@pytest.fixture(name="table")
def _table(tmp_path):
    def write(text, cluster=None):
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return read_measured(path, cluster)

    return write


def test_a_row_that_describes_the_placement_overrides_the_formula(table, fabric):
    measured = table("model,gpus,machines,seconds\nbert,8,2,0.5\n")["bert"]
    found = iteration_time(TRAFFIC, Placement.of_counts({0: 4, 1: 4}), fabric, measured)
    assert (found.seconds, found.source) == (0.5, "measured")
    assert (found.compute_s, found.exposed_s) == (0.1, 0.4)


def test_repeated_runs_give_their_median(table, fabric):
    measured = table("model,gpus,machines,seconds\nbert,8,2,0.5\nbert,8,2,0.9\nbert,8,2,0.6\n")["bert"]
    assert iteration_time(TRAFFIC, Placement.of_counts({0: 4, 1: 4}), fabric, measured).seconds == 0.6


def test_a_row_that_says_more_wins(table, fabric):
    measured = table(
        "model,gpus,machines,racks,placement,seconds\n"
        "bert,8,2,,,0.5\n"
        "bert,8,2,1,,0.6\n"
        "bert,8,2,1,6+2,0.7\n"
        "bert,8,2,2,4+4,0.8\n"
    )["bert"]

    def seconds(counts):
        return iteration_time(TRAFFIC, Placement.of_counts(counts), fabric, measured).seconds

    assert seconds({0: 4, 1: 4}) == 0.6
    assert seconds({0: 2, 1: 6}) == 0.7
    assert seconds({0: 4, 4: 4}) == 0.8
    assert seconds({0: 6, 4: 2}) == 0.5


def test_a_tier_is_matched_by_name(table, fabric):
    measured = table(
        "model,gpus,machines,tier,seconds\nbert,8,2,network,0.9\nbert,8,2,rack,0.4\n", fabric.cluster
    )
    near, far = Placement.of_counts({0: 4, 1: 4}), Placement.of_counts({0: 4, 4: 4})
    assert iteration_time(TRAFFIC, near, fabric, measured["bert"]).seconds == 0.4
    assert iteration_time(TRAFFIC, far, fabric, measured["bert"]).seconds == 0.9


def test_elsewhere_the_nearest_measured_spread_corrects_the_formula(table, fabric):
    measured = table("model,gpus,machines,seconds\nbert,8,1,0.9\nbert,8,2,0.5\n")["bert"]
    here, there = Placement.of_counts(dict.fromkeys(range(4), 2)), Placement.of_counts({0: 4, 1: 4})
    found = iteration_time(TRAFFIC, here, fabric, measured)
    ratio = 0.5 / formula_s(TRAFFIC, there, fabric)
    assert found.source == "scaled"
    assert found.seconds == pytest.approx(ratio * formula_s(TRAFFIC, here, fabric), rel=1e-12)


def test_a_nearer_tier_counts_before_a_nearer_number_of_machines(table, fabric):
    measured = table("model,gpus,machines,racks,seconds\nbert,8,4,2,0.9\nbert,8,2,1,0.5\n")["bert"]
    here, there = Placement.of_counts(dict.fromkeys(range(4), 2)), Placement.of_counts({0: 4, 1: 4})
    ratio = iteration_time(TRAFFIC, here, fabric, measured).seconds / formula_s(TRAFFIC, here, fabric)
    assert ratio == pytest.approx(0.5 / formula_s(TRAFFIC, there, fabric), rel=1e-12)


def test_of_equally_near_measurements_the_fuller_one_corrects_and_runs_give_their_median(table, fabric):
    measured = table(
        "model,gpus,machines,placement,seconds\nbert,8,2,,9\n"
        "bert,8,2,4+4,0.4\nbert,8,2,4+4,0.6\nbert,8,2,4+4,0.5\nbert,8,2,,9\n"
    )["bert"]
    here, there = Placement.of_counts(dict.fromkeys(range(4), 2)), Placement.of_counts({0: 4, 1: 4})
    ratio = iteration_time(TRAFFIC, here, fabric, measured).seconds / formula_s(TRAFFIC, here, fabric)
    assert ratio == pytest.approx(0.5 / formula_s(TRAFFIC, there, fabric), rel=1e-12)


def test_an_uneven_measurement_is_compared_with_the_same_uneven_placement(table, fabric):
    measured = table("model,gpus,machines,placement,seconds\nbert,8,2,1+7,0.5\n")["bert"]
    here, there = Placement.of_counts({0: 4, 1: 4}), Placement.of_counts({0: 7, 1: 1})
    ratio = iteration_time(TRAFFIC, here, fabric, measured).seconds / formula_s(TRAFFIC, here, fabric)
    assert ratio == pytest.approx(0.5 / formula_s(TRAFFIC, there, fabric), rel=1e-12)


@pytest.mark.parametrize(
    "row",
    ["bert,4,1,,0.5", "bert,8,8,,0.5", "bert,8,6,3,0.5"],
    ids=["another number of GPUs", "more machines than the rack has", "more racks than there are"],
)
def test_what_says_nothing_of_this_job_and_cluster_leaves_the_formula_alone(table, fabric, row):
    measured = table(f"model,gpus,machines,racks,seconds\n{row}\n")["bert"]
    here = Placement.of_counts({0: 4, 1: 4})
    found = iteration_time(TRAFFIC, here, fabric, measured)
    assert (found.seconds, found.source) == (formula_s(TRAFFIC, here, fabric), "formula")


def test_measured_faster_than_the_profile_s_computation_exposes_nothing(table, fabric):
    measured = table("model,gpus,machines,seconds\nbert,8,1,0.05\n")["bert"]
    found = iteration_time(TRAFFIC, Placement.of_counts({0: 8}), fabric, measured)
    assert (found.seconds, found.compute_s, found.exposed_s) == (0.05, 0.05, 0.0)


HEAD = "model,gpus,machines,seconds"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "table.csv:1", "lacks the column 'model'"),
        ("model,gpus,machines\n", "table.csv:1", "lacks the column 'seconds'"),
        (f"{HEAD},colour\n", "table.csv:1", "unknown column or one twice: 'colour'"),
        (f"{HEAD},gpus\n", "table.csv:1", "one twice"),
        (f"{HEAD}\n", "table.csv", "holds no measurements"),
        (f"{HEAD}\n{'b' * 200_000},8,2,1\n", "table.csv", "is not CSV: field larger"),
        (f"{HEAD}\nbert,8,2\n", "table.csv:2", "has 3 cells, the header 4"),
        (f"{HEAD}\n\nbert,8,2,fast\n", "table.csv:3", "seconds can't be 'fast'"),
        (f"{HEAD}\nbert,8,2,0\n", "table.csv:2", "seconds can't be '0'"),
        (f"{HEAD}\nbert,8,2,nan\n", "table.csv:2", "seconds can't be 'nan'"),
        (f"{HEAD}\nbert,0,2,1\n", "table.csv:2", "gpus can't be '0'"),
        (f"{HEAD}\n,8,2,1\n", "table.csv:2", "model is empty"),
        (f"{HEAD}\nbert,2,4,1\n", "table.csv:2", "2 GPUs can't be on 4 machines"),
        (f"{HEAD},racks\nbert,8,2,1,3\n", "table.csv:2", "2 machines can't be in 3 racks"),
        (f"{HEAD},placement\nbert,8,2,1,4-4\n", "table.csv:2", "placement can't be '4-4'"),
        (f"{HEAD},placement\nbert,8,2,1,4+3\n", "table.csv:2", "7 GPUs on 2 machines, not 8 on 2"),
        (f"{HEAD},tier\nbert,8,2,1,netwrk\n", "table.csv:2", "no tier of cluster 'test' is called 'netwrk'"),
    ],
)
def test_a_table_that_can_t_be_used_is_refused_at_its_line(table, fabric, text, where, what):
    with pytest.raises(InputError) as caught:
        table(text, fabric.cluster)
    assert caught.value.where.endswith(where)
    assert what in caught.value.what
