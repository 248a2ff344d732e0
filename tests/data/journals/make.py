"""Write the journal of a small cluster that goes through every kind of record, and the state it leads to.

    python tests/data/journals/make.py NAME     writes NAME.sqlite and NAME.json beside this file

A journal in this folder is never written again: it is what an older berth left on a disk, and every later one must
open it.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from berth.clock import ManualClock
from berth.cluster.load import load_cluster
from berth.live import commands
from berth.live.backend import MachineStatus
from berth.live.controller import Controller
from berth.live.setup import Setup
from berth.live.snapshot import facts_of
from berth.live.spec import JobSpec
from berth.live.store import Store
from berth.testing.memory import MemoryBackend

HERE = Path(__file__).parent


class Story:
    """A controller on an engine in memory, stepped by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock()
        self.cluster = load_cluster("2x2x4:V100-16")
        self.backend = MemoryBackend(self.cluster, self.clock)
        self.open("srtf")

    def open(self, policy: str) -> None:
        """Start a controller on the folder, as after `kill -9` of the one before."""
        store = Store(self.folder)
        setup = Setup(self.cluster, policy=policy, store=store.name)
        self.controller = Controller(store, self.backend, setup, self.clock)

    def ask(self, command: commands.Command) -> dict[str, Any]:
        """Ask, step, and return the answer."""
        answer = self.controller.ask(command)
        self.step()
        return answer.result(0)

    def submit(self, name: str, gpus: int, seconds: float, **more: Any) -> None:
        """Submit a job that works this long."""
        env = {"SECONDS": str(seconds)} | more.pop("env", {})
        facts = {"run": "work", "name": name, "gpus": gpus, "duration": f"{seconds}s", "env": env} | more
        self.ask(commands.submit(JobSpec(**facts), f"user of {name}", name))

    def step(self, seconds: float = 0.0, times: int = 1) -> None:
        """Let time pass."""
        for _ in range(times):
            self.clock.advance(seconds)
            self.controller.step()


def tell(story: Story, model: Any) -> None:
    """Every kind of record at least once; jobs wait, run, stop and are delayed at the end."""
    story.backend.machines["r1-m1"] = MachineStatus(external=2)
    story.step(5)
    story.backend.machines["r1-m1"] = MachineStatus()
    story.submit("long", 16, 5000, grace="0s", model="bert-large", restarts=7)
    story.step(10, times=2)
    story.submit("short", 16, 10, priority=5)
    story.step(20, times=6)
    story.submit("fails", 1, 40, env={"FAILS": "1"})
    story.submit("profiled", 2, 4000, model=model)
    story.step(5, times=30)
    story.ask(commands.prioritise("long", 3))
    story.ask(commands.learn("long", 1, 0.2))
    story.ask(commands.learn("long", 2, 0.5))
    story.backend.machines["r1-m1"] = MachineStatus(drained=True)
    story.ask(commands.drain("r1-m0"))
    story.step(5)
    story.backend.lose("r0-m0")
    story.step(5, times=4)
    story.backend.repair("r0-m0")
    story.ask(commands.drain("r1-m0", back=True))
    story.backend.machines["r1-m1"] = MachineStatus()
    story.controller.store.close()
    story.open("berth")
    story.ask(commands.cancel("long"))
    story.step(30, times=3)
    for number in range(4):
        story.submit(f"part-{number}", 3, 50_000, grace="90s")
    for tier, step_s in ((0, 0.1), (1, 5.0), (2, 9.0)):
        story.ask(commands.learn("part-3", tier, step_s))
    story.step(300, times=2)
    story.ask(commands.cancel("part-0"))
    story.step(60, times=5)
    story.ask(commands.cancel("part-1"))
    story.submit("falls", 1, 50, env={"FAILS": "2"})
    story.step(10, times=6)
    story.submit("waits", 16, 3000)
    story.step(1)


def main(name: str) -> None:
    """Write one journal."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        profile = Path(folder) / "mine.yaml"
        profile.write_text("bytes: 440MB\ncompute: {V100: 120ms}\n")
        inline = {"name": "mine", "parameter_bytes": 4.4e8, "compute_s": {"V100": 0.12}}
        tell(story, str(profile) if name == "v1" else inline)
        facts = facts_of(story.controller.state)
        story.controller.store.close()
        target = HERE / f"{name}.sqlite"
        target.unlink(missing_ok=True)
        with sqlite3.connect(Path(folder) / "journal.sqlite") as db:
            db.execute("DELETE FROM facts WHERE name = 'home'")  # it is at home wherever it is opened first
            db.commit()
            kinds = dict(db.execute("SELECT kind, count(*) FROM journal GROUP BY kind"))
            db.execute("VACUUM INTO ?", (str(target),))
    (HERE / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(kinds)


if __name__ == "__main__":
    main(sys.argv[1])
