"""A real Slurm for these tests, started once, and a controller that they crank by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import small_slurm

from berth.cluster.load import load_cluster
from berth.live import commands
from berth.live.backends.slurm import SlurmBackend
from berth.live.controller import Controller
from berth.live.setup import Setup
from berth.live.spec import JobSpec
from berth.live.store import Store


@pytest.fixture(scope="session")
def slurm_daemons():
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in small_slurm.NEEDED if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
    slurm = small_slurm.SmallSlurm()
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(slurm.conf)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before)


@pytest.fixture
def slurm(slurm_daemons):
    """All nodes idle, before and after."""
    yield slurm_daemons
    slurm_daemons.tidy()


class Desk:
    """A controller over Slurm, stepped by a thread."""

    def __init__(self, folder: Path, cluster=None, policy: str = "fifo") -> None:
        self.folder, self.policy, self.described = folder, policy, cluster
        self.open()

    def open(self) -> None:
        """A controller on the store, the first one or the next."""
        self.store = Store(self.folder)
        self.backend = SlurmBackend(self.folder / "attempts", self.described, timeouts=small_slurm.TIMEOUTS)
        setup = Setup(self.backend.cluster(), policy=self.policy, store=self.store.name)
        self.controller = Controller(self.store, self.backend, setup)

    def submit(self, run: str, **facts) -> str:
        facts = {"grace": "1s", "per": "machine"} | facts
        answer = self.controller.ask(commands.submit(JobSpec(run=run, **facts), "ada"))
        self.controller.step()
        return answer.result(0)["job"]

    def ask(self, command):
        answer = self.controller.ask(command)
        self.controller.step()
        return answer.result(0)

    def until(self, condition, what: str, timeout_s: float = small_slurm.TIMEOUT_S) -> None:
        def cranked() -> bool:
            self.controller.step()
            return bool(condition())

        small_slurm.until(cranked, what, self.shown, timeout_s)

    def shown(self) -> str:
        state, seen = self.controller.state, self.controller.observer.observation
        return f"{list(state.attempts.values())} {seen.attempts if seen else None} {self.controller.observer.error}"

    def running(self, job: str) -> bool:
        active = self.controller.state.jobs.get(job)
        attempt = self.controller.state.attempts.get(active.token) if active and active.token else None
        return attempt is not None and attempt.state == "running"

    def until_running(self, job: str) -> None:
        self.until(lambda: self.running(job), f"{job} runs")

    def over(self, job: str) -> dict | None:
        return self.store.ended_job(job)

    def until_over(self, *jobs: str) -> None:
        self.until(lambda: all(self.over(job) for job in jobs), f"{jobs} are over")

    def machines(self, job: str) -> list[str]:
        """Where it is placed now."""
        state = self.controller.state
        attempt = state.attempts[state.jobs[job].token]
        return [state.cluster.machines[index].name for index in attempt.machines]


@pytest.fixture
def desk(slurm, tmp_path):
    """Opens controllers; the last of them is closed in the end."""
    desks: list[Desk] = []

    def opened(**facts) -> Desk:
        desks.append(Desk(tmp_path / f"store{len(desks)}", **facts))
        return desks[-1]

    yield opened
    for one in desks:
        one.controller.close()


CONTROLLER = """
import sys
from pathlib import Path
from threading import Event
from berth.live import commands
from berth.live.backends.slurm import SlurmBackend
from berth.live.backends.slurm_attempt import Timeouts
from berth.live.controller import Controller
from berth.live.setup import Setup
from berth.live.spec import JobSpec
from berth.live.store import Store

store = Store(Path(sys.argv[1]))
timeouts = Timeouts(margin_s=5.0, start_s=120.0, settle_s=1.0)
backend = SlurmBackend(store.folder / "attempts", timeouts=timeouts)
controller = Controller(store, backend, Setup(backend.cluster(), policy="fifo", store=store.name))
for text in sys.argv[2:]:
    controller.ask(commands.submit(JobSpec.model_validate_json(text), "ada"))
controller.run(Event())
"""


@pytest.fixture
def apart(slurm):
    """Starts controllers in processes of their own, with these jobs; all are killed in the end."""
    started: list[subprocess.Popen] = []

    def start(store: Path, *specs: str) -> subprocess.Popen:
        started.append(subprocess.Popen([sys.executable, "-c", CONTROLLER, str(store), *specs]))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture(scope="session")
def small():
    """The module that makes the Slurm of these tests."""
    return small_slurm


@pytest.fixture
def two_machines(tmp_path):
    """Two nodes of eight, described by hand."""
    file = tmp_path / "two.yaml"
    file.write_text("machines: [{name: n00, devices: {A100: 8}}, {name: n01, devices: {A100: 8}}]")
    return load_cluster(str(file))
