"""How quick the dashboard is with 1,024 machines and 10,000 jobs, in a real Chromium.

    python benchmarks/dashboard.py [--jobs 10000] [--cluster 32x32x8]

A simulation is scrubbed from end to end; a live controller with every job in its queue is opened and its list scrolled.
Prints the first paint and the frames in a second, against their bars. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from berth.testing.up import SOURCE, Up, until
from results import Figure, figure, finish, options, progress

FIRST_PAINT_MS = 1_000.0
FRAMES_PER_S = 30.0
LAYOUT_SHIFT = 0.1
Moving = tuple[str, str]  # what is done, and the script that does it
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


def frames_per_s(frames: list[float]) -> float:
    """Of the slower half: what it feels like."""
    slow = sorted(frames)[len(frames) // 2 :]
    return 1000.0 * len(slow) / sum(slow)


def first_paints(browser: Any, address: str) -> list[float]:
    """Milliseconds until the map is drawn, in a browser that has never seen the page; five times."""
    paints = []
    for _ in range(5):
        with _new_page(browser, address) as page:
            page.locator("nav a").first.wait_for()
            paints.append(float(page.evaluate(PAINTED)))
    return paints


def measure_page(
    browser: Any, address: str, title: str, ready: Callable[[Any], bool], moving: Moving
) -> list[Figure]:
    """First paint, frames while it moves, and how much the page moved by itself (Cumulative Layout Shift)."""
    with _new_page(browser, address) as page:
        until(lambda: ready(page))
        page.evaluate(SHIFT)
        paints = first_paints(browser, address)
        what, script = moving
        smooth = frames_per_s(page.evaluate(script, SECONDS))
        shift = float(page.evaluate("window.shift"))
    return [
        figure(title, "first paint", "ms", paints, at_most={"median": FIRST_PAINT_MS}),
        figure(title, what, "frames/s", [smooth], at_least={"median": FRAMES_PER_S}),
        figure(title, "layout shift", "", [shift], at_most={"median": LAYOUT_SHIFT}),
    ]


@contextmanager
def _new_page(browser: Any, address: str) -> Iterator[Any]:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(address)
    yield page
    page.context.close()


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
        moving = ("scrubbing the map", SCRUB)
        return measure_page(
            browser, address, f"A finished simulation, {jobs:,} jobs on {cluster}", _replayed, moving
        )


def _replayed(page: Any) -> bool:
    return bool(page.evaluate("Boolean(globalThis.berth?.past)"))


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
        token = up.berth("token", "add", "bench", "--role", "admin").stdout.strip()
        address = f"{client.url}/#token={token}"
        title = f"A live controller, {jobs:,} jobs in the queue of {cluster}"
        return measure_page(browser, address, title, _listed, ("scrolling the queue", SCROLL))
    finally:
        up.kill()


def _listed(page: Any) -> bool:
    return bool(page.locator(".row:visible").count())


def _berth(folder: Path, *arguments: str) -> None:
    Up(folder / "none").berth(*arguments)


@contextmanager
def _serving(folder: Path, log: Path) -> Iterator[str]:
    output = folder / "view.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "berth", "view", str(log), "--no-open"],
            stderr=file,
            env=os.environ | {"PYTHONPATH": SOURCE},
        )
    try:
        until(lambda: "Ctrl-C" in output.read_text() or process.poll() is not None)
        yield next(word for word in output.read_text().split() if "#token=" in word)
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    """Measures, prints, and says whether every bar was met."""
    parser = options(__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--cluster", default="32x32x8:H100")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        progress("a finished simulation")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGS)
        found = measure_finished(browser, Path(name), given.cluster, given.jobs)
        progress("a live controller")
        found += measure_live(browser, Path(name), given.cluster, given.jobs)
        browser.close()
    return finish("dashboard", found, given.results)


if __name__ == "__main__":
    sys.exit(main())
