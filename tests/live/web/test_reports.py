"""The reports of commands in a browser: nothing that axe finds, nothing wider than a phone, a verdict above figures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from browsing import AXE, Looker, axe_rules

from preloaded import programs

pytestmark = pytest.mark.slow

TRACE = "generate:jobs=60,load=0.9 --cluster 2x2x8:H100"
POLICIES = "--policy fifo --policy berth"
COMMANDS = {
    "simulate": f"simulate {TRACE} {POLICIES}",
    "compare": f"compare {TRACE} {POLICIES}",
    "sweep": f"sweep --cluster 2x2x8:H100 {POLICIES} --load 0.7,1.2 --jobs 40 --seeds 6",
    "plan": "plan nce --devices cpu,T4 --throughput 100k/s",
    "frontier": "plan frontier nce --devices cpu,T4 --limit 6",
    "bench": "plan bench --only types --methods exact,heuristic,gpu-only --quick --seeds 1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_report_is_readable_for_everyone_at_every_width(folder: Path, look: Looker, name: str) -> None:
    page_file = folder / f"{name}.html"
    command = [str(programs() / "berth"), *COMMANDS[name].split(), "--html", str(page_file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        page = look.open(page_file.as_uri(), width=width, scheme=scheme, bypass_csp=True)
        assert page.locator("h2").first.inner_text() == "In short"
        assert page.locator("section").first.locator("p, li").count() >= 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate(axe_rules())
        assert page.evaluate(AXE) == [], f"{width}, {scheme}"
        look.keep(page, f"report-{name}-{width}-{scheme}")


def test_a_comparison_draws_its_intervals(folder: Path, look: Looker) -> None:
    page_file = folder / "drawn.html"
    command = [str(programs() / "berth"), *COMMANDS["compare"].split(), "--html", str(page_file)]
    subprocess.run(command, capture_output=True, check=True, cwd=folder)
    page = look.open(page_file.as_uri())
    lead = page.locator(".verdict p").first.inner_text()
    assert "The mean JCT is " in lead
    assert "the 95 % interval of the change is " in lead
    rows = page.locator("table.heat tbody tr")
    drawn = 0
    for at in range(rows.count()):
        cells = rows.nth(at).locator("td").all_inner_texts()
        interval = rows.nth(at).locator("svg.interval")
        assert interval.count() == ("none" not in cells[3])
        if not interval.count():
            continue
        drawn += 1
        low, high = (float(text) for text in cells[3].strip().split(" .. "))
        line, dot = interval.locator("line").nth(2), interval.locator("circle")
        ends = [float(line.get_attribute(name) or "nan") for name in ("x1", "x2")]
        assert ends[0] <= float(dot.get_attribute("cx") or "nan") <= ends[1]
        assert (ends[1] < 75.0) == (high < 0) or abs(high) < 1  # the middle is no change
        assert (ends[0] > 75.0) == (low > 0) or abs(low) < 1
    assert drawn


def test_an_axis_of_a_narrow_range_has_several_ticks(folder: Path, look: Looker) -> None:
    page_file = folder / "ticks.html"
    command = [str(programs() / "berth"), *COMMANDS["plan"].split(), "--html", str(page_file)]
    subprocess.run(command, capture_output=True, check=True, cwd=folder)
    page = look.open(page_file.as_uri())
    ticks = page.evaluate("[ticksOf({log: true}, 0.74, 1.4, 5), ticksOf({log: true}, 0.5, 50, 5)]")
    assert ticks[0] == pytest.approx([0.8, 1.0, 1.2, 1.4])
    assert ticks[1] == [0.5, 1, 2, 5, 10, 20, 50]
