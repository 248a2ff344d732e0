"""How quick the dashboard is with 1,024 machines and 10,000 jobs, in a real Chromium.

    python benchmarks/dashboard.py [--jobs 10000] [--cluster 32x32x8] [--json]

A simulation is scrubbed from end to end; a live controller with every job in its queue is opened and its list scrolled.
Prints the first paint and the frames in a second, against their bars. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from berth.report.terminal import console, table
from berth.testing.up import SOURCE, Up, until

FIRST_PAINT_MS = 1_000.0
FRAMES_PER_S = 30.0
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
]
SECONDS = 4.0
# every frame asks for the next moment, forwards and backwards; a frame counts once it is drawn
SCRUB = """seconds => new Promise(done => {
  const range = document.getElementById('moment'), began = performance.now(), frames = [];
  let last = began;
  const tick = now => {
    frames.push(now - last); last = now;
    const part = ((now - began) / (seconds * 1000) * 2) % 2;
    range.value = Math.round(10000 * (part < 1 ? part : 2 - part));
    range.dispatchEvent(new Event('input'));
    if (now - began < seconds * 1000) requestAnimationFrame(tick);
    else done(frames.slice(5));
  };
  requestAnimationFrame(tick);
})"""
SCROLL = """seconds => new Promise(done => {
  const list = document.querySelector('.list'), began = performance.now(), frames = [];
  let last = began;
  const tick = now => {
    frames.push(now - last); last = now;
    list.scrollTop += 400;
    if (now - began < seconds * 1000) requestAnimationFrame(tick);
    else done(frames.slice(5));
  };
  requestAnimationFrame(tick);
})"""
PAINTED = """new Promise(done => { const look = () => {
  const [mark] = performance.getEntriesByName('berth:painted');
  if (mark) done(mark.startTime); else requestAnimationFrame(look); }; look(); })"""
SHIFT = """() => { window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach(one => {
  if (!one.hadRecentInput) window.shift += one.value; })).observe({type: 'layout-shift', buffered: true}); }"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement against its bar."""

    what: str
    value: float
    unit: str
    bar: str
    met: bool


def frames_per_s(frames: list[float]) -> float:
    """Of the slower half: what it feels like."""
    slow = sorted(frames)[len(frames) // 2 :]
    return 1000.0 * len(slow) / sum(slow)


def paint(what: str, value: float) -> Figure:
    """A first paint, in milliseconds from the start of the navigation."""
    return Figure(what, value, "ms", f"under {FIRST_PAINT_MS:g}", value < FIRST_PAINT_MS)


def smooth(what: str, frames: list[float]) -> Figure:
    """Frames in a second."""
    value = frames_per_s(frames)
    return Figure(what, value, "/s", f"at least {FRAMES_PER_S:g}", value >= FRAMES_PER_S)


def still(what: str, value: float) -> Figure:
    """How much the page moved by itself (Cumulative Layout Shift)."""
    return Figure(what, value, "shift", "under 0.1", value < 0.1)


def first_paint(browser: Any, address: str) -> float:
    """Milliseconds until the map is drawn, in a browser that has never seen the page; the median of five."""
    paints = []
    for _ in range(5):
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(address)
        page.locator("nav a").first.wait_for()
        paints.append(float(page.evaluate(PAINTED)))
        page.context.close()
    return sorted(paints)[2]


def measure_finished(browser: Any, folder: Path, cluster: str, jobs: int) -> list[Figure]:
    """A simulation: opened, and scrubbed."""
    log = folder / "events.parquet"
    _berth(folder, "trace", "generate", str(folder / "jobs.csv"), "--jobs", str(jobs), "--cluster", cluster,
           "--load", "1.1", "--sizes", "powers-of-two", "--durations", "exponential:2h", "--seed", "3")  # fmt: skip
    _berth(
        folder,
        "simulate",
        str(folder / "jobs.csv"),
        "--cluster",
        cluster,
        "--policy",
        "berth",
        "--log",
        str(log),
    )
    with _serving(folder, log) as address:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(address)
        until(lambda: page.evaluate("Boolean(globalThis.berth?.past)"))
        page.evaluate(SHIFT)
        figures = [
            paint("simulation: first paint (median of 5)", first_paint(browser, address)),
            smooth("simulation: scrubbing the map", page.evaluate(SCRUB, SECONDS)),
            still("simulation: layout shift", page.evaluate("window.shift")),
        ]
        page.context.close()
    return figures


def measure_live(browser: Any, folder: Path, cluster: str, jobs: int) -> list[Figure]:
    """A controller whose machines are all drained, so that every job waits: opened, and its queue scrolled."""
    up = Up(folder / "state", "--cluster", cluster).start()
    try:
        client = up.client
        for machine in client.get("cluster")["machines"]:
            client.post("machines", machine["name"], "drain")
        batch = [{"spec": {"run": "true", "name": f"job {n}", "gpus": 1 + n % 8}} for n in range(jobs)]
        for at in range(0, jobs, 5_000):
            client.post("jobs", "batch", body={"jobs": batch[at : at + 5_000]})
        until(lambda: client.get("status")["queued"] == jobs)
        address = f"{client.url}/#token={(folder / 'state' / 'admin.token').read_text().strip()}"
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(address)
        until(lambda: page.locator(".row:visible").count())
        page.evaluate(SHIFT)
        figures = [
            paint("live: first paint (median of 5)", first_paint(browser, address)),
            smooth("live: scrolling the queue", page.evaluate(SCROLL, SECONDS)),
            still("live: layout shift", page.evaluate("window.shift")),
        ]
        page.context.close()
        return figures
    finally:
        up.kill()


def _berth(folder: Path, *arguments: str) -> None:
    Up(folder / "none").berth(*arguments)


@contextmanager
def _serving(folder: Path, log: Path) -> Iterator[str]:
    import os
    import subprocess

    told = folder / "view.log"
    with told.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "berth", "view", str(log), "--no-open"],
            stderr=file,
            env=os.environ | {"PYTHONPATH": SOURCE},
        )
    try:
        until(lambda: "Ctrl-C" in told.read_text() or process.poll() is not None)
        yield next(word for word in told.read_text().split() if "#token=" in word)
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    """Measures, prints, and says whether every bar was met."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--cluster", default="32x32x8:H100")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGS)
        figures = measure_finished(browser, Path(name), asked.cluster, asked.jobs)
        figures += measure_live(browser, Path(name), asked.cluster, asked.jobs)
        browser.close()
    if asked.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    else:
        rows = [
            [one.what, f"{one.value:.3g} {one.unit}", one.bar, "met" if one.met else "MISSED"]
            for one in figures
        ]
        console().print(table(f"{asked.jobs:,} jobs on {asked.cluster}", ["", "measured", "bar", ""], rows))
    return 0 if all(one.met for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
