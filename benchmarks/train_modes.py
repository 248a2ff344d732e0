"""Throughput of the training modes with one worker slowed to a tenth, beside all at full speed.

`python benchmarks/train_modes.py`: one run of `berth train` per mode, with two workers and one server. In turns, both
workers run freely, then worker 1 is stopped and continued (SIGSTOP, SIGCONT) so that it runs a tenth of the time. A
figure is the throughput of the run with the slow worker over that without, of neighbouring turns: sync falls to the
pace of the slow worker; async and geo keep that of the other one. Throughput is wall-clock time, so other load on the
same cores counts.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import Figure, figure, finish, options, progress

BATCH = 2048  # of both workers
SLOW_PERIOD_S, SLOW_SHARE = 0.2, 0.1
ASYNC_BAR = 40.0  # % kept: the other worker alone is 50 %
MODES = {
    "sync": (),
    "async": (),
    "half-async": ("--staleness", "4"),
    "geo": ("--geo-every", "10"),
}


class Run:
    """A run of one mode, until the end of the block."""

    def __init__(self, mode: str, folder: Path) -> None:
        self._csv = folder / f"{mode}.csv"
        command = [sys.executable, "-m", "berth", "train", "ctrdnn", "--batch", str(BATCH)]
        command += ["--steps", "1000000", "--workers", "2", "--servers", "1", "--csv", str(self._csv)]
        self._log = (folder / f"{mode}.log").open("w")
        command += ["--mode", mode, *MODES[mode]]
        self._launcher = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def __enter__(self) -> Run:
        while len(self._samples()) < 6:  # rows are created and workers start at different moments
            if self._launcher.poll() is not None:
                raise RuntimeError(f"the run ended: {Path(self._log.name).read_text()}")
            time.sleep(0.1)
        return self

    def __exit__(self, *error: object) -> None:
        self._launcher.kill()  # its processes end with it
        self._launcher.wait()
        self._log.close()

    def turn(self, seconds: float, *, slow: bool) -> float:
        """Examples per second of a turn, without the first report, which is of the turn before."""
        before = len(self._samples())
        worker, ends = worker_pid(self._launcher.pid, 1), time.monotonic() + seconds
        while time.monotonic() < ends:
            if slow:
                os.kill(worker, signal.SIGSTOP)
                time.sleep(SLOW_PERIOD_S * (1 - SLOW_SHARE))
                os.kill(worker, signal.SIGCONT)
            time.sleep(SLOW_PERIOD_S * SLOW_SHARE)
        while len(self._samples()) < before + 3:  # at a tenth of the pace reports come late
            time.sleep(0.1)
        (examples, at_s), (later, later_s) = self._samples()[before], self._samples()[-1]
        return (later - examples) / (later_s - at_s)

    def _samples(self) -> list[tuple[float, float]]:
        """Examples and seconds since the start, of every report."""
        if not self._csv.exists():
            return []
        with self._csv.open() as file:
            rows = [row for row in csv.DictReader(file) if row["examples_per_s"] and row["rows"]]
        return [
            (float(row["examples"]), float(row["examples"]) / float(row["examples_per_s"]))
            for row in rows
            if float(row["examples_per_s"])
        ]


def worker_pid(launcher: int, rank: int) -> int:
    """The process of a rank."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"BERTH_TRAIN_NAME=worker{rank}/1" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise RuntimeError("the worker has ended")


def figures(speeds: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    """From the examples per second at full speed and with the slow worker, by mode."""
    title = f"one of two workers at a tenth of its speed, batch {BATCH:,}"
    found = []
    for mode, turns in speeds.items():
        kept = [100 * slowed / full for full, slowed in turns]
        bar = {"median": ASYNC_BAR} if mode in ("async", "geo") else None
        found += [
            figure(title, f"{mode}: throughput kept", "%", kept, at_least=bar, quartiles=True),
            figure(title, f"{mode}: all at full speed", "/s", [full for full, _ in turns], quartiles=True),
            figure(
                title, f"{mode}: with the slow one", "/s", [slowed for _, slowed in turns], quartiles=True
            ),
        ]
    return found


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    given = parser.parse_args()
    speeds: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            progress(mode)
            with Run(mode, Path(folder)) as run:
                speeds[mode] = [
                    (run.turn(given.seconds, slow=False), run.turn(given.seconds, slow=True))
                    for _ in range(given.turns)
                ]
    return finish("train-modes", figures(speeds), given.results)


if __name__ == "__main__":
    sys.exit(main())
