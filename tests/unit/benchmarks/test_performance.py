"""The page on performance says what is stored, and a bar that was missed is never shown as met."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import bench  # noqa: E402
import page  # noqa: E402
import results  # noqa: E402

FAKE = """
import sys
sys.path.insert(0, {benchmarks!r})
from results import figure, finish, options
given = options(None).parse_args()
found = [figure("a table", "speed", "/s", [1.0, {speed}, 9.0], at_least={{"median": 5.0}})]
sys.exit(finish({name!r}, found, given.results))
"""


def figure(samples=(1.0, 2.0, 3.0, 4.0, 100.0), unit="s", **options):
    return results.figure("a table", "what", unit, samples, **options)


def test_the_pages_in_the_repository_are_made_from_the_stored_results():
    assert (ROOT / "docs" / "performance.md").read_text() == page.make_summary(page.stored())
    assert (ROOT / "docs" / page.FIGURES).read_text() == page.make_page(page.stored())


def test_the_summary_is_one_page_and_has_a_figure_of_every_stored_benchmark():
    found = page.stored()
    assert [
        one.name for one in page.BENCHMARKS if one.name in found and not page.headline(one, found[one.name])
    ] == []
    assert len(page.make_summary(found).splitlines()) <= 50


def test_every_stored_result_is_that_of_a_benchmark():
    known = {f"{one.name}.json" for one in page.BENCHMARKS}
    assert {file.name for file in page.results_of(page.DOCS).iterdir()} <= known


@pytest.mark.parametrize("one", page.BENCHMARKS, ids=lambda one: one.name)
def test_every_benchmark_has_its_script_its_target_and_its_place_to_store(one):
    assert f'finish("{one.name}"' in one.script.read_text()
    assert re.search(rf"^{one.target}:.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("bars", "met"),
    [
        ({"at_most": {"median": 3.0}}, True),
        ({"at_most": {"median": 2.9}}, False),
        ({"at_least": {"median": 3.0}}, True),
        ({"at_least": {"median": 3.1}}, False),
        ({"at_most": {"median": 3.0, "most": 99.0}}, False),
        ({"at_most": {"median": 3.0}, "at_least": {"least": 1.1}}, False),
        ({"at_most": {"p99": 99.0}}, False),
        ({"also": [results.Bar(0, 1, "not proven")]}, False),
        ({"also": [results.Bar(1.0, float("nan"))]}, False),
        ({}, True),
    ],
)
def test_a_figure_meets_its_bars_only_if_it_meets_every_one(bars, met):
    assert figure(**bars).met is met
    assert results.finish("x", [figure(**bars)], None) == (0 if met else 1)


def test_the_spread_is_least_to_most_or_the_quartiles_and_the_table_says_which():
    wide, narrow, alone = figure(), figure(quartiles=True), figure([7.0])
    assert (wide.low, wide.high) == (1.0, 100.0)
    assert (narrow.low, narrow.high) == (1.5, 52.0)
    assert (alone.low, alone.high) == (None, None)
    assert results.as_table([wide, alone])[0] == ["", "median", "least–most"]
    assert results.as_table([narrow])[0] == ["", "median", "quartiles"]
    assert results.as_table([alone]) == (["", "median"], [["what", "7 s"]])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.1034, "x", "1.103×"),
        (0.98765, "", "0.988"),
        (0.0, "", "0"),
        (2.6181, "%", "2.62 %"),
        (0.003456, "s", "0.00346 s"),
        (654.4, "ms", "654 ms"),
        (123456.7, "/s", "123,457/s"),
    ],
)
def test_numbers_have_the_digits_that_count(value, unit, text):
    assert results.with_unit(results.number(value, unit), unit) == text


def test_a_missed_bar_is_shown_as_missed_with_what_was_found(tmp_path):
    slow = figure(at_most={"p99": 50.0}, beside="a floor", note="a note")
    fine = replace(figure(at_least={"median": 2.5}), what="other")
    results.store("plan", [slow, fine], tmp_path)
    stored = results.load(tmp_path / "plan.json")
    assert stored.figures == (slow, fine)
    made = page.make_page({"plan": stored})
    summary = page.make_summary({"plan": stored})
    assert "| [Planning](performance-figures.md#planning) |  | 1 of 2 |" in summary
    assert "- **[Planning](performance-figures.md#planning).** *a table*: what." in summary
    assert "**1 of 2 bars are met**" in summary
    assert "| 1 | *a table*: what, beside a floor: p99 100 s, but at most 50 s is asked |" in summary
    assert "| what (a note) | 3 s | 1–100 | p99 ≤ 50: 100 | **MISSED** | a floor |" in made
    assert "| other | 3 s | 1–100 | ≥ 2.5 | met |  |" in made
    assert "Not measured yet: `make bench-live`." in made


def test_of_several_missed_bars_the_summary_names_the_farthest_off(tmp_path):
    found = [
        replace(figure(samples=[value], at_most={"median": limit}), what=f"of {limit:g}")
        for value, limit in ((12.0, 10.0), (3.0, 1.0), (9.0, 10.0))
    ]
    results.store("plan", found, tmp_path)
    summary = page.make_summary({"plan": results.load(tmp_path / "plan.json")})
    assert "| 2 | *a table*: of 1: 3 s, but at most 1 s is asked |" in summary


def test_packages_measured_on_different_machines_name_the_machine(tmp_path):
    results.store("plan", [figure()], tmp_path)
    here = results.load(tmp_path / "plan.json")
    there = replace(here, name="live", machine={**here.machine, "cores": "64"})
    assert "| all of it | |" in page.make_page({"plan": here})
    made = page.make_page({"plan": here, "live": there})
    assert "| Planning | |" in made
    assert "| The live controller | |" in made
    assert "| cores | 64 |" in made


@pytest.mark.slow
def test_all_are_run_whatever_becomes_of_one_and_the_page_is_made(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(page, "SCRIPTS", tmp_path)
    speeds = {"network": 9, "plan": 3, "simulate": None, "live": 6}
    for name, speed in speeds.items():
        fake = FAKE.format(benchmarks=str(ROOT / "benchmarks"), name=name, speed=speed)
        (tmp_path / f"{name}.py").write_text(fake if speed else "raise SystemExit(2)")
    wanted = [one for one in page.BENCHMARKS if one.name in speeds]
    assert bench.run_all(wanted, tmp_path) == 1
    reported = capfd.readouterr().out
    assert re.search(r"The network model +every bar met", reported)
    assert re.search(r"Planning +MISSED: speed", reported)
    assert re.search(r"The simulator +NOT MEASURED \(exit code 2\)", reported)
    assert re.search(r"The live controller +every bar met", reported)
    assert (tmp_path / "performance.md").read_text() == page.make_summary(page.stored(tmp_path))
    assert (tmp_path / page.FIGURES).read_text() == page.make_page(page.stored(tmp_path))
    assert set(page.stored(tmp_path)) == {"network", "plan", "live"}
    assert bench.run_all([one for one in wanted if one.name in ("network", "live")], tmp_path) == 0
