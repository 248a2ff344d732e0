"""This machine as a small cluster: every attempt is a supervisor process with the gang's processes as children.

The state is in the attempts' folders and the locks in them, so a controller that restarts finds all attempts again.
Supervisors run in sessions of their own and outlive the controller.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from berth.cluster.model import Cluster
from berth.live.backend import (
    AttemptStatus,
    BackendError,
    Launch,
    MachineStatus,
    Observation,
    Order,
    Pace,
    Stop,
)
from berth.live.folder import SUPERVISE, Folder, tokens_in


class LocalBackend:
    """Runs gangs as processes of this machine."""

    name = "local"
    pace = Pace()

    def __init__(self, root: Path, cluster: Cluster, wake: Callable[[], None] | None = None) -> None:
        self._root, self._cluster = root, cluster
        self._wake = wake or (lambda: None)
        self._lock = threading.Lock()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._watched: dict[int, str] = {}  # pidfds of supervisors
        self._poll = select.poll()
        self._pipe = os.pipe()
        self._poll.register(self._pipe[0], select.POLLIN)
        self._thread: threading.Thread | None = None

    def cluster(self) -> Cluster:
        """Return the cluster that this machine represents."""
        return self._cluster

    def observe(self) -> Observation:
        """Return all attempts that have a folder."""
        attempts: dict[str, AttemptStatus] = {}
        try:
            for token in tokens_in(self._root):
                if (seen := self._look(Folder(self._root, token))) is not None:
                    attempts[token] = seen
        except OSError as error:
            raise BackendError(f"{self._root}: {error}") from None
        return Observation(attempts, {machine.name: MachineStatus() for machine in self._cluster.machines})

    def _look(self, folder: Folder) -> AttemptStatus | None:
        seen = folder.seen()
        if seen is None or seen.state == "ended":
            return seen
        if not folder.held():
            again = folder.seen()  # it may have ended since the first read
            if again is None or again.state == "ended":
                return again
            self._supervise(folder)  # it was never started, or its supervisor was killed
        return seen

    def apply(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Start supervisors, or ask them to stop."""
        done: list[Order] = []
        for order in orders:
            with contextlib.suppress(OSError):
                self._do(order, Folder(self._root, order.token))
                done.append(order)
        return done

    def _do(self, order: Order, folder: Folder) -> None:
        if isinstance(order, Launch):
            if folder.prepare(order):
                self._supervise(folder)
        elif isinstance(order, Stop):
            folder.stop()
            ready = folder.report(0, "ready")
            if ready is not None and folder.held():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(ready["pid"]), signal.SIGTERM)
        else:
            folder.archive()

    def _supervise(self, folder: Folder) -> None:
        """Start a supervisor in its own session; a superfluous one exits by itself."""
        with self._lock:
            known = self._children.get(folder.token)
            if known is not None and known.poll() is None:
                return
            with (folder.path / "supervisor.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(SUPERVISE), str(folder.path)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                    cwd="/",
                )
            self._children[folder.token] = process
            self._watch(process.pid, folder.token)

    def _watch(self, pid: int, token: str) -> None:
        """Wake the controller when a supervisor exits."""
        with contextlib.suppress(OSError):
            number = os.pidfd_open(pid)
            self._watched[number] = token
            self._poll.register(number, select.POLLIN)
            os.write(self._pipe[1], b".")
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="local-watch", daemon=True)
            self._thread.start()

    def _wait(self) -> None:
        while True:
            for number, _ in self._poll.poll():
                if number == self._pipe[0]:
                    if b"q" in os.read(number, 4096):
                        return
                    continue
                with self._lock:
                    self._poll.unregister(number)
                    os.close(number)
                    child = self._children.pop(self._watched.pop(number), None)
                if child is not None:
                    child.wait()
                self._wake()

    def devices_of(self, token: str) -> Mapping[str, Sequence[int]] | None:
        """Return the devices that an attempt was launched on, by machine, as its folder has them."""
        return Folder(self._root, token).devices()

    def close(self) -> None:
        """Stop watching the supervisors; they continue."""
        os.write(self._pipe[1], b"q")
        if self._thread is not None:
            self._thread.join()
        for number in (*self._pipe, *self._watched):
            os.close(number)
        for child in self._children.values():
            child.returncode = 0  # detach: it keeps running, and Popen must not warn about it
