"""This machine as a small cluster: every attempt is a supervisor process with the gang's processes below it.

Nothing is remembered here: folders and the locks in them tell what runs, so a controller that starts again finds
everything as it is. Supervisors are sessions of their own and outlive the controller.
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
    Forget,
    Launch,
    MachineStatus,
    Observation,
    Order,
    Pace,
    Stop,
)
from berth.live.folder import SUPERVISE, Folder, tokens_in


class LocalBackend:
    """Processes of this machine, under a folder."""

    name = "local"
    pace = Pace()

    def __init__(self, root: Path, cluster: Cluster, called: Callable[[], None] | None = None) -> None:
        self._root, self._cluster = root, cluster
        self._called = called or (lambda: None)
        self._lock = threading.Lock()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._watched: dict[int, str] = {}  # pidfds of supervisors
        self._poll = select.poll()
        self._bell = os.pipe()
        self._poll.register(self._bell[0], select.POLLIN)
        self._thread: threading.Thread | None = None

    def cluster(self) -> Cluster:
        """What this machine pretends to be."""
        return self._cluster

    def observe(self) -> Observation:
        """Every attempt whose folder is here."""
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
            again = folder.seen()  # it may have ended between the two looks
            if again is None or again.state == "ended":
                return again
            self._supervise(folder)  # nobody has it: it was never started, or its supervisor was killed
        return seen

    def apply(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Starts supervisors, and tells them to stop."""
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
        elif isinstance(order, Forget):
            folder.archive()

    def _supervise(self, folder: Folder) -> None:
        """A supervisor in a session of its own; one that is not needed ends by itself."""
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
        """Has the controller called when a supervisor ends."""
        with contextlib.suppress(OSError):
            number = os.pidfd_open(pid)
            self._watched[number] = token
            self._poll.register(number, select.POLLIN)
            os.write(self._bell[1], b".")
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="local-watch", daemon=True)
            self._thread.start()

    def _wait(self) -> None:
        while True:
            for number, _ in self._poll.poll():
                if number == self._bell[0]:
                    if b"q" in os.read(number, 4096):
                        return
                    continue
                with self._lock:
                    self._poll.unregister(number)
                    os.close(number)
                    child = self._children.pop(self._watched.pop(number), None)
                if child is not None:
                    child.wait()
                self._called()

    def devices_of(self, token: str) -> Mapping[str, Sequence[int]] | None:
        """Return the devices that an attempt was launched on, by machine, as its folder has them."""
        return Folder(self._root, token).devices()

    def close(self) -> None:
        """Lets go of the supervisors; they go on."""
        os.write(self._bell[1], b"q")
        if self._thread is not None:
            self._thread.join()
        for number in (*self._bell, *self._watched):
            os.close(number)
        for child in self._children.values():
            child.returncode = 0  # it is not ours any more, and nobody waits for it
