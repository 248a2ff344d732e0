"""Runs of several worker processes and a server in forks of this process; every trained example is logged."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

from berth.train.data import Batch, ClickStream
from berth.train.evaluate import HeldOut
from berth.train.launch import SERVERS
from berth.train.launch_config import resolve
from berth.train.options import TrainOptions
from berth.train.recipes import Recipe
from berth.train.rendezvous import LISTENER, RankInfo
from berth.train.servers import Secret, Server
from berth.train.servers.shard import load_kernels
from berth.train.worker import worker_session

PATIENCE_S = 120.0


class Numbered(ClickStream):
    """Clicks that carry their numbers."""

    def batches(self, batch, step, share, seed):
        for drawn in super().batches(batch, step, share, seed):
            first = step * batch + share.worker
            numbers = torch.arange(first, first + drawn.examples * share.workers, share.workers)
            yield Batch({**drawn.inputs, "number": numbers}, drawn.labels, drawn.examples, drawn.whole)
            step += 1


class Logging(torch.nn.Module):
    """A model that logs the numbers of the examples that it is trained on, and can be held before a step."""

    def __init__(
        self, model: torch.nn.Module, log: Path, hold=lambda steps: False, sees_numbers: bool = False
    ) -> None:
        super().__init__()
        self.model, self.log, self.hold, self.steps = model, log, hold, 0
        self.sees_numbers = sees_numbers

    def forward(self, inputs):
        if not self.training:
            return self.model(inputs)
        seen = {name: value for name, value in inputs.items() if self.sees_numbers or name != "number"}
        output = self.model(seen)

        def trained(gradient):
            while self.hold(self.steps):
                self.log.with_suffix(".held").touch()
                time.sleep(0.005)
            self.steps += 1
            with self.log.open("a") as log:
                log.write(" ".join(map(str, inputs["number"].tolist())) + "\n")

        output.register_hook(trained)
        return output


class Run:
    """Two workers and one server, as processes."""

    def __init__(
        self,
        folder: Path,
        model,
        *,
        steps: int,
        batch: int = 32,
        hold=lambda steps: False,
        sees_numbers: bool = False,
        held_out: int = 0,
        **options,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._sees_numbers, self._held_out = sees_numbers, held_out
        self.folder, self.steps = folder, steps
        self._model = model
        self._hold = hold  # whether a worker waits after this many steps, until `release`
        self.options = TrainOptions(batch=batch, workers=2, servers=1, **options)
        self.pids: list[int] = []
        self.server_pid = 0

    def __enter__(self) -> Run:
        load_kernels()
        recipe = self._recipe(0)
        config = resolve(recipe, self.options, None, print)
        secret = Secret.random()
        server = Server(secret, config.server)
        self.server_pid = _fork(server.run)
        os.environ |= {SERVERS: json.dumps([json.loads(server.address.to_json())]), **secret.environment()}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            os.set_inheritable(listener.fileno(), True)
            port = int(listener.getsockname()[1])
            for rank in range(2):
                self.pids.append(_fork(lambda rank=rank: self._work(rank, port, listener.fileno())))
        server.close()
        for name in (SERVERS, *secret.environment()):
            del os.environ[name]
        return self

    def __exit__(self, *error: object) -> None:
        for pid in (*self.pids, self.server_pid):
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _recipe(self, rank: int) -> Recipe:
        released = self.folder / "released"
        model = Logging(
            self._model(),
            self.folder / f"trained-{rank}",
            lambda steps: self._hold(steps) and not released.exists(),
            self._sees_numbers,
        )
        return Recipe("small", model, Numbered(1), self.options.batch)

    def _work(self, rank: int, port: int, listener: int) -> None:
        if rank == 0:
            os.environ[LISTENER] = str(listener)
        recipe = self._recipe(rank)
        rank_info = RankInfo(rank, 2, "127.0.0.1", port)
        session = worker_session(recipe, resolve(recipe, self.options, rank_info, print), rank_info)
        result = session.run(self.steps, report=(lambda session: None) if rank == 0 else None)
        figures = {
            "step": result.step, "examples": result.examples, "auc": result.auc, "loss": result.loss,
            "preempted": result.preempted, "own": session.learner.examples_done,
        }  # fmt: skip
        if rank == 0 and self._held_out:
            figures["held_out"] = session.evaluate(HeldOut(ClickStream(1), self._held_out)).auc
        (self.folder / f"result-{rank}").write_text(json.dumps(figures))
        session.close()

    def release(self) -> None:
        """Let held workers go on."""
        (self.folder / "released").touch()

    def is_held(self, rank: int) -> bool:
        """Whether a worker has come to where it is held."""
        return (self.folder / f"trained-{rank}.held").exists()

    def trained(self, rank: int) -> list[list[int]]:
        """The examples of every step of a worker."""
        path = self.folder / f"trained-{rank}"
        return [
            list(map(int, line.split()))
            for line in path.read_text().splitlines(keepends=True)
            if line[-1] == "\n"
        ]

    def steps_of(self, rank: int) -> int:
        """Steps of a worker whose gradients were computed."""
        return len(self.trained(rank)) if (self.folder / f"trained-{rank}").exists() else 0

    def wait_for(self, condition, what: str) -> None:
        """Wait for a lasting condition."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"timed out: {what}"
            time.sleep(0.01)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal; a stopped process has stopped when this returns."""
        os.kill(self.pids[rank], number)
        if number == signal.SIGSTOP:
            os.waitpid(self.pids[rank], os.WUNTRACED)

    def finish(self) -> list[dict]:
        """Wait for both workers to end well; returns their results."""
        for rank, pid in enumerate(self.pids):
            self.wait_for(
                lambda pid=pid: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), "the end"
            )
            self.pids[rank] = 0
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, f"rank {rank} failed"
        return [json.loads((self.folder / f"result-{rank}").read_text()) for rank in range(2)]

    def counts(self) -> Counter:
        """How often each example was trained."""
        return Counter(number for rank in range(2) for step in self.trained(rank) for number in step)


def _fork(work) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - shown, and reported by the exit code
        traceback.print_exc()
    finally:
        os._exit(code)
