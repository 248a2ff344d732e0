"""A real `berth up`, a real Chromium, and pages that must not complain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import ARGS, CHROMIUM, Berth, Looker


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Berth]:
    berth = Berth(tmp_path_factory.mktemp("berth"), "2x2x4:H100")
    berth.start()
    try:
        yield berth
    finally:
        if berth.process.poll() is None:
            berth.empty()
            berth.stop()


@pytest.fixture
def berth(running: Berth) -> Iterator[Berth]:
    """The same controller, with nothing left of earlier tests."""
    yield running
    running.empty()


@pytest.fixture(scope="module")  # its event loop must have ended before tests of other files run their own
def chromium() -> Iterator[Any]:
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium (set BERTH_CHROMIUM)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Any, tmp_path: Path) -> Iterator[Looker]:
    shots = Path(os.environ.get("BERTH_SHOTS") or tmp_path / "shots")
    shots.mkdir(parents=True, exist_ok=True)
    looker = Looker(chromium, shots)
    try:
        yield looker
    finally:
        looker.close()
    assert looker.complaints == []
