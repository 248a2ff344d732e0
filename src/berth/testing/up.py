"""A real `berth up` in a process of its own: what tests on real engines start, ask and kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import berth
from berth.errors import InputError
from berth.live.client import Client
from berth.live.home import find_endpoint

T = TypeVar("T")
SOURCE = str(Path(berth.__file__).parents[1])


def until(
    condition: Callable[[], T], timeout_s: float = 300.0, about: Callable[[], object] = lambda: ""
) -> T:
    """Waits for something real, asking less often with time; the bound is only there so that a broken test ends.

    `about`: what to say then.
    """
    end = time.monotonic() + timeout_s
    pause_s = 0.03
    while not (found := condition()):
        assert time.monotonic() < end, f"it never happened {about()}"
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, 0.3)
    return found


class Up:
    """A controller on this machine."""

    def __init__(self, state: Path, *options: str) -> None:
        self.state, self.options = state, options
        self.program = [sys.executable, "-m", "berth"]  # of commands, not of the controller
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The controller's."""
        assert self._process is not None
        return self._process

    def start(self) -> Self:
        """Starts it, and waits until it answers."""
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "endpoint.json").unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "berth",
            "up",
            "--state",
            str(self.state),
            "--port",
            "0",
            *self.options,
        ]
        with (self.state / "up.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log)
        until(lambda: self.process.poll() is not None or (self.state / "endpoint.json").exists(), 300)
        assert self.process.poll() is None, (self.state / "up.log").read_text()
        until(self._answers)
        return self

    def _environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": SOURCE, "BERTH_STATE": str(self.state)}

    def _answers(self) -> bool:
        try:
            return bool(self.client.get("status"))
        except InputError:
            return False

    @property
    def client(self) -> Client:
        """Asks it, as an admin."""
        return Client(find_endpoint(str(self.state), None))

    def state_name(self) -> str:
        """The name of its store."""
        work = self.state.with_name(f"{self.state.name}-work")
        return next(path.name for path in work.iterdir())

    def kill(self) -> None:
        """As the machine would: without a word."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """In order; what runs goes on."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def submit(self, run: Any, *, job: str | None = None, **spec: Any) -> str:
        """A job; returns its id."""
        body = {"spec": {"run": run, **spec}} | ({"id": job} if job else {})
        return str(self.client.post("jobs", body=body)["job"])

    def state_of(self, job: str) -> str:
        """Return the state of a job."""
        return str(self.client.get("jobs", job)["state"])

    def berth(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command, as a user would type it."""
        done = subprocess.run(
            [*self.program, *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def json(self, *arguments: str) -> Any:
        """The same with `--json`, before any command that follows two dashes."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        return json.loads(self.berth(*arguments[:at], "--json", *arguments[at:]).stdout)

    def clear(self) -> None:
        """Cancels everything, waits until it is gone, and ends the controller."""
        for row in self.client.get("jobs")["jobs"]:
            with contextlib.suppress(InputError):  # it has ended by itself meanwhile
                self.client.post("jobs", row["id"], "cancel")
        until(lambda: not self.client.get("jobs")["jobs"])
        self.stop()
