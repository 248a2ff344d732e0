"""`berth up`: a controller, its back end and the API in one process, until it is stopped."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.errors import InputError, UnknownNameError
from berth.live.api.app import make_app
from berth.live.api.connections import MOST_CONNECTIONS, Connection, listen_unix
from berth.live.api.service import Service
from berth.live.api.tokens import Tokens, drop_old_admin_token
from berth.live.backend import Backend, BackendError
from berth.live.backends.local import LocalBackend
from berth.live.controller import Controller
from berth.live.folder import tokens_in
from berth.live.home import ENDPOINT, OLD_ATTEMPTS, SOCKET, usual_work_folder
from berth.live.meter import Meter
from berth.live.private import FOLDER_MODE, make_folders, write_private
from berth.live.setup import Setup, setup_from_dict, usable
from berth.live.spec import Bounds
from berth.live.store import Store
from berth.schedule.policies.registry import anchored

_log = logging.getLogger("berth.live")
BACKENDS = ("local", "slurm", "ray")
DEFAULT_CLUSTER = "2x2x4"
_METER_S = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `berth up`."""

    state: Path
    cluster: str | None = None
    backend: str = "local"
    policy: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    work: Path | None = None  # the folder of attempts; none given: beside the state
    adopt: bool = False
    bounds: Bounds = field(default_factory=Bounds)


class Server:
    """The threads and sockets of `berth up`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        with ExitStack() as undo:
            # first: another controller has it, and the port
            self.store = Store(options.state, adopt=options.adopt)
            undo.callback(self.store.close)
            self._socket = listen(options.host, options.port)
            undo.callback(self._socket.close)
            self.work = work_folder(self.store, options.work)
            self.store.keep_ids_in(self.work)
            setup, self.backend = self._prepare()
            undo.callback(self.backend.close)
            self.controller = Controller(self.store, self.backend, setup)
            tokens = Tokens(options.state)
            drop_old_admin_token(options.state, tokens)
            self._here = listen_unix(options.state)
            undo.pop_all()
        self.service = Service(self.controller, tokens, self.work, options.bounds)
        self.app = make_app(self.service)
        self.url = url_of(self._socket)
        self._over = threading.Event()
        self._failed = False

    def _prepare(self) -> tuple[Setup, Backend]:
        """Return the cluster and the policy: as given, else as before, else the defaults."""
        options = self.options
        given = load_cluster(options.cluster) if options.cluster else None
        starts = self.store.opened()
        known = setup_from_dict(self.store.record(starts[-1][0]).body) if starts else None
        backend = make_backend(
            options.backend, self.work, given or (known.cluster if known else None), self._called
        )
        try:
            cluster = given or backend.cluster()
        except BackendError as error:
            backend.close()
            raise InputError(str(error)) from None
        return self._setup(cluster, known.policy if known else None), backend

    def _setup(self, cluster: Cluster, known: str | None) -> Setup:
        """Return the setup; refuse a policy that can't be loaded. `known`: the policy of the state."""
        given = self.options.policy
        policy = anchored(given) if given else known or "berth"
        setup = Setup(cluster, policy=policy, store=self.store.name)
        why = usable(setup).paused if known and not given else None
        if why is not None:
            raise InputError(
                f"policy {policy!r} can't be loaded: {why}",
                hint=f"its name is from the state folder, {self.options.state}; "
                "`berth up --policy NAME` starts with another",
            )
        return setup

    def _called(self) -> None:
        controller = getattr(self, "controller", None)
        if controller is not None:
            controller.wakeup.set()

    def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serve until a signal comes; jobs continue after that."""
        import uvicorn

        write_private(self.options.state / ENDPOINT, json.dumps({"url": self.url, "pid": os.getpid()}))
        threads = [
            threading.Thread(target=self._control, name="controller"),
            threading.Thread(target=self._measure, name="meter"),
        ]
        config = uvicorn.Config(
            self.app,
            http=Connection,
            limit_concurrency=MOST_CONNECTIONS,
            proxy_headers=False,  # any client could set them
            log_level="warning",
            timeout_graceful_shutdown=2,
            access_log=False,
        )
        self._web = server = uvicorn.Server(config)
        for thread in threads:
            thread.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _ignore)  # uvicorn raises a signal again once it has ended in order
        if ready is not None:
            ready(self.url)
        try:
            server.run(sockets=[self._socket, self._here])
        finally:
            self._over.set()
            self.controller.wakeup.set()
            for thread in threads:
                thread.join()
            for name in (ENDPOINT, SOCKET):
                (self.options.state / name).unlink(missing_ok=True)
            self.controller.close(keep=not self._failed)
        if self._failed:
            raise SystemExit(1)

    def _control(self) -> None:
        """Run the controller; an unexpected error stops the server, because only the journal is right then."""
        try:
            self.controller.run(self._over)
        except BaseException:  # noqa: BLE001 - the state may be wrong
            _log.exception(
                "the controller failed; jobs continue, and `berth up` restores the state from the journal"
            )
            self._failed = self._web.should_exit = True

    def _measure(self) -> None:
        meter = Meter(self.controller, self.work)
        while not self._over.wait(_METER_S):
            meter.read()


def _ignore(*_: object) -> None:
    """Exit with 0 after a signal: a requested end is not a failure."""


def work_folder(store: Store, given: Path | None) -> Path:
    """The folder of attempts: of this store alone, below `given`, else as before, else beside the state.

    No attempt is left behind in another folder. Attempts that an older berth started inside the state folder stay there
    for as long as one of them runs.
    """
    if given is not None and _in_state(store, given):
        raise InputError(
            "is in the state folder", where=str(given), hint="name a folder outside of it with --work"
        )
    before = _work_before(store)
    if given is not None and given != before:
        folder = given / store.name
    else:
        folder = before or usual_work_folder(store.folder, store.name)
    if before is not None and folder != before and tokens_in(before):
        raise InputError(
            f"attempts are under way in {before}", hint="let them end before --work names another folder"
        )
    if not _in_state(store, folder):
        store.set_fact("work", str(folder))
    make_folders(folder)
    folder.chmod(FOLDER_MODE)
    return folder


def _work_before(store: Store) -> Path | None:
    """Return the folder that this store used before; one inside its state counts only while attempts are in it."""
    before = Path(store.known_fact("work") or store.folder / OLD_ATTEMPTS)
    if not _in_state(store, before):
        return before
    return before if tokens_in(before) and not store.adopted else None


def _in_state(store: Store, folder: Path) -> bool:
    return folder.resolve().is_relative_to(store.folder.resolve())


def make_backend(name: str, work: Path, cluster: Cluster | None, called: Callable[[], None]) -> Backend:
    """The back end by its name; a cluster that is described nowhere is asked of the engine."""
    if name == "local":
        return LocalBackend(work, cluster or load_cluster(DEFAULT_CLUSTER), called)
    if name == "ray":
        from berth.live.backends.ray import RayBackend

        return RayBackend(work)
    if name == "slurm":
        from berth.live.backends.slurm import SlurmBackend

        return SlurmBackend(work, cluster)
    raise UnknownNameError("back end", name, BACKENDS)


def url_of(sock: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the protocol, or asyncio would not set TCP_NODELAY: 40 ms for each answer
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
