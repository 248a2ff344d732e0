"""A process and all that it has started."""

from __future__ import annotations

import os
import signal
from pathlib import Path


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


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0
