"""Runs one training of `plan_truth.py`, and measures its processes by role.

The steps after the first third count: their wall-clock time, and the CPU time of the thread of a worker that trains, of
the one that reads, and of servers.
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from berth.plan.threads import single_thread
from berth.testing.accelerator import SPEED
from berth.train.data import ClickStream
from berth.train.measure.disturbance import Disturbance, Watch, children
from berth.zoo import make_model
from plan_truth_cases import CLICKS, SPEED_OF_STANDIN, Case


@dataclass(frozen=True)
class Moment:
    """CPU seconds by thread of a run, when a step was reported."""

    step: int
    wall_s: float
    rows: int
    threads: dict[tuple[str, int, int], float]  # role, process, thread
    disturbance: Disturbance  # since the watch was made


@dataclass(frozen=True)
class Observed:
    """Means of the steps that count."""

    wall_s: float
    worker_s: float  # CPU seconds of one process
    reader_s: float
    server_s: float
    total_s: float  # of all processes
    new_rows: float
    others: float  # share of the cores


def observe(case: Case, steps: int) -> Observed:
    """Train, and return what was measured."""
    _, _, workers, servers, _ = case
    moments = _moments(case, steps)
    first = next(one for one in moments if one.step >= steps / 3)
    last = moments[-1]
    count = last.step - first.step
    spent = {key: after - first.threads[key] for key, after in last.threads.items() if key in first.threads}

    def cpu_s(role: str) -> float:
        return sum(used for (of, _, _), used in spent.items() if of == role) / count

    return Observed(
        wall_s=(last.wall_s - first.wall_s) / count,
        worker_s=cpu_s("worker") / workers,
        reader_s=cpu_s("reader") / workers,
        server_s=cpu_s("server") / max(1, servers),
        total_s=sum(spent.values()) / count,
        new_rows=(last.rows - first.rows) / count,
        others=last.disturbance.total,
    )


def _moments(case: Case, steps: int) -> list[Moment]:
    """Run `berth train` and look at its processes whenever it reports a step."""
    model, device, workers, servers, batch = case
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "figures.csv")
        command = [
            *(sys.executable, "-m", "berth", "train", model, "--device", device, "--csv", str(log), "--json"),
            *("--batch", str(workers * batch), "--workers", str(workers), "--servers", str(servers)),
            *("--steps", str(steps)),
        ]
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            text=True,
            env={**os.environ, SPEED: str(SPEED_OF_STANDIN)},
        )
        moments: list[Moment] = []
        watch = Watch()
        while process.poll() is None:
            line = last_line(log)
            if line is not None and (not moments or int(line["step"]) > moments[-1].step):
                wall = int(line["examples"]) / float(line["examples_per_s"])
                threads, disturbance = by_thread(process.pid), watch.disturbance()
                if not moments:
                    watch = Watch()
                if int(line["step"]) < steps:  # with the last one they end
                    rows = int(float(line["rows"]))
                    moments.append(Moment(int(line["step"]), wall, rows, threads, disturbance))
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit(
                f"{' '.join(command)} failed:\n{process.stderr.read() if process.stderr else ''}"
            )
        return moments


def last_line(log: Path) -> dict[str, str] | None:
    """The last whole line of a CSV file that grows."""
    if not log.exists():
        return None
    text = log.read_text()
    lines = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
    return lines[-1] if lines else None


def by_thread(launcher: int) -> dict[tuple[str, int, int], float]:
    """CPU seconds of every thread below a process, by role."""
    found = {}
    for pid in descendants(launcher):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            for task in Path(f"/proc/{pid}/task").iterdir():
                used = (task / "schedstat").read_text().split()[0]
                trains = task.name == str(pid) or (task / "comm").read_text().startswith("pt_autograd")
                role = "server" if "berth.train.servers" in command else "worker" if trains else "reader"
                found[role, pid, int(task.name)] = int(used) / 1e9
        except (OSError, ValueError):  # it has just ended
            continue
    return found


def descendants(pid: int) -> list[int]:
    """A process that has no children trains itself; otherwise it only launches."""
    return [below for child in children(pid) for below in descendants(child)] or [pid]


def drawing_s(model: str, workers: int, batch: int) -> float:
    """CPU seconds that the reader of a worker takes to draw a batch."""
    seconds = []
    clicks, examples = ClickStream(0), make_model(model).example_batch
    with single_thread():
        for seed in range(4):
            start = time.process_time()
            if model in CLICKS:
                clicks.draw(seed, batch)
            else:
                examples(workers * batch, seed)  # a worker draws the whole batch and takes its share
            seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


def waits_for_others(processes: int, least_s: float = 0.3) -> float:
    """Return how much longer work of this many processes takes than its CPU time, if others take the cores first."""
    children = []
    for _ in range(min(processes, len(os.sched_getaffinity(0))) - 1):
        child = os.fork()
        if child == 0:
            _spin(2 * least_s)
            os._exit(0)
        children.append(child)
    _spin(least_s / 2)  # until each has a core
    longer = _spin(least_s)
    for child in children:
        os.waitpid(child, 0)
    return longer


def _spin(least_s: float) -> float:
    wall, cpu = time.perf_counter(), time.process_time()
    while time.process_time() - cpu < least_s:
        pass
    return (time.perf_counter() - wall) / (time.process_time() - cpu) - 1
