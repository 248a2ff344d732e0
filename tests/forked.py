"""Processes that `subprocess` starts, forked from one that has imported what they need.

An `Origin` is such a process: it has run nothing else. `patched` lets `subprocess` ask it for every
`python -m berth...`, and `multiprocessing` for every process that it spawns, in place of an interpreter that would
import for seconds of CPU time. What it forks is a process
as any other: a child of the one that asks, with the descriptors, the environment, the folder and the group that
`subprocess` gives it, so it can be waited for and signalled. An origin runs no program itself, and each fork has an
origin of its own, for the processes that it starts in turn.
"""

from __future__ import annotations

import _posixsubprocess
import array
import atexit
import contextlib
import ctypes
import fcntl
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

NAME = b"berth-origin"  # what /proc calls an origin
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_prctl = ctypes.CDLL(None).prctl
_execute = subprocess._fork_exec
# What is read while modules are imported: where a process wants it otherwise, it has to import them itself.
_READ_AT_IMPORT = (
    *("NUMBA_", "PYTHON", "LD_", "MALLOC_", "TORCH", "COVERAGE_"),
    "XDG_CACHE_HOME",
)
_ADJUSTED = ("NUMBA_NUM_THREADS", "PYTHONPATH")  # no kernel is parallel; sys.path is extended
# Ray, torch and torchrun set them, in tests too.
_READ_LATER = (
    "PYTHONBREAKPOINT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHELASTIC_",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)
_SPAWNED = "--multiprocessing-fork"  # how multiprocessing marks a process that it spawns
_imported_with: dict[str, str] = {}


def remember_environment() -> None:
    """Called by the process that imports."""
    _imported_with.update(relevant(os.environ))


def relevant(environment: Any) -> dict[str, str]:
    """The variables that imported modules have read."""
    named = {name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)}
    return {name: value for name, value in named.items() if not name.startswith((*_ADJUSTED, *_READ_LATER))}


class Origin:
    """The process that forks, as those see it that ask: `link` leads to it."""

    def __init__(self, link: socket.socket, imported_with: dict[str, str]) -> None:
        self._link, self._imported_with, self._lock = link, imported_with, threading.Lock()

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """`subprocess` starts berth's programs as forks."""
        _start_processes_by(self.fork_exec)
        try:
            yield
        finally:
            _start_processes_by(_execute)

    def fork_exec(self, *given: Any) -> int:
        """In place of the function by which `subprocess` forks and executes; returns the process id."""
        words, _, close_fds, keep, cwd, variables, stdin, _, _, stdout, _, stderr, *_, error_pipe = given[:14]
        _, session, group, gid, gids, uid, umask, prepare, _ = given[14:]
        words = [os.fsdecode(word) for word in words]
        environment = _environment(variables)
        if not (
            _is_known(words)
            and close_fds
            and (gid, gids, uid, umask) == (None, None, None, -1)
            and relevant(environment) == self._imported_with
            and _is_importable(prepare)
        ):
            return int(_execute(*given))
        streams = [wanted if wanted >= 0 else own for own, wanted in enumerate((stdin, stdout, stderr))]
        kept = [one for one in keep if one != error_pipe]
        request = {
            "words": words,
            "environment": environment,
            "folder": os.fsdecode(cwd) if cwd is not None else os.getcwd(),
            "numbers": [0, 1, 2, *kept],
            "session": session,
            "group": group,
            "prepare": prepare,
            "umask": _umask(),
            "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            "parent": os.getpid(),
            "ignores": [one for one in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_IGN],
        }  # fmt: skip
        try:
            return self._fork(pickle.dumps(request), [*streams, *kept])
        except (OSError, EOFError):  # the origin has been killed, or a stream is closed
            return int(_execute(*given))

    def _fork(self, request: bytes, streams: list[int]) -> int:
        with self._lock:
            before = _children()
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # the fork of a fork becomes a child of this process
            try:
                send(self._link, request, streams)
                process = int.from_bytes(_read(self._link, 8), "big")
                while parent_of(process) not in (os.getpid(), None):
                    time.sleep(0.0005)
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)
            for orphan in _children() - before - {process}:  # no other process would notice its end
                threading.Thread(target=os.waitpid, args=(orphan, 0), daemon=True).start()
        return process


def _start_processes_by(function: Callable[..., int]) -> None:
    subprocess._fork_exec = _posixsubprocess.fork_exec = function  # the second by multiprocessing


def _is_known(words: list[str]) -> bool:
    is_berth = words[:2] == [sys.executable, "-m"] and words[2].partition(".")[0] == "berth"
    return is_berth or words[-1] == _SPAWNED


def _environment(variables: list[bytes] | None) -> dict[str, str]:
    if variables is None:
        return dict(os.environ)
    pairs = (os.fsdecode(one).partition("=") for one in variables)
    return {name: value for name, _, value in pairs}


def _children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
    return found


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _is_importable(function: Callable[[], None] | None) -> bool:
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError):
        return False
    return True


def answer(link: socket.socket) -> bool:
    """Fork once for the process at the other end; False if that has gone."""
    try:
        given, streams = receive(link)
    except EOFError:
        return False
    if (between := os.fork()) == 0:
        if process := os.fork():
            link.sendall(process.to_bytes(8, "big"))
            os._exit(0)
        _become(pickle.loads(given), streams)
    os.waitpid(between, 0)
    for stream in streams:
        os.close(stream)
    return True


def _become(request: dict[str, Any], streams: array.array[int]) -> NoReturn:
    """Run the program in this forked process."""
    while os.getppid() != request["parent"]:
        time.sleep(0.0005)
    _prctl(_PR_SET_NAME, b"python")
    place_streams(streams, request["numbers"])
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number in request["ignores"] else _usual(number))
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    os.umask(request["umask"])
    if request["prepare"] is not None:
        request["prepare"]()
    run_and_exit(lambda: _run(request["words"]), request["folder"], request["environment"])


def _usual(number: signal.Signals) -> Any:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def _run(words: list[str]) -> None:
    if words[-1] == _SPAWNED:
        sys.argv = ["-c", _SPAWNED]
        exec(words[-2], {"__name__": "__main__"})
    else:
        _run_module(words[2], words[3:])


def _run_module(module: str, words: list[str]) -> None:
    more = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one not in ("", *sys.path)]
    sys.argv, sys.path[:1] = [module, *words], [os.getcwd(), *more]
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)  # it is run, not imported
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def place_streams(streams: array.array[int], numbers: list[int]) -> None:
    """Give descriptors their numbers, and close all others."""
    above = max(64, *numbers) + 1
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD, above) for stream in streams]
    os.closerange(0, above)
    for stream, number in zip(moved, numbers, strict=True):
        os.dup2(stream, number)
    os.closerange(above, max(moved) + 1)


def run_and_exit(program: Callable[[], None], folder: str, environment: dict[str, str]) -> NoReturn:
    """Run a program in this forked process; it exits without touching what was imported."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    _start_processes_by(own_origin().fork_exec)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    code: object = 0
    try:
        program()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
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
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(int(code or 0))  # type: ignore[call-overload]


def own_origin() -> Origin:
    """Fork an origin for the processes that this one will start; it ends with this one."""
    here, there = socket.socketpair()
    if os.fork() == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_NAME, NAME)
        os.setpgid(0, 0)  # Ctrl-C is not for it
        place_streams(array.array("i", [there.fileno()]), [0])
        link = socket.socket(fileno=0)
        while answer(link):
            pass
        os._exit(0)
    there.close()
    return Origin(here, _imported_with)


def send(link: socket.socket, given: bytes, streams: list[int]) -> None:
    """Send bytes and descriptors."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
    link.sendmsg([len(given).to_bytes(8, "big")], ancillary)
    link.sendall(given)


def receive(link: socket.socket) -> tuple[bytes, array.array[int]]:
    """What `send` sent."""
    streams = array.array("i")
    size, ancillary, _, _ = link.recvmsg(8, socket.CMSG_SPACE(64 * streams.itemsize))
    for _, _, data in ancillary:
        streams.frombytes(data)
    return _read(link, int.from_bytes(_whole(size), "big")), streams


def _whole(size: bytes) -> bytes:
    if not size:
        raise EOFError
    return size


def _read(link: socket.socket, size: int) -> bytes:
    given = b""
    while len(given) < size:
        given += _whole(link.recv(size - len(given)))
    return given


def parent_of(process: int) -> int | None:
    """The parent of a process, or None if there is no such process."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
