"""`berth up`: a controller, its back end and the API in one process, until somebody ends it."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.errors import InputError, UnknownNameError
from berth.live.api.app import make_app
from berth.live.api.desk import Desk
from berth.live.api.tokens import Tokens, admin_token
from berth.live.backend import Backend, BackendError
from berth.live.backends.local import LocalBackend
from berth.live.controller import Controller
from berth.live.folder import write_whole
from berth.live.home import ATTEMPTS, ENDPOINT
from berth.live.meter import Meter
from berth.live.recover import recover
from berth.live.setup import Setup
from berth.live.store import Store

_log = logging.getLogger("berth.live")
BACKENDS = ("local", "slurm", "ray")
DEFAULT_CLUSTER = "2x2x4"
_METER_S = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """What `berth up` was asked for."""

    state: Path
    cluster: str | None = None
    backend: str = "local"
    policy: str | None = None
    host: str = "127.0.0.1"
    port: int = 0


class Server:
    """Everything that runs while berth is up."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._socket = listen(options.host, options.port)
        with ExitStack() as undo:
            undo.callback(self._socket.close)
            self.store = Store(options.state)
            undo.callback(self.store.close)
            setup, self.backend = self._prepare()
            self.controller = Controller(self.store, self.backend, setup)
            tokens = Tokens(options.state)
            admin_token(options.state, tokens)
            undo.pop_all()
        self.desk = Desk(self.controller, tokens, options.state / ATTEMPTS)
        self.app = make_app(self.desk)
        self.url = url_of(self._socket)
        self._over = threading.Event()
        self._failed = False

    def _prepare(self) -> tuple[Setup, Backend]:
        """The cluster and the policy: as given, else as they were, else as usual."""
        options = self.options
        before = recover(self.store)
        given = load_cluster(options.cluster) if options.cluster else None
        known = before.setup if before is not None else None
        backend = make_backend(
            options.backend, options.state, given or (known.cluster if known else None), self._called
        )
        try:
            cluster = given or backend.cluster()
        except BackendError as error:
            backend.close()
            raise InputError(str(error)) from None
        policy = options.policy or (known.policy if known else "berth")
        return Setup(cluster, policy=policy, store=self.store.name), backend

    def _called(self) -> None:
        controller = getattr(self, "controller", None)
        if controller is not None:
            controller.called.set()

    def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serves until a signal comes; what runs goes on running after that."""
        import uvicorn

        write_whole(self.options.state / ENDPOINT, json.dumps({"url": self.url, "pid": os.getpid()}))
        threads = [
            threading.Thread(target=self._control, name="controller"),
            threading.Thread(target=self._measure, name="meter"),
        ]
        config = uvicorn.Config(self.app, log_level="warning", timeout_graceful_shutdown=2, access_log=False)
        self._web = server = uvicorn.Server(config)
        for thread in threads:
            thread.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _told)  # uvicorn raises a signal again once it has ended in order
        if ready is not None:
            ready(self.url)
        try:
            server.run(sockets=[self._socket])
        finally:
            self._over.set()
            self.controller.called.set()
            for thread in threads:
                thread.join()
            self.controller.close(keep=not self._failed)
            (self.options.state / ENDPOINT).unlink(missing_ok=True)
        if self._failed:
            raise SystemExit(1)

    def _control(self) -> None:
        """A controller that fails in a way nobody foresaw ends everything: what is on the disk is right."""
        try:
            self.controller.run(self._over)
        except BaseException:  # noqa: BLE001 - whatever it is, nobody may go on with these books
            _log.exception(
                "the controller failed; what runs goes on, and `berth up` takes it from the journal"
            )
            self._failed = self._web.should_exit = True

    def _measure(self) -> None:
        meter = Meter(self.controller, self.options.state / ATTEMPTS)
        while not self._over.wait(_METER_S):
            meter.read()


def _told(*_: object) -> None:
    """Being asked to end, and having done so, is no failure."""


def make_backend(name: str, state: Path, cluster: Cluster | None, called: Callable[[], None]) -> Backend:
    """The back end by its name; a cluster that is described nowhere is asked of the engine."""
    if name == "local":
        return LocalBackend(state / ATTEMPTS, cluster or load_cluster(DEFAULT_CLUSTER), called)
    if name == "ray":
        from berth.live.backends.ray import RayBackend

        return RayBackend(state / ATTEMPTS)
    if name == "slurm":
        from berth.live.backends.slurm import SlurmBackend

        return SlurmBackend(state / ATTEMPTS, cluster)
    raise UnknownNameError("back end", name, BACKENDS)


def url_of(sock: socket.socket) -> str:
    """Where a socket answers; an address of IPv6 stands in brackets."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A socket that answers there; 0: any port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named, or asyncio would not switch off the delay of small packets: 40 ms for each answer
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(512)
    except OSError as error:
        sock.close()
        raise InputError(
            f"{host}:{port} can't be used: {error.strerror}", hint="choose another --port, or --host"
        ) from None
    return sock
