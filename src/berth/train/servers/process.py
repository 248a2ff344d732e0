"""A server as a process of its own: how it is started, how it says that it is ready, and when it ends.

It ends on SIGTERM and SIGINT, and when its standard input closes: whoever started it holds the other end, so
a server never outlives its launcher, however that died.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import IO

from berth.errors import BerthError, ServerError
from berth.train.servers.address import Address
from berth.train.servers.order import MODES
from berth.train.servers.secret import VARIABLE, Secret, server_tls
from berth.train.servers.server import Server, Settings, to_stderr
from berth.train.servers.shard import load_kernels

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
_READY_S = 60.0  # kernels may have to be compiled


def main() -> None:
    """Serve until told to stop."""
    options = _parser().parse_args()
    try:
        secret = Secret.find(options.secret_file)
        os.environ.pop(VARIABLE, None)  # not for anything this process might start
        tls = server_tls(options.tls_certificate, options.tls_key) if options.tls_certificate else None
        names = {field.name for field in fields(Settings)}
        settings = Settings(**{name: value for name, value in vars(options).items() if name in names})
        server = Server(secret, settings, tls=tls, say=to_stderr if options.verbose else lambda line: None)
    except BerthError as error:
        sys.exit(f"berth server: {error}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    if not options.forever:
        server.watch(sys.stdin)
    _say_ready(server.address, options.ready)
    load_kernels()  # workers are still on their way
    server.run()


class ServerProcess:
    """A server that this process has started; it ends when this process does."""

    def __init__(
        self, settings: Settings, secret: Secret, *, environment: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "berth.train.servers", *_arguments(settings)]
        self.settings = settings
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD, **(environment or {}), **secret.environment()},
            text=True,
            process_group=0,  # a terminal's Ctrl-C is for who started it: rows are needed until they are saved
        )
        self._address: Address | None = None

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    @property
    def address(self) -> Address:
        """Where it listens; waits until it does."""
        if self._address is None:
            self._address = Address.from_json(_first_line(self.process, _READY_S))
        return self._address

    def stop(self, patience_s: float = 10.0) -> int:
        """Let go of it, and see that it ends, more firmly each time; its exit code."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        for harder in (self.process.terminate, self.process.kill):
            try:
                return self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                harder()
        return self.process.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m berth.train.servers", description=__doc__)
    parser.add_argument("--index", type=int, default=0, help="which of the servers this is")
    parser.add_argument("--of", dest="servers", type=int, default=1, help="how many there are")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--mode", choices=MODES, default="sync")
    parser.add_argument("--staleness", type=int, default=0, help="half-async: steps one may be ahead")
    parser.add_argument("--memory", dest="memory_bytes", type=int, help="bytes; further rows go to --folder")
    parser.add_argument("--folder", type=Path, help="for rows that do not fit")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; this machine alone by default")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--patience", dest="patience_s", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--ready", type=Path, help="write the address to this file instead of printing it")
    parser.add_argument("--secret-file", type=Path, help=f"instead of the variable {VARIABLE}")
    parser.add_argument("--tls-certificate", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--forever", action="store_true", help="go on when standard input closes")
    parser.add_argument("--verbose", action="store_true", help="say who joins and leaves")
    return parser


def _arguments(settings: Settings) -> list[str]:
    given = {
        "--index": settings.index,
        "--of": settings.servers,
        "--workers": settings.workers,
        "--mode": settings.mode,
        "--staleness": settings.staleness,
        "--memory": settings.memory_bytes,
        "--folder": settings.folder,
        "--host": settings.host,
        "--port": settings.port,
        "--patience": settings.patience_s,
    }
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def _say_ready(address: Address, path: Path | None) -> None:
    if path is None:
        print(address.to_json(), flush=True)
        return
    beside = path.with_name(path.name + ".new")
    beside.write_text(address.to_json() + "\n")
    beside.rename(path)


def _first_line(process: subprocess.Popen[str], patience_s: float) -> str:
    stream: IO[str] | None = process.stdout
    deadline = time.monotonic() + patience_s
    if stream is None or not select.select([stream], [], [], deadline - time.monotonic())[0]:
        raise ServerError(f"a server (process {process.pid}) is not ready within {patience_s:g} s")
    line = stream.readline()
    if not line:
        raise ServerError(f"a server (process {process.pid}) ended before it was ready; its log says why")
    return line
