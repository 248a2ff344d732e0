"""What each benchmark holds against its bars, on made-up measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import network  # noqa: E402
import plan_learner  # noqa: E402
import policies  # noqa: E402
import policy_sweep  # noqa: E402
import tables  # noqa: E402
import train  # noqa: E402
import train_budget  # noqa: E402
import train_modes  # noqa: E402
import train_peers  # noqa: E402
import train_reading  # noqa: E402


def missed(figures):
    return {(one.what, bar.statistic) for one in figures for bar in one.bars if not bar.met}


def costs(**times):
    """The first turn, which is not counted, is a hundred times the others."""
    names = {
        "floor": train.FLOOR,
        "same": train.SAME_FLOOR,
        "torch": train.TORCH,
        "berth": train.BERTH,
        "served": train.SERVED,
    }
    return {name: [2500.0] + [25.0 * times.get(word, 1.0)] * 15 for word, name in names.items()}


@pytest.mark.parametrize(
    ("size", "times", "auc", "expected"),
    [
        (4096, {"berth": 1.03, "served": 1.08}, 0.75, set()),
        (4096, {"berth": 1.04, "served": 1.08}, 0.75, {train.BERTH}),
        (4096, {"berth": 1.0, "served": 1.09}, 0.75, {train.SERVED}),
        # a floor by faster products
        (4096, {"berth": 0.95, "served": 0.95, "same": 0.9}, 0.75, {train.BERTH}),
        (512, {"berth": 1.08, "served": 1.15}, 0.75, set()),
        (512, {"berth": 1.09, "served": 1.16}, 0.75, {train.SERVED, train.BERTH}),
        (512, {"berth": 1.0, "served": 1.3}, 0.7, {train.SERVED, train.BERTH}),
        (8192, {"berth": 2.0, "served": 2.0}, 0.75, set()),  # no bar at this size
        (4096, {"torch": 9.0}, 0.746, {train.BERTH}),
    ],
)
def test_training_is_held_against_the_floor_and_the_auc_of_torch(size, times, auc, expected):
    found = {train.TORCH: 0.75, train.BERTH: auc, train.SERVED: 0.75}
    assert {what for what, _ in missed(train.figures(size, costs(**times), found))} == expected


@pytest.mark.parametrize(
    ("name", "share", "met"),
    [("Parquet", 0.029, True), ("Parquet", 0.04, False), ("drawn clicks", 0.5, True)],
)
def test_reading_from_files_is_held_against_a_share_of_the_step(name, share, met):
    step = [(25.0, 30.0)] * 5
    spent = {name: [(25.0 * share, 1.0)] * 5, train_reading.READ: step, train_reading.AHEAD: step}
    assert (missed(train_reading.figures(name, spent)) == set()) is met


@pytest.mark.parametrize(("peer", "expected"), [(26.0, set()), (24.0, {"torchrec 1.8"})])
def test_a_peer_that_takes_less_cpu_time_than_berth_is_a_bar_missed(peer, expected):
    spent = {train_peers.FLOOR: [20.0] * 9, train_peers.BERTH: [25.0] * 9, "torchrec 1.8": [peer] * 9}
    facts = {name: {"auc": 0.75, "resident_mib": 1.0} for name in spent}
    assert {what for what, _ in missed(train_peers.figures(4096, spent, facts))} == expected


@pytest.mark.parametrize(("slower", "met"), [(1.9, True), (2.1, False)])
def test_a_table_under_a_budget_keeps_half_the_speed_or_misses(slower, met):
    memory, budget = (SimpleNamespace(wall_s=[one] * 9, cpu_s=[one] * 9) for one in (1.0, slower))
    assert (missed(train_budget.kept("t", memory, budget)) == set()) is met


@pytest.mark.parametrize(("kept", "met"), [(0.41, True), (0.39, False)])
def test_async_modes_keep_the_throughput_of_the_worker_that_is_not_slow_or_miss(kept, met):
    speeds = {mode: [(100.0, 100.0 * kept)] * 5 for mode in train_modes.MODES}
    expected = set() if met else {f"{mode}: throughput kept" for mode in ("async", "geo")}
    assert {what for what, _ in missed(train_modes.figures(speeds))} == expected


@pytest.mark.parametrize(("rate", "met"), [(20.0, True), (19.9, False)])
def test_table_rates_are_compared_with_the_required_rows_per_second(rate, met):
    peers = {name: [1.0] for name in (*tables.PEERS, *tables.PEERS.values())}
    rates = peers | {"pull  berth, out=": [rate], "push  berth adagrad": [9.0]}
    held = {one.what: one.met for one in tables.figures("t", rates) if one.bars}
    assert held == {"pull  berth, out=": met, "push  berth adagrad": True}


def test_tables_are_shown_beside_their_peers():
    rates = {own: [30.0, 20.0, 40.0] for own in tables.PEERS} | {
        peer: [10.0] * 3 for peer in tables.PEERS.values()
    }
    ratios = {one.what: (one.median, one.beside) for one in tables.figures("t", rates) if one.unit == "x"}
    assert ratios == {own: (3.0, peer) for own, peer in tables.PEERS.items()}


@pytest.mark.parametrize(
    ("median", "p90", "expected"),
    [(0.05, 0.19, set()), (0.07, 0.19, {("bert", "median")}), (0.05, 0.21, {("bert", "p90")})],
)
def test_the_network_model_is_held_against_both_quantiles_of_what_was_left_out(median, p90, expected):
    good, judged = network.Score(0.01, 0.02), network.Score(median, p90)
    line = network.Line("bert", 7, good, judged, network.Score(0.9, 0.9))
    assert missed(network.step_figures(network.Steps([line], [good], [line]))) == expected


def ratio(mean, noise=0.01):
    return policies.Ratio(mean, mean - noise, mean + noise)


@pytest.mark.parametrize(
    ("mean_jct", "p99", "noise", "expected"),
    [
        (0.9, 0.9, 0.01, set()),
        (1.03, 0.9, 0.01, {("mean JCT", "most"), ("mean JCT, odd and large", "mean")}),
        (0.97, 0.9, 0.01, {("mean JCT, odd and large", "mean")}),
        (0.9, 1.05, 0.01, {("p99 of JCT", "mean")}),
        (0.9, 1.2, 0.01, {("p99 of JCT", "mean"), ("p99 of JCT", "cells 10% worse beyond the noise")}),
        (0.9, 1.2, 0.2, {("p99 of JCT", "mean")}),
    ],
)
def test_the_policys_promise_is_held_clause_by_clause(mean_jct, p99, noise, expected):
    cells = [cell for cell in policy_sweep.cells(quick=False) if cell.rank == policy_sweep.RANKS[0]]
    judged = [
        policies.Judged(cell, "tuned", ratio(mean_jct), ratio(p99, noise), ratio(0.99)) for cell in cells
    ]
    assert missed(policies.clauses("t", judged)) == expected


@pytest.mark.parametrize(
    ("gaps", "cpu_s", "expected"),
    [
        ([0.0, 0.01, 0.05], 9.0, set()),
        ([0.0, 0.03, 0.04], 9.0, {("berth-lstm, gap to the optimum", "median")}),
        ([0.0, 0.01, 0.06], 9.0, {("berth-lstm, gap to the optimum", "most")}),
        ([0.0, 0.01, 0.05], 11.0, {("berth-lstm, a run", "most")}),
    ],
)
def test_the_learned_planner_is_held_against_median_worst_and_time(gaps, cpu_s, expected):
    row = plan_learner.Row("berth-lstm", np.array(gaps), np.array([1.0, 1.0, cpu_s]), 6400)
    assert missed(row.figures(held=True)) == expected
    assert missed(row.figures(held=False)) == set()
