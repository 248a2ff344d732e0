"""The client of the agent process, which talks to Ray: every request has a timeout, and a timeout ends the process.

The next request starts a new one. While it connects, requests fail at once, so the controller does not wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from berth.extras import require
from berth.live.backend import BackendError

AGENT = Path(__file__).with_name("ray_agent.py")
_CONNECT_POLL_S = 1.0  # how long a request waits for a connection that is being established


class AgentClient:
    """Runs one agent process at a time."""

    def __init__(self, address: str, log: Path, *, connect_s: float = 60.0, answer_s: float = 10.0) -> None:
        require("ray", "--backend ray")
        self._address, self._log = address, log
        self._connect_s, self._answer_s = connect_s, answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._opened = 0.0
        self._connected = False
        self._read = b""

    def ask(self, do: str, *, patient: bool = False, **facts: Any) -> Any:
        """Send a request and return its answer; with `patient`, wait until the agent is connected."""
        process = self._connection(patient=patient)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"do": do, **facts}).encode() + b"\n")
        except OSError:
            raise self._broken("the agent process has ended") from None
        return self._answer(process, self._answer_s, f"Ray at {self._address} did not answer in time")

    def _connection(self, *, patient: bool) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._open()
        process = self._process
        assert process is not None
        if not self._connected:
            left = max(0.0, self._opened + self._connect_s - time.monotonic())
            if not patient and left > _CONNECT_POLL_S and not self._readable(process, _CONNECT_POLL_S):
                raise BackendError(f"connecting to Ray at {self._address}")
            self._answer(process, left, f"Ray at {self._address} can't be reached")
            self._connected = True
        return process

    def _open(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # -P: `import ray` must not find ray.py here
                [sys.executable, "-P", str(AGENT), self._address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            )
        self._opened, self._connected, self._read = time.monotonic(), False, b""

    def _answer(self, process: subprocess.Popen[bytes], within_s: float, late: str) -> Any:
        assert process.stdout is not None
        until = time.monotonic() + within_s
        while b"\n" not in self._read:
            if not self._readable(process, max(0.0, until - time.monotonic())):
                raise self._broken(late)
            got = os.read(process.stdout.fileno(), 1 << 20)
            if not got:
                raise self._broken("the agent process has ended")
            self._read += got
        line, _, self._read = self._read.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            raise self._broken(f"Ray at {self._address}: {reply['error']}")
        return reply["answer"]

    @staticmethod
    def _readable(process: subprocess.Popen[bytes], within_s: float) -> bool:
        poll = select.poll()
        assert process.stdout is not None
        poll.register(process.stdout, select.POLLIN)
        return bool(poll.poll(int(within_s * 1000)))

    def _broken(self, why: str) -> BackendError:
        self.close()
        return BackendError(f"{why} (see {self._log})")

    def close(self) -> None:
        """End the agent process; what it started in Ray continues."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
