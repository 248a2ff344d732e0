"""Starts the processes of a training on this machine, watches them, and starts them again from the last checkpoint.

Servers and workers live and die together: whoever is lost, all go back to one step. Children never outlive the
launcher, however it ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from berth.errors import BerthError, InputError
from berth.train.faults import NAME
from berth.train.rendezvous import LISTENER, Seat
from berth.train.servers import Secret, ServerProcess, Settings
from berth.train.watch import VOICE

SERVERS = "BERTH_TRAIN_SERVERS"  # where they are, as JSON
_ATTEMPT = "BERTH_TRAIN_ATTEMPT"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
_PDEATHSIG = 1
_LOOK_S = 0.05
_AFTERMATH_S = 0.3
_BAD_INPUT = 2
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
LOST_ANOTHER = 75  # exit code of a process that can't go on without one that is gone


@dataclass(frozen=True, slots=True)
class Lineup:
    """How many processes of which kind."""

    workers: int  # lanes x stages
    servers: int
    settings: Settings = field(default_factory=Settings)
    restarts: int = 20
    grace_s: float = 60.0
    resumes: bool = False  # there are checkpoints to go on from


class Launcher:
    """The processes of one training; `run` returns its exit code."""

    def __init__(self, command: Sequence[str], lineup: Lineup, say: Callable[[str], None]) -> None:
        self.command, self.lineup, self._say = list(command), lineup, say
        self.servers: list[ServerProcess] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.attempt = 0
        self.interrupted = False  # by Ctrl-C
        self._asked_to_stop = False
        self._logs = tempfile.TemporaryDirectory(prefix="berth-train-")
        self._voice = os.dup(2)  # workers whose output is kept can still say whom they wait for

    def run(self) -> int:
        """Until the training is over: its exit code."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while True:
                self._start()
                code, who = self._watch()
                if self.interrupted and (code == 0 or self._ended_as_asked()):
                    self._say(f"stopped{how_to_go_on(self.lineup.resumes)}")
                    return INTERRUPTED
                if code == 0 or not self._try_again(code, who):
                    return code
        finally:
            self._end_all()
            self._logs.cleanup()
            os.close(self._voice)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        self.attempt += 1
        secret = Secret.random()
        self.servers = [
            ServerProcess(
                replace(self.lineup.settings, index=index, servers=self.lineup.servers),
                secret,
                environment={NAME: f"server{index}/{self.attempt}"},
            )
            for index in range(self.lineup.servers)
        ]
        addresses = json.dumps([json.loads(server.address.to_json()) for server in self.servers])
        listener = socket.create_server(
            ("127.0.0.1", 0)
        )  # handed to rank 0: no other process can take the port
        seat = Seat(0, self.lineup.workers, "127.0.0.1", int(listener.getsockname()[1]))
        shared = {**os.environ, **_ONE_THREAD, **secret.environment()}
        shared |= {SERVERS: addresses, _ATTEMPT: str(self.attempt)}
        self.workers = []
        with listener:
            for rank in range(self.lineup.workers):
                own = {NAME: f"worker{rank}/{self.attempt}", VOICE: str(self._voice)}
                own |= {LISTENER: str(listener.fileno())} if rank == 0 else {}
                told = {**shared, **replace(seat, rank=rank).environment(), **own}
                self.workers.append(self._worker(rank, told, listener.fileno()))

    def _worker(self, rank: int, environment: dict[str, str], listener: int) -> subprocess.Popen[bytes]:
        """The first speaks for all; what others say is kept until it is needed."""
        with ExitStack() as opened:
            log = opened.enter_context(self._log(rank).open("wb")) if rank else None
            return subprocess.Popen(
                self.command,
                env=environment,
                stdout=log,
                stderr=log and subprocess.STDOUT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has no other threads
                process_group=0,  # a terminal's Ctrl-C is for the launcher, who asks the workers to save
                pass_fds=(self._voice, listener) if rank == 0 else (self._voice,),
            )

    def _watch(self) -> tuple[int, str]:
        """(exit code, who ended first if not well); 0 when every worker has ended well."""
        asked_at: float | None = None
        while True:
            if all(worker.poll() == 0 for worker in self.workers):
                return 0, ""
            if self._ended_badly():
                time.sleep(_AFTERMATH_S)  # who was killed is the cause, whoever noticed it first
                return self._blame(self._ended_badly())
            if self._asked_to_stop and asked_at is None:
                asked_at = time.monotonic()
                for worker in self.workers:
                    if worker.poll() is None:
                        worker.send_signal(signal.SIGTERM)
            if asked_at is not None and time.monotonic() - asked_at > self.lineup.grace_s:
                return 1, f"no checkpoint within the {self.lineup.grace_s:g} s of grace: workers"
            time.sleep(_LOOK_S)

    def _ended_badly(self) -> list[tuple[str, int]]:
        ended = [(f"worker {rank}", worker.poll()) for rank, worker in enumerate(self.workers)]
        ended += [(f"server {i}", _died(server.process.poll())) for i, server in enumerate(self.servers)]
        return [(who, code) for who, code in ended if code not in (None, 0)]

    def _ended_as_asked(self) -> bool:
        """Whether nothing was wrong but that they were asked to stop before they could listen."""
        return all(code in (-signal.SIGTERM, LOST_ANOTHER) for _, code in self._ended_badly())

    @staticmethod
    def _blame(ended: list[tuple[str, int]]) -> tuple[int, str]:
        """(exit code, who): a process that was killed before one that failed, and that before who lost another."""
        who, code = min(ended, key=lambda one: (one[1] >= 0, one[1] == LOST_ANOTHER))
        return (1 if code < 0 else code), f"{who} {_how(code)}"

    def _try_again(self, code: int, who: str) -> bool:
        told = self._last_words()
        self._end_all()
        if self._asked_to_stop:
            self._say(f"stopped: {who}")
            return False
        if code == _BAD_INPUT:
            if told and not who.startswith("worker 0"):
                self._say(told)
            return False
        if not self.lineup.resumes:
            self._say(f"{who}{_because(told)}; without --checkpoint there is nothing to go on from")
            return False
        if self.attempt > self.lineup.restarts:
            self._say(f"{who}{_because(told)}; {self.lineup.restarts} restarts were not enough")
            return False
        self._say(f"{who}{_because(told)}: all go on from the last checkpoint")
        return True

    def _end_all(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        for server in self.servers:
            server.stop()
        self.workers, self.servers = [], []

    def _log(self, rank: int) -> Path:
        return Path(self._logs.name, f"worker-{rank}.log")

    def _last_words(self) -> str:
        """The last line that a worker other than the first left before it ended badly."""
        for rank, worker in enumerate(self.workers):
            if rank > 0 and worker.poll() not in (None, 0):
                lines = self._log(rank).read_text(errors="replace").strip().splitlines()
                if lines:
                    return lines[-1]
        return ""

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True
        self._asked_to_stop = True


def addresses_from(environment: dict[str, str] | None = None) -> list[Any]:
    """The servers that the launcher started, for its workers."""
    from berth.train.servers import Address

    told = (os.environ if environment is None else environment).get(SERVERS, "[]")
    try:
        return [Address.from_json(json.dumps(one)) for one in json.loads(told)]
    except ValueError:
        raise InputError(f"{SERVERS} is no list of addresses") from None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def _died(code: int | None) -> int | None:
    """A server has no reason to end before the workers."""
    return 1 if code == 0 else code


def _how(code: int) -> str:
    if code == LOST_ANOTHER:
        return "lost another process"
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def how_to_go_on(saved: bool) -> str:
    """After Ctrl-C: the same command goes on from what it saved."""
    if not saved:
        return "; without --checkpoint nothing is saved"
    words = [word for word in sys.argv[1:] if word != "--fresh"]
    return f"; to go on: {shlex.join(['berth', *words])}"


def _because(told: str) -> str:
    return f" ({told})" if told else ""


def launch(arguments: Sequence[str], lineup: Lineup, say: Callable[[str], None]) -> int:
    """Runs `berth train` with these arguments in every worker."""
    command = [sys.executable, "-m", "berth", "train", *arguments]
    try:
        return Launcher(command, lineup, say).run()
    except BerthError:
        raise
    except OSError as error:
        raise InputError(f"a process could not be started: {error.strerror}") from error
