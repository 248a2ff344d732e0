"""A controller on an engine in memory, cranked by hand."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn

from berth.clock import MachineClock, ManualClock
from berth.cluster.load import load_cluster
from berth.live import commands
from berth.live.api.app import make_app
from berth.live.api.connections import Connection, listen_unix
from berth.live.api.service import Service
from berth.live.api.tokens import Tokens
from berth.live.controller import Controller
from berth.live.home import Endpoint
from berth.live.server import listen, url_of
from berth.live.setup import Setup
from berth.live.spec import JobSpec
from berth.live.store import Store
from berth.testing.live_audit import audit
from berth.testing.memory import MemoryBackend


class Crank:
    """A live cluster whose clock does not advance by itself."""

    def __init__(
        self,
        folder: Path,
        cluster: str = "2x2x4:V100-16",
        policy: str = "fifo",
        backend: Any = MemoryBackend,
    ) -> None:
        self.folder, self.policy = folder, policy
        self.cluster = load_cluster(cluster)
        self.clock = ManualClock()
        self.backend = backend(self.cluster, self.clock)
        self.controller = self.open()

    def open(self) -> Controller:
        store = Store(self.folder)
        setup = Setup(self.cluster, policy=self.policy, store=store.name)
        return Controller(store, self.backend, setup, self.clock)

    def restart(self, *, cluster: str | None = None, policy: str | None = None) -> None:
        """As after kill -9: nothing is closed in order, only the lock is gone."""
        self.controller.store.close()
        self.cluster = load_cluster(cluster) if cluster else self.cluster
        self.policy = policy or self.policy
        self.controller = self.open()

    def submit(self, gpus: int = 1, seconds: float = 60, job: str | None = None, **spec: Any) -> str:
        env = {"SECONDS": str(seconds)} | spec.pop("env", {})
        facts = {"run": "work", "gpus": gpus, "duration": f"{seconds}s", "env": env} | spec
        answer = self.controller.ask(commands.submit(JobSpec(**facts), "me", job))
        self.step()
        return str(answer.result(0)["job"])

    def ask(self, command: commands.Command) -> dict[str, Any]:
        answer = self.controller.ask(command)
        self.step()
        return answer.result(0)

    def step(self, seconds: float = 0.0, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(seconds)
            self.controller.step()
            assert not audit(self.controller.state)

    def state_of(self, job: str) -> str:
        found = self.state.jobs.get(job)
        return found.state if found is not None else self.controller.store.ended_job(job)["state"]

    @property
    def state(self):
        return self.controller.state


MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path):
    """In memory, where the system has files there: a controller writes through to the disk at every turn."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="berth-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def crank(tmp_path):
    made: list[Crank] = []

    def make(**options: Any) -> Crank:
        made.append(Crank(tmp_path / f"state-{len(made)}", **options))
        return made[-1]

    yield make
    for one in made:
        one.controller.close()


class Served(NamedTuple):
    """A controller that answers over TCP and over the Unix socket of its state folder."""

    tcp: Endpoint  # with the token of an admin
    unix: Endpoint


@pytest.fixture
def served(tmp_path):
    """A real server over a controller whose jobs end at once."""
    cluster, store = load_cluster("2x2x4:V100-16"), Store(tmp_path / "state")
    backend = MemoryBackend(cluster, MachineClock(), startup_s=0.0)
    controller = Controller(store, backend, Setup(cluster, "fifo", store=store.name))
    tokens, over = Tokens(store.folder), threading.Event()
    sockets = [listen("127.0.0.1", 0), listen_unix(store.folder)]
    app = make_app(Service(controller, tokens, tmp_path / "attempts"))
    web = uvicorn.Server(uvicorn.Config(app, http=Connection, log_level="error", access_log=False))
    threads = [
        threading.Thread(target=controller.run, args=(over,)),
        threading.Thread(target=web.run, kwargs={"sockets": sockets}),
    ]
    url = url_of(sockets[0])
    for thread in threads:
        thread.start()
    yield Served(Endpoint(url, tokens.add("root", "admin")), Endpoint(url, folder=store.folder))
    web.should_exit = True
    over.set()
    controller.wakeup.set()
    for thread in threads:
        thread.join()
    controller.close()
