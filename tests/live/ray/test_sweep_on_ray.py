"""Cells of a sweep on a real Ray have the figures that they have here."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from berth.errors import InputError
from berth.simulate.sweep import Grid, sweep
from berth.simulate.sweep_on_ray import results_on_ray

GRID = Grid("1x2x4:H100", ("fifo", "srtf"), (1.0,), (1.0,), ("balanced",), seeds=2, jobs=20)

pytestmark = pytest.mark.slow


@pytest.fixture
def connected(racks, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", racks.address)


def figures(rows):
    return [{**row, "result": {**row["result"], "cpu_s": 0}} for row in rows]


def test_a_sweep_on_ray_has_the_figures_of_a_local_one(connected, tmp_path):
    played = []

    def results(cells, workers):
        for row in results_on_ray(cells, workers):
            played.append(row)
            yield row

    there = sweep(GRID.cells(), tmp_path / "there.jsonl", results=results)
    here = sweep(GRID.cells(), tmp_path / "here.jsonl", workers=1)
    assert len(played) == 4
    assert figures(there) == figures(here)


def test_a_machine_with_other_code_is_refused(connected):
    cell = dataclasses.replace(GRID.cells()[0], code="of another day")
    with pytest.raises(InputError, match="another version of berth, of the policy fifo or of"):
        list(results_on_ray([cell], 1))


def test_without_ray_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("berth.extras.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"--on ray needs ray, which is not installed: pip install '.*\[ray\]'"
    ):
        list(results_on_ray(GRID.cells(), 1))
