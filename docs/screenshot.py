"""Draws docs/assets/dashboard.png and dashboard-day.png: the dashboard over a simulated day, as Chromium shows it.

The second is animated (APNG): the time slider moves over the day. Frames are PNG files of one size, so no encoder is
needed: their compressed data is put into one file as it is.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
MOMENT = 0.36  # of the run, when many jobs wait
FRAMES, FRAME_MS = 10, 700
MOST_BYTES = 1 << 20


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
        day = browser.new_page(viewport={"width": 1040, "height": 600})
        day.goto(address)
        until(lambda: day.evaluate("Boolean(globalThis.berth?.past && globalThis.berth.series)"))
        data = animated(list(frames(day)), FRAME_MS)
        assert len(data) <= MOST_BYTES, f"{len(data)} bytes: take fewer frames"
        (HERE / "assets" / "dashboard-day.png").write_bytes(data)
        browser.close()


def frames(page: Any) -> Iterator[bytes]:
    """The page at moments of the day, from its beginning to its end."""
    for number in range(FRAMES):
        page.fill("#moment", str(round(10_000 * (0.06 + 0.88 * number / (FRAMES - 1)))))
        page.wait_for_timeout(250)
        yield page.screenshot()


def animated(pictures: Sequence[bytes], frame_ms: int) -> bytes:
    """PNG files of one size as one animated PNG that repeats forever."""
    parts = [dict_of(picture) for picture in pictures]
    (header,) = parts[0][b"IHDR"]
    width, height = struct.unpack(">II", header[:8])
    assert all(part[b"IHDR"] == [header] for part in parts)
    found = [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), chunk(b"acTL", struct.pack(">II", len(parts), 0))]
    sequence = 0
    for number, part in enumerate(parts):
        control = struct.pack(">IIIIIHHBB", sequence, width, height, 0, 0, frame_ms, 1000, 0, 0)
        found.append(chunk(b"fcTL", control))
        sequence += 1
        for data in part[b"IDAT"]:
            if number == 0:
                found.append(chunk(b"IDAT", data))
                continue
            found.append(chunk(b"fdAT", struct.pack(">I", sequence) + data))
            sequence += 1
    return b"".join([*found, chunk(b"IEND", b"")])


def dict_of(picture: bytes) -> dict[bytes, list[bytes]]:
    """The chunks of a PNG file by their kind."""
    found: dict[bytes, list[bytes]] = {}
    at = 8
    while at < len(picture):
        (size,) = struct.unpack(">I", picture[at : at + 4])
        found.setdefault(picture[at + 4 : at + 8], []).append(picture[at + 8 : at + 8 + size])
        at += size + 12
    return found


def chunk(kind: bytes, data: bytes) -> bytes:
    """One chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    main()
