"""The page of the papers' experiments says what its figures say, and can be made again."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import papers  # noqa: E402
import papers_page  # noqa: E402
import papers_plots  # noqa: E402
import papers_runs  # noqa: E402
from papers_ratios import Study, losses, tally  # noqa: E402

SEEDS = 6
PAGES = ("papers.md", "design/dally.md")


def made_up(factor):
    """Figures of every policy and cell: `factor(policy)` times 100, a little more for each seed."""
    points = []
    for section, policies, scale in papers_runs.sections(papers_runs.FULL):
        for arrivals in papers_runs.ARRIVALS:
            for racks in scale.racks:
                for congestion in scale.congestions:
                    for policy in policies:
                        values = [100.0 * factor(policy, arrivals) * (1 + seed / 10) for seed in range(SEEDS)]
                        points.append(
                            {
                                "section": section, "arrivals": arrivals, "racks": racks, "congestion": congestion,
                                "policy": policy, "values": dict.fromkeys(papers_runs.METRICS, values),
                            }
                        )  # fmt: skip
    about = {"seeds": SEEDS, "jobs_per_rack": 7, "date": "2026-01-01", "took": "3 runs"}
    return {"schedulers": {"about": about, "points": points}}


CELLS = len(papers_runs.RACKS) * len(papers_runs.CONGESTIONS)


def test_a_policy_half_as_long_everywhere_is_better_in_every_cell():
    study = Study(made_up(lambda policy, _: 0.5 if policy == papers_page.TUNED else 1.0), "schedulers")
    ratios = study.ratios(papers_page.TUNED, "tiresias", "mean_jct_s", "batch")
    assert tally(ratios) == f"0.50 · {CELLS}/0/0"
    assert losses(ratios) == ""
    back = study.ratios("tiresias", papers_page.TUNED, "mean_jct_s", "batch")
    assert losses(back).startswith("batch, 1 rack, x1 2.00 (2.00-2.00); ")
    assert tally(study.ratios("tiresias", "gandiva", "mean_jct_s")) == f"1.00 · 0/{2 * CELLS}/0"


def test_the_page_shows_where_dally_loses_and_its_best_mode(tmp_path):
    slow = {("berth", "poisson"): 0.8, ("dally, full", "batch"): 0.9}
    data = made_up(lambda policy, arrivals: slow.get((policy, arrivals), 1.0))
    page = papers_page.pages(data, ROOT / "docs")["papers.md"]
    assert (
        "| `dally, tuned` | `berth` | poisson, 1 rack, x1 1.25 (1.25-1.25); poisson, 1 rack, x10 1.25" in page
    )
    assert f"and {CELLS - 2} more" in page
    assert "Its best mode is `dally, full`; `berth` over that mode: 1.11" in page
    assert page.count("<details markdown") == page.count("</details>") == 2 + 3
    assert len(re.findall(r"^\*\*\d+ racks?, congestion x", page, re.MULTILINE)) == 2 * CELLS
    assert "7 jobs per rack, 6 seeds per cell" in page


def test_every_marker_has_its_end_and_the_stored_pages_are_those_of_the_stored_figures():
    """What is on the pages is in docs/assets/papers.json; training is read from other results."""
    data = json.loads((ROOT / "docs" / "assets" / "papers.json").read_text())
    for name, text in papers_page.pages(data, ROOT / "docs").items():
        begins, ends = (re.findall(rf"<!-- {word}: (.+) -->", text) for word in ("begin", "end"))
        assert begins == ends
        stored = (ROOT / "docs" / name).read_text()
        assert without(stored, "training") == without(text, "training")


def test_gates_of_messages_are_compared_with_the_one_that_never_shares():
    points = [
        {
            "gate": gate,
            "penalty": penalty,
            "k": k,
            "mean_jct_s": [factor * (100 + seed) for seed in range(SEEDS)],
        }
        for gate, factor in (("SRSF(1)", 1.0), ("SRSF(2)", 2.0), ("SRSF(n)", 3.0), ("Ada-SRSF", 0.5))
        for penalty in papers_runs.PENALTIES
        for k in papers_runs.SCATTERED
    ]
    about = {"seeds": SEEDS, "jobs": 9, "date": "2026-01-01", "took": "3 runs"}
    table = papers_page.messages({"messages": {"about": about, "points": points}})
    assert "9 jobs, 6 seeds" in table
    assert "| SRSF(1), median | 1m42s |" in table
    assert "| Ada-SRSF / SRSF(1) | 0.50 (0.50-0.50) | 0.50 (0.50-0.50) | 0.50 (0.50-0.50) |" in table
    assert "| k = 4 | 1.00 (1.00-1.00) |" in table


def without(page: str, name: str) -> str:
    return re.sub(rf"(<!-- begin: {name} -->).*(<!-- end: {name} -->)", r"\1\2", page, flags=re.DOTALL)


def test_the_pictures_are_svg_with_a_figure_in_every_cell():
    pictures = papers_plots.pictures(made_up(lambda policy, _: 1.0))
    assert sorted(pictures) == ["assets/papers-batch.svg", "assets/papers-poisson.svg"]
    others = len(papers_runs.SCHEDULERS) - 1
    for text in pictures.values():
        tree = ElementTree.fromstring(text)
        assert len(tree.findall(".//{*}rect")) == others * CELLS


@pytest.mark.slow
def test_the_quick_study_runs_from_the_simulations_to_the_page(tmp_path, monkeypatch):
    for name in PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs" / name, tmp_path / name)
    monkeypatch.setattr(papers_runs, "METHODS", ("exact", "greedy", "cpu-only"))
    assert papers.main(["--quick", "--docs", str(tmp_path), "--cache", str(tmp_path / "cache")]) == 0
    data = json.loads((tmp_path / "assets" / "papers.json").read_text())
    points = data["schedulers"]["points"]
    assert {one["policy"] for one in points} >= {
        *papers_runs.SCHEDULERS,
        *papers_runs.VARIANTS,
        *papers_runs.LWF,
    }
    assert all(min(one["values"]["mean_jct_s"]) > 0 for one in points)
    assert {one["gate"] for one in data["messages"]["points"]} == {*papers_page.GATES}
    assert {one["method"] for one in data["plans"]["points"]} == {"exact", "greedy", "cpu-only"}
    assert "1 seed per cell" in (tmp_path / "papers.md").read_text()
