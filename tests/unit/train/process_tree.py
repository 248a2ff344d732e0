"""A process and all that it has started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from forked import NAME


def signal_all(root: int, number: signal.Signals) -> int:
    """Signals a process and all its descendants, the youngest generation first; returns how many there were."""
    generations = [[root]]
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    while children := [pid for pid, parent in parents.items() if parent in generations[-1]]:
        generations.append(children)
    found = [pid for generation in reversed(generations) for pid in generation]
    for pid in found:
        os.kill(pid, number)
    return len(found)


def children(parent: int) -> list[int]:
    """The processes that a process has started and that are there, the first one first."""
    found = [
        process
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and _parent(process) == parent
    ]
    return sorted((int(process.name) for process in found), key=_start)


def _parent(process: Path) -> int:
    name, _, facts = _stat(process)
    return 0 if name == NAME.decode() else int(facts.split()[1])


def _start(process: int) -> tuple[int, int]:
    return int(_stat(Path(f"/proc/{process}"))[2].split()[19]), process


def _stat(process: Path) -> tuple[str, str, str]:
    """Its name and its facts; of one that has ended those of one without a parent."""
    try:
        return (process / "stat").read_text().partition("(")[2].rpartition(") ")
    except OSError:
        return "", "", "Z 0" + " 0" * 20
