"""Start the processes of a run on this machine, monitor them, and restart them from the last checkpoint.

Servers and workers are restarted together: when one is lost, all go back to the same step. Children never outlive the
launcher.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from berth.errors import INTERRUPTED, InputError, ServerError
from berth.train.attempt import AGENT_STORE, is_store_of_agent
from berth.train.fault_points import NAME
from berth.train.heartbeat import LOG_FD
from berth.train.launch_config import LaunchConfig
from berth.train.rendezvous import LISTENER, RankInfo, torchrun_name
from berth.train.servers import Secret, ServerProcess
from berth.train.started_by import LAUNCHER, TORCHRUN
from berth.units import format_count

SERVERS = "BERTH_TRAIN_SERVERS"  # their addresses, as JSON
ATTEMPT = "BERTH_TRAIN_ATTEMPT"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
_PDEATHSIG = 1
_POLL_S = 0.05
_SETTLE_S = 0.3
_CAUSE_S = 15.0  # how long the process that others lost may take to end
_BAD_INPUT = 2
_ERROR = "error: "  # what the command prints before an error
PROGRAM = "berth.train.run_program"  # runs a Trainer
PEER_LOST = 75  # exit code of a process that lost another one


class Launcher:
    """The processes of one run."""

    def __init__(self, command: Sequence[str], config: LaunchConfig, notify: Callable[[str], None]) -> None:
        self.command, self.config, self._notify = list(command), config, notify
        checkpoints = config.options.checkpointing
        self._resumable = checkpoints is not None
        self._is_fresh = checkpoints is not None and checkpoints.fresh
        self.servers: list[ServerProcess] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.attempt = 0
        self.name = secrets.token_hex(8)
        self.interrupted = False  # by Ctrl-C
        self._stop_requested = False
        self._logs = tempfile.TemporaryDirectory(prefix="berth-train-")
        self._log_fd = os.dup(2)  # so that workers whose output goes to a file can still report stalls

    def run(self) -> int:
        """Run until the training has ended; returns its exit code."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while True:
                try:
                    self._start()
                except (
                    ServerError
                ):  # a server that got the terminal's Ctrl-C before it had a group of its own
                    if not self.interrupted:
                        raise
                    self._notify(f"stopped{resume_hint(self._resumable, self.command)}")
                    return INTERRUPTED
                code, failure = self._watch()
                if self.interrupted and (code == 0 or self._stopped_as_requested()):
                    self._notify(f"stopped{resume_hint(self._resumable, self.command)}")
                    return INTERRUPTED
                if code == 0 or not self._should_restart(code, failure):
                    return code
        finally:
            self._kill_all()
            self._logs.cleanup()
            os.close(self._log_fd)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        self.attempt += 1
        secret = Secret.random()
        self.servers = [
            ServerProcess(
                replace(self.config.server, index=index, servers=self.config.servers),
                secret,
                environment={NAME: f"server{index}/{self.attempt}"},
            )
            for index in range(self.config.servers)
        ]
        addresses = json.dumps([json.loads(server.address.to_json()) for server in self.servers])
        # The socket is passed to rank 0, so that no other process can take the port.
        listener = socket.create_server(("127.0.0.1", 0))
        rank_info = RankInfo(0, self.config.layout.world_size, "127.0.0.1", int(listener.getsockname()[1]))
        shared = {**os.environ, **_ONE_THREAD, **secret.environment()}
        if is_store_of_agent() and self._is_fresh:
            shared[TORCHRUN] = torchrun_name()
        # if torchrun started this process: rank 0 hosts the store of these workers
        shared.pop(AGENT_STORE, None)
        shared |= {SERVERS: addresses, ATTEMPT: str(self.attempt), LAUNCHER: self.name}
        self.workers = []
        with listener:
            for rank in range(self.config.layout.world_size):
                variables = {NAME: f"worker{rank}/{self.attempt}", LOG_FD: str(self._log_fd)}
                variables |= {LISTENER: str(listener.fileno())} if rank == 0 else {}
                environment = {**shared, **replace(rank_info, rank=rank).environment(), **variables}
                self.workers.append(self._worker(rank, environment, listener.fileno()))

    def _worker(self, rank: int, environment: dict[str, str], listener: int) -> subprocess.Popen[bytes]:
        """Start a worker; only rank 0 writes to the terminal, the others to a log file."""
        with ExitStack() as opened:
            log = opened.enter_context(self._log(rank).open("wb")) if rank else None
            return subprocess.Popen(
                self.command,
                env=environment,
                stdout=log,
                stderr=log and subprocess.STDOUT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has no other threads
                process_group=0,  # Ctrl-C goes to the launcher, which asks the workers to save
                pass_fds=(self._log_fd, listener) if rank == 0 else (self._log_fd,),
            )

    def _watch(self) -> tuple[int, str]:
        """Wait until the run ends; returns (exit code, what failed)."""
        stop_sent_s: float | None = None
        while True:
            if all(worker.poll() == 0 for worker in self.workers):
                return 0, ""
            if self._failed():
                self._wait_for_cause()
                return self._first_failure(self._failed())
            if self._stop_requested and stop_sent_s is None:
                stop_sent_s = time.monotonic()
                for worker in self.workers:
                    if worker.poll() is None:
                        worker.send_signal(signal.SIGTERM)
            if stop_sent_s is not None and time.monotonic() - stop_sent_s > self.config.options.grace_s:
                grace_s = self.config.options.grace_s
                return 1, f"workers saved no checkpoint within the grace period of {grace_s:g} s"
            time.sleep(_POLL_S)

    def _wait_for_cause(self) -> None:
        """Wait a little: a killed process is the cause, even if another failed first."""
        time.sleep(_SETTLE_S)
        deadline_s = time.monotonic() + _CAUSE_S
        while all(code == PEER_LOST for _, code in self._failed()) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _failed(self) -> list[tuple[str, int]]:
        ended = [(f"worker {rank}", worker.poll()) for rank, worker in enumerate(self.workers)]
        ended += [
            (f"server {i}", _server_exit_code(server.process.poll())) for i, server in enumerate(self.servers)
        ]
        return [(process, code) for process, code in ended if code not in (None, 0)]

    def _stopped_as_requested(self) -> bool:
        """Return whether processes only ended because they were asked to stop before they handled signals."""
        return all(code in (-signal.SIGTERM, PEER_LOST) for _, code in self._failed())

    @staticmethod
    def _first_failure(ended: list[tuple[str, int]]) -> tuple[int, str]:
        """Return (exit code, what failed); a killed process comes first, one that lost a peer last."""
        process, code = min(ended, key=lambda one: (one[1] >= 0, one[1] == PEER_LOST))
        return (1 if code < 0 else code), f"{process} {_exit_text(code)}"

    def _should_restart(self, code: int, failure: str) -> bool:
        last_line = self._last_log_line()
        reported = self._reported_error()
        self._kill_all()
        if self._stop_requested:
            self._notify(f"stopped: {failure}")
            return False
        if code == _BAD_INPUT:
            if not failure.startswith("worker 0"):
                self._notify(reported or last_line or failure)
            return False
        if not self._resumable:
            self._notify(f"{failure}{_in_brackets(last_line)}; can't resume without --checkpoint")
            return False
        if self.attempt > self.config.options.max_restarts:
            restarts = format_count(self.config.options.max_restarts, "restart")
            self._notify(f"{failure}{_in_brackets(last_line)}; gave up after {restarts}")
            return False
        self._notify(f"{failure}{_in_brackets(last_line)}: restarting all from the last checkpoint")
        return True

    def _kill_all(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        for server in self.servers:
            server.stop()
        self.workers, self.servers = [], []

    def _log(self, rank: int) -> Path:
        return Path(self._logs.name, f"worker-{rank}.log")

    def _last_log_line(self) -> str:
        """Return the last log line of a failed worker other than rank 0."""
        return next((text.splitlines()[-1] for text in self._failed_logs()), "")

    def _reported_error(self) -> str:
        """Return the error that a failed worker other than rank 0 reported, with its hint."""
        found = (text.rpartition(f"\n{_ERROR}") for text in map("\n".__add__, self._failed_logs()))
        return next((_ERROR + error for _, marked, error in found if marked), "")

    def _failed_logs(self) -> list[str]:
        """Return what failed workers other than rank 0 printed, if anything."""
        failed = [rank for rank, one in enumerate(self.workers) if rank and one.poll() not in (None, 0)]
        texts = [self._log(rank).read_text(errors="replace").strip() for rank in failed]
        return [text for text in texts if text]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True
        self._stop_requested = True


def server_addresses(environment: dict[str, str] | None = None) -> list[Any]:
    """Return the addresses of the servers that the launcher started."""
    from berth.train.servers import Address

    addresses = (os.environ if environment is None else environment).get(SERVERS, "[]")
    try:
        return [Address.from_json(json.dumps(one)) for one in json.loads(addresses)]
    except ValueError:
        raise InputError(f"{SERVERS} is not a list of addresses") from None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def _server_exit_code(code: int | None) -> int | None:
    """Return a server's exit code; ending before the workers is a failure."""
    return 1 if code == 0 else code


def _exit_text(code: int) -> str:
    if code == PEER_LOST:
        return "lost another process"
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def resume_hint(saved: bool, command: Sequence[str]) -> str:
    """Return how to resume after Ctrl-C: with the same command, without --fresh."""
    if not saved:
        return "; nothing is saved without --checkpoint"
    if PROGRAM in command:
        return "; to resume: call fit again"
    words = command[2:] if command[1:2] == ["-m"] else command
    return f"; to resume: {shlex.join(word for word in words if word != '--fresh')}"


def _in_brackets(last_line: str) -> str:
    return f" ({last_line})" if last_line else ""


def launch(command: Sequence[str], config: LaunchConfig, notify: Callable[[str], None]) -> int:
    """Start the servers, and `command` in every worker; returns the exit code of the run."""
    try:
        return Launcher(command, config, notify).run()
    except OSError as error:
        raise InputError(f"a process could not be started: {error.strerror}") from error
