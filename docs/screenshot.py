"""Draws docs/assets/dashboard.png: the dashboard over a simulated day, as Chromium shows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from berth.testing.up import SOURCE, until

HERE = Path(__file__).resolve().parent
CLUSTER = "6x10x8:H100"
MIX = "--sizes powers-of-two --durations exponential:2h --seed 6"
JOBS = f"trace generate {{jobs}} --jobs 900 --cluster {CLUSTER} --load 1.15 {MIX}"
RUN = f"simulate {{jobs}} --cluster {CLUSTER} --policy berth --faults mtbf=6d,mttr=3h,seed=2 --log {{log}}"
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
]
MOMENT = 0.45  # of the run


def main() -> None:
    """Simulate, serve, take the screenshot."""
    environment = os.environ | {"PYTHONPATH": SOURCE}
    berth = [sys.executable, "-m", "berth"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"jobs": folder / "jobs.csv", "log": folder / "events.parquet"}
        for command in (JOBS, RUN):
            subprocess.run(
                [*berth, *command.format(**files).split()], env=environment, check=True, capture_output=True
            )
        output = folder / "view.log"
        with output.open("wb") as file:
            view = subprocess.Popen(
                [*berth, "view", str(files["log"]), "--no-open"], stderr=file, env=environment
            )
        try:
            until(lambda: "Ctrl-C" in output.read_text())
            draw(next(word for word in output.read_text().split() if "#token=" in word))
        finally:
            view.terminate()
            view.wait()


def draw(address: str) -> None:
    """Take a screenshot of the first view, with the pointer on a gang."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGS)
        page = browser.new_page(viewport={"width": 1280, "height": 880})
        page.goto(address)
        until(lambda: page.evaluate("Boolean(globalThis.berth?.past && globalThis.berth.series)"))
        page.fill("#moment", str(round(10_000 * MOMENT)))
        page.locator(".map .over").hover(position={"x": 480, "y": 88})
        page.wait_for_timeout(600)
        page.screenshot(path=HERE / "assets" / "dashboard.png")
        browser.close()


if __name__ == "__main__":
    main()
