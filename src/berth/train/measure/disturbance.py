"""Detects that other programs, or other virtual machines of the host, used the cores during a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

DISTURBED = 0.05  # share of the cores above which a measurement is repeated
_ATTEMPTS = 3
Report = Callable[[str], None]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Shares of all cores of the machine."""

    others: float = 0.0  # used by programs that the measurement did not start
    stolen: float = 0.0  # taken by the hypervisor for other virtual machines

    @property
    def total(self) -> float:
        """The share that the measurement could not have."""
        return self.others + self.stolen

    def __str__(self) -> str:
        text = f"other programs used {self.others:.0%} of the cores"
        return text + (f", other virtual machines {self.stolen:.0%}" if self.stolen >= 0.005 else "")


class Watch:
    """Measures the disturbance since it was made."""

    def __init__(self) -> None:
        self._wall_s, self._busy_s, self._stolen_s = time.monotonic(), *_cores_s()
        self._own_s = cpu_s_of_tree(os.getpid())

    def disturbance(self) -> Disturbance:
        """Return what others used of the cores so far, apart from this process and those it started."""
        available_s = (time.monotonic() - self._wall_s) * _cores()
        busy_s, stolen_s = _cores_s()
        others_s = busy_s - self._busy_s - (cpu_s_of_tree(os.getpid()) - self._own_s)
        if available_s <= 0:
            return Disturbance()
        return Disturbance(max(0.0, others_s) / available_s, (stolen_s - self._stolen_s) / available_s)


class Measurer:
    """Runs measurements, and repeats those that were disturbed while there is time for it."""

    def __init__(self, report: Report, extra_s: float) -> None:
        self.worst = Disturbance()  # of what was kept
        self._report = report
        self._extra_s = extra_s  # that repeats may still take

    def __call__(self, what: str, measure: Callable[[], Result]) -> Result:
        """Return the least disturbed of up to three results."""
        self._report(what)
        kept, least, attempts = *self._once(measure), 1
        while least.total > DISTURBED and attempts < _ATTEMPTS and self._extra_s > 0:
            self._report(f"{what}, again: {least}")
            started = time.monotonic()
            again, disturbance = self._once(measure)
            self._extra_s -= time.monotonic() - started
            attempts += 1
            if disturbance.total < least.total:
                kept, least = again, disturbance
        self.worst = max(self.worst, least, key=lambda one: one.total)
        return kept

    def _once(self, measure: Callable[[], Result]) -> tuple[Result, Disturbance]:
        watch = Watch()
        return measure(), watch.disturbance()


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds of a process, over all its threads."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def cpu_s_of_tree(pid: int) -> float:
    """Return the CPU seconds of a process and of all that it started, with those that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # user, system; of children that ended
        ended = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return ended + sum(map(cpu_s_of_tree, children(pid)))
    except (OSError, ValueError):  # it has just ended
        return 0.0


def children(pid: int) -> list[int]:
    """Return the processes that one has started and that still run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:  # the thread has just ended
            continue
    return found


def _cores() -> int:
    return sum(line.startswith("cpu") for line in Path("/proc/stat").read_text().splitlines()) - 1


def _cores_s() -> tuple[float, float]:
    """Return the seconds that all cores together were busy, and that were stolen from them."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, stolen = map(int, fields[:8])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, stolen / tick
