"""`berth` and `python` for tests that start many, without the seconds of CPU time that imports take.

`programs()` is a folder with both, to be put first on PATH or to be called: each hands its arguments, folder,
environment and streams over to a process that has imported what commands need and has run none, which forks. So every
command still runs in a process of its own. Only an exit code is passed back: a test that sends signals to a command, or
that checks what a command imports, starts `sys.executable -m berth`.
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
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

PROGRAMS = ("berth", "python")
_LEFT_OUT = ("berth.testing.", "berth.live.backends.", "berth.live.supervise.")
# The part of the program that a shell starts; it imports little.
_CLIENT = """#!{python} -IS
import array, json, os, socket, sys
facts = {{"program": {program!r}, "words": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
given = json.dumps(facts).encode()
with socket.socket(socket.AF_UNIX) as link:
    link.connect({address!r})
    streams = array.array("i", [0, 1, 2])
    link.sendmsg([len(given).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    link.sendall(given)
    code = int(link.recv(8) or 1)
os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
"""


@functools.cache
def programs() -> Path:
    """The folder of `berth` and `python`, for as long as this process lives."""
    folder = tempfile.TemporaryDirectory(prefix="berth-programs-")
    atexit.register(folder.cleanup)
    one_thread = {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }  # more would take cores from other tests
    plain = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    made = Preloaded(Path(folder.name), os.environ | one_thread | plain)
    atexit.register(made.close)
    return made.folder


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
        self._process = subprocess.Popen(
            [sys.executable, __file__, address],
            env=environment,
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        """End it: its standard input is closed."""
        self._process.communicate()


def main(address: str) -> None:
    """Fork for each command, until standard input ends."""
    _import_all()
    gc.collect()
    gc.freeze()  # a forked process copies each page that it touches
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    print("ready", flush=True)
    running: dict[
        int, tuple[int, socket.socket]
    ] = {}  # process id and client by the descriptor of the process
    while 0 not in (ready := select.select([0, listening, *running, *_links(running)], [], [])[0]):
        if listening in ready:
            link, _ = listening.accept()
            given, streams = _receive(link)
            if (child := os.fork()) == 0:
                _run_and_exit(given, streams)
            running[os.pidfd_open(child)] = child, link
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


def _receive(link: socket.socket) -> tuple[dict[str, Any], array.array[int]]:
    """The command of a client, and its streams."""
    size, ancillary, _, _ = link.recvmsg(8, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    with link.makefile("rb") as incoming:
        return json.loads(incoming.read(int.from_bytes(size, "big"))), array.array("i", ancillary[0][2])


def _run_and_exit(given: dict[str, Any], streams: array.array[int]) -> NoReturn:
    """Run a command in this forked process; it exits without touching what was imported."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 64)  # sockets and other commands
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["env"])
    code: object = 0
    try:
        _run(given["program"], given["words"])
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as the interpreter would print it
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(code or 0))


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


if __name__ == "__main__":
    main(sys.argv[1])
