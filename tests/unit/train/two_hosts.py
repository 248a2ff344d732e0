"""Two network namespaces with a cable between them, which act as two hosts, and a tap on the cable."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")
SECRET = "5e" * 32
PORT = 29_400
_NEW_NETWORK = 0x40000000
_ALL_PROTOCOLS = 3
_SO_RCVBUFFORCE = 33


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_hosts() -> Iterator[list[str]]:
    """The names of two namespaces."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    names = [f"berth-{os.getpid()}-{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("needs permission to make network namespaces")
    try:
        cable = "link add cable-a netns {} type veth peer name cable-b netns {}".format(*names)
        ip(*cable.split())
        for name, side, address in zip(names, "ab", ADDRESSES, strict=True):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", f"cable-{side}")
            ip("-n", name, "link", "set", f"cable-{side}", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def on_host(name: str, work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a thread of another namespace; its sockets stay there."""
    results: list[Any] = []

    def run() -> None:
        with open(f"/var/run/netns/{name}", encoding="ascii") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NEW_NETWORK):
                results.append(OSError(ctypes.get_errno(), "setns"))
                return
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


class Tap:
    """All bytes on the cable."""

    def __init__(self, host: str) -> None:
        self._seen = bytearray()
        self._socket = on_host(host, self._open)
        self._thread = threading.Thread(target=self._read)
        self._ended = threading.Event()
        self._thread.start()

    @staticmethod
    def _open() -> socket.socket:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 256 << 20)
        tap.bind(("cable-a", 0))
        tap.settimeout(0.1)
        return tap

    def _read(self) -> None:
        while True:
            try:
                self._seen += self._socket.recv(1 << 17)
            except TimeoutError:
                if self._ended.is_set():
                    return

    def close(self) -> bytes:
        """Return what passed."""
        self._ended.set()
        self._thread.join()
        self._socket.close()
        return bytes(self._seen)


@contextmanager
def tap(host: str) -> Iterator[Callable[[], bytes]]:
    """Yield a function that ends the capture and returns it."""
    opened = Tap(host)
    try:
        yield opened.close
    finally:
        opened._ended.set()
        opened._thread.join()


def train(
    hosts: list[str], *words: str, secrets: tuple[str, str] = (SECRET, SECRET), **variables: str
) -> list[subprocess.Popen[str]]:
    """Start a rank of `berth train` on each host, as srun would."""
    command = [sys.executable, "-m", "berth", "train", "ctrdnn-8", "--batch", "64", "--json", *words]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT)}
    common |= {"OMP_NUM_THREADS": "1", **variables}
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *command],
            env={**common, **_of_rank(rank), "BERTH_TRAIN_SECRET": secrets[rank]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]


def _of_rank(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "BERTH_MACHINE": "ab"[rank]}


def finish(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of each rank."""
    try:
        said = [process.communicate(timeout=900) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(ranks, said, strict=True)]


def result_of(ranks: list[subprocess.Popen[str]]) -> dict[str, Any]:
    """Return the JSON result of a run whose ranks all succeed."""
    ended = finish(ranks)
    assert [code for code, *_ in ended] == [0, 0], ended
    result: dict[str, Any] = json.loads(ended[0][1])
    return result
