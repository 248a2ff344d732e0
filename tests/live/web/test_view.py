"""`berth view`: a finished simulation in the same page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Looker, make_log

from berth.simulate.events import read_events
from berth.testing.up import until
from preloaded import forking

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_log(tmp_path_factory.mktemp("log") / "events.parquet")


@pytest.fixture(scope="module")
def address(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    reported = tmp_path_factory.mktemp("view") / "view.log"
    with reported.open("wb") as file:
        command = [sys.executable, "-m", "berth", "view", str(log), "--no-open"]
        with forking():
            process = subprocess.Popen(command, stderr=file)
    try:
        until(lambda: "Ctrl-C" in reported.read_text() or process.poll() is not None)
        assert process.poll() is None, reported.read_text()
        yield next(word for word in reported.read_text().split() if "#token=" in word)
    finally:
        process.terminate()
        process.wait(300)


def ready(page: Any) -> None:
    until(lambda: page.evaluate("Boolean(globalThis.berth?.past)"))


def sees(page: Any, selector: str, words: str) -> None:
    page.locator(selector).filter(has_text=words).first.wait_for()


def test_every_moment_shows_what_the_log_says(log: Path, address: str, look: Looker) -> None:
    page = look.open(address)
    ready(page)
    events = read_events(log).filter(read_events(log)["job"].is_not_null())
    moments = events["time_s"].unique(maintain_order=True).to_list()
    counts = "time => { berth.look(time); return [berth.state.counts().busy, berth.state.waiting().length]; }"
    # forwards, then backwards: the walk must come to the same
    for time in [*moments[::29], *reversed(moments[::31])]:
        last = events.filter(events["time_s"] <= time).group_by("job").last()
        busy = int(last.filter(last["event"].is_in(["started", "moved"]))["gpus"].sum())
        waiting = len(last.filter(last["event"].is_in(["arrived", "evicted"])))
        assert page.evaluate(counts, time) == [busy, waiting]


def test_what_is_below_the_strip_stays_where_it_is_at_every_moment(address: str, look: Looker) -> None:
    page = look.open(address)
    ready(page)
    top = "document.querySelector('.stats').getBoundingClientRect().top"
    tops, calm = set(), set()
    for moment in range(0, 10001, 500):
        page.fill("#moment", str(moment))
        tops.add(page.evaluate(top))
        calm.add(page.locator(".attention").inner_text().startswith("nothing needs attention"))
    assert (len(tops), calm) == (1, {True, False})


def test_the_slider_moves_the_whole_page(address: str, look: Looker) -> None:
    page = look.open(address)
    ready(page)
    sees(page, ".about", "simulated")
    assert page.locator("nav a").all_inner_texts() == ["Cluster", "Jobs", "Machines", "Trends"]
    page.fill("#moment", "10000")
    sees(page, ".stats .use", "0 of 32")
    page.fill("#moment", "5000")
    until(lambda: "0 of 32" not in page.locator(".stats .use b").inner_text())
    look.keep(page, "simulated")
    before = page.evaluate("berth.at")
    page.keyboard.press("Space")
    until(lambda: page.evaluate("berth.at") > before)
    page.keyboard.press("Space")


def test_a_job_of_the_log_has_its_page(log: Path, address: str, look: Looker) -> None:
    events = read_events(log)
    job = events.filter(events["event"] == "evicted")["job"][0]
    page = look.open(address)
    ready(page)
    page.evaluate("hash => { location.hash = hash }", f"#/job/{job}")
    sees(page, "h1", job)
    page.fill("#moment", "10000")  # the page shows what had happened by then
    sees(page, ".attempts", "of GPU time")
    assert page.locator("#cancel").count() == 0
    page.locator("button.link").first.click()
    sees(page, ".mapped, .wide", "its devices are highlighted")
    look.keep(page, "simulated-job")


def test_lists_and_trends_follow_the_log(log: Path, address: str, look: Looker) -> None:
    page = look.open(address)
    ready(page)
    page.fill("#moment", "10000")
    page.evaluate("() => { location.hash = '#/jobs' }")
    page.check("input[value=over]")
    jobs = read_events(log)["job"].drop_nulls().n_unique()
    until(lambda: page.evaluate("berth.state.ended().length") == jobs)
    sees(page, ".row", "finished")
    page.evaluate("() => { location.hash = '#/trends' }")
    until(lambda: page.locator(".chart canvas").count() == 4)
    look.keep(page, "simulated-trends")


def test_a_file_that_is_not_a_log_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no")
    command = [sys.executable, "-m", "berth", "view", str(tmp_path / "x.parquet")]
    with forking():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not a log of events" in done.stderr
    assert "Traceback" not in done.stderr
