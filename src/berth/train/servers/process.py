"""A server as a separate process: how it starts, reports that it is ready, and stops.

A server stops when its standard input closes: the launcher holds the other end, so a server never outlives its
launcher. SIGTERM may be sent to all processes of a run at once, and workers save their rows before they end: once a
worker has joined, a server leaves SIGTERM to its launcher. SIGINT, or SIGTERM with `--forever`, stops it at once.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from threading import Thread
from typing import IO

from berth.errors import BerthError, ServerError
from berth.train.servers.auth import SECRET_VARIABLE, Secret
from berth.train.servers.protocol import MODES
from berth.train.servers.server import Server, ServerConfig
from berth.train.servers.shard import load_kernels
from berth.train.servers.transport import Address
from berth.train.tables.memory import keep_freed_memory

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
_READY_S = 300.0  # kernels may have to be compiled


def main() -> None:
    """Run a server until it is stopped."""
    options = _parser().parse_args()
    try:
        secret = Secret.find(options.secret_file)
        os.environ.pop(SECRET_VARIABLE, None)  # not inherited by children
        names = {field.name for field in fields(ServerConfig)}
        config = ServerConfig(**{name: value for name, value in vars(options).items() if name in names})
        server = Server(secret, config, notify=_log if options.verbose else lambda line: None)
    except BerthError as error:
        sys.exit(f"berth server: {error}")
    signal.signal(signal.SIGINT, lambda *_: server.stop())
    signal.signal(signal.SIGTERM, lambda *_: server.stop() if options.forever else server.stop_if_unused())
    if not options.forever:
        server.watch(sys.stdin)
    _publish_address(server.address, options.ready)
    keep_freed_memory()
    load_kernels()  # while workers connect
    server.run()


class ServerProcess:
    """A server started by this process; it ends with this process."""

    def __init__(
        self, config: ServerConfig, secret: Secret, *, environment: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "berth.train.servers", *_arguments(config)]
        self.config = config
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD, **(environment or {}), **secret.environment()},
            text=True,
            process_group=0,  # the launcher handles Ctrl-C: rows are needed until they are saved
        )
        self._address: Address | None = None

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    @property
    def address(self) -> Address:
        """Return the address; waits until the server listens."""
        if self._address is None:
            self._address = Address.from_json(_first_line(self.process, _READY_S))
        return self._address

    def stop(self, timeout_s: float = 10.0) -> int:
        """Let go of the server, and kill it if it does not end; returns its exit code."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m berth.train.servers", description=__doc__)
    parser.add_argument("--index", type=int, default=0, help="index of this server")
    parser.add_argument("--of", dest="servers", type=int, default=1, help="number of servers")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--mode", choices=MODES, default="sync")
    parser.add_argument(
        "--staleness", type=int, default=0, help="half-async: steps by which a worker may lead"
    )
    parser.add_argument(
        "--memory", dest="memory_bytes", type=int, help="bytes; more rows go to files in --folder"
    )
    parser.add_argument("--folder", type=Path, help="folder for cold rows")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument(
        "--timeout", "--patience", dest="timeout_s", type=float, default=300.0, metavar="SECONDS"
    )
    parser.add_argument("--ready", type=Path, help="write the address to this file instead of printing it")
    parser.add_argument("--secret-file", type=Path, help=f"instead of the variable {SECRET_VARIABLE}")
    parser.add_argument(
        "--plain", dest="tls", action="store_const", const=False, help="do not encrypt, whatever the host"
    )
    parser.add_argument("--forever", action="store_true", help="keep running when standard input closes")
    parser.add_argument("--verbose", action="store_true", help="log connections")
    return parser


def _arguments(config: ServerConfig) -> list[str]:
    given = {
        "--index": config.index,
        "--of": config.servers,
        "--workers": config.workers,
        "--mode": config.mode,
        "--staleness": config.staleness,
        "--memory": config.memory_bytes,
        "--folder": config.folder,
        "--host": config.host,
        "--port": config.port,
        "--timeout": config.timeout_s,
    }
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return words + ["--plain"] * (config.tls is False)


def _publish_address(address: Address, path: Path | None) -> None:
    if path is None:
        print(address.to_json(), flush=True)
        return
    beside = path.with_name(path.name + ".new")
    beside.write_text(address.to_json() + "\n")
    beside.rename(path)


def _first_line(process: subprocess.Popen[str], timeout_s: float) -> str:
    stream: IO[str] | None = process.stdout
    deadline = time.monotonic() + timeout_s
    if stream is None or not select.select([stream], [], [], deadline - time.monotonic())[0]:
        raise ServerError(f"a server (process {process.pid}) was not ready within {timeout_s:g} s")
    line = stream.readline()
    if not line:
        raise ServerError(f"a server (process {process.pid}) ended before it was ready; see its log")
    return line


@contextmanager
def in_process_servers(
    count: int, secret: Secret, config: ServerConfig | None = None
) -> Iterator[list[Server]]:
    """Run servers as threads of this process until the end of the block, for tests and experiments."""
    common = config or ServerConfig()
    servers = [Server(secret, replace(common, index=index, servers=count)) for index in range(count)]
    threads = [Thread(target=server.run, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.stop()
            thread.join()
