"""`berth` and `python` for tests that start many, without the seconds of CPU time that imports take.

`programs()` is a folder with both, to be put first on PATH or to be called: each hands its arguments, folder,
environment and streams over to a process that has imported what commands need and has run none, which forks. So every
command still runs in a process of its own, and so do the workers and servers that it starts (forked.py). SIGTERM and
SIGINT are passed on, and its exit code is passed back. A test that needs more, such as its process id, starts
`sys.executable -m berth` inside `forking()`; one that checks what a command imports starts it outside.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from forked import Origin, answer, place_streams, receive, relevant, remember_environment, run_and_exit

PROGRAMS = ("berth", "python")
_LEFT_OUT = ("berth.testing.", "berth.live.backends.", "berth.live.supervise.")
# The part of the program that a shell starts; it imports little.
_CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys
facts = {{"program": {program!r}, "words": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
given = json.dumps(facts).encode()
with socket.socket(socket.AF_UNIX) as link:
    link.connect({address!r})
    streams = array.array("i", [0, 1, 2])
    link.sendmsg([len(given).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    link.sendall(given)
    process = int(link.recv(16))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(process, number))
    code = int(link.recv(8) or 1)
os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
"""


def programs() -> Path:
    """The folder of `berth` and `python`, for as long as this process lives."""
    return _preloaded().folder


def forking() -> contextlib.AbstractContextManager[None]:
    """Inside, `subprocess` starts `python -m berth` as a fork: a child of this process, to be signalled and killed."""
    return _preloaded().origin.patched()


@functools.cache
def _preloaded() -> Preloaded:
    folder = tempfile.TemporaryDirectory(prefix="berth-programs-")
    atexit.register(folder.cleanup)
    one_thread = {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }  # more would take cores from other tests
    plain = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    made = Preloaded(Path(folder.name), os.environ | one_thread | plain)
    atexit.register(made.close)
    return made


class Preloaded:
    """The process with the imported modules, until `close`."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        address = str(folder / "socket")
        for program in PROGRAMS:
            client = folder / program
            client.write_text(_CLIENT.format(python=sys.executable, program=program, address=address))
            client.chmod(client.stat().st_mode | stat.S_IXUSR)
        self._link, there = socket.socketpair()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, __file__, address], env=environment, stdout=subprocess.PIPE, stdin=there
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.origin = Origin(self._link, relevant(environment))

    def close(self) -> None:
        """End it: its standard input is closed."""
        self._link.close()
        self._process.communicate()


def main(address: str) -> None:
    """Fork for each command, until standard input ends."""
    remember_environment()
    _import_all()
    _load_kernels()
    gc.collect()
    gc.freeze()  # a forked process copies each page that it touches
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    asked = socket.socket(fileno=0)
    print("ready", flush=True)
    running: dict[
        int, tuple[int, socket.socket]
    ] = {}  # process id and client by the descriptor of the process
    while True:
        ready = select.select([asked, listening, *running, *_links(running)], [], [])[0]
        if asked in ready and not answer(asked):
            return
        if listening in ready:
            link, _ = listening.accept()
            given, streams = receive(link)
            if (child := os.fork()) == 0:
                _become(json.loads(given), streams)
            running[os.pidfd_open(child)] = child, link
            # as long as the client reads: the exit code may follow at once
            link.sendall(f"{child:16}".encode())
            for stream in streams:
                os.close(stream)
        for process in [one for one in running if one in ready]:
            child, link = running.pop(process)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(OSError):
                link.sendall(str(code).encode())
            link.close()
            os.close(process)
        for child, link in running.values():
            if link in ready:  # the client was killed
                os.kill(child, signal.SIGKILL)


def _links(running: dict[int, tuple[int, socket.socket]]) -> list[socket.socket]:
    return [link for _, link in running.values()]


def _become(given: dict[str, Any], streams: array.array[int]) -> NoReturn:
    place_streams(streams, [0, 1, 2])
    run_and_exit(lambda: _run(given["program"], given["words"]), given["cwd"], given["env"])


def _run(program: str, words: list[str]) -> None:
    if program == "berth":
        sys.argv = ["berth", *words]
        importlib.import_module("berth.cli.main").main()
    elif words[0].startswith("-"):
        os.execv(sys.executable, [sys.executable, *words])
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def _import_all() -> None:
    """Import the modules of berth that need no engine, and with them what they import."""
    import berth

    for module in pkgutil.walk_packages(berth.__path__, "berth.", onerror=lambda name: None):
        if not module.name.startswith(_LEFT_OUT) and not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)


def _load_kernels() -> None:
    """Read from disk what earlier processes compiled."""
    from numba.core.dispatcher import Dispatcher

    from berth.native.cache import _Cache
    from berth.native.deferred import deferred_kernels
    from berth.native.kernels import IndirectKernel, _outer

    modules = [module for name, module in sys.modules.items() if name.startswith("berth.")]
    for value in {id(one): one for module in modules for one in vars(module).values()}.values():
        if isinstance(value, Dispatcher) and isinstance(value._cache, _Cache):
            for signature in _on_disk(value):
                value.compile(signature)
        elif isinstance(value, IndirectKernel):
            for signature in _on_disk(_outer(value.py_func, no_cpython_wrapper=True)):
                value.pointer(signature)
    for kernel in deferred_kernels().values():
        for signature in _on_disk(_outer(kernel.py_func, no_cpython_wrapper=True)):
            kernel.compile_for(signature)


def _on_disk(dispatcher: Any) -> list[Any]:
    cache, code = dispatcher._cache, dispatcher.targetctx.codegen()
    stored = cache._cache_file._load_index()
    return [key[0] for key in stored if key == cache._index_key(key[0], code)]


if __name__ == "__main__":
    main(sys.argv[1])
