"""Processes that hang or never come are named, with the time since when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from berth.errors import ServerError
from berth.train.heartbeat import HEARTBEAT, InProcessStore, StallMonitor, WatchedServer, waiting_for_peers
from berth.train.servers import Secret, ServerConfig, ServerProcess
from berth.train.servers.connection import ServerPing, ping_identity


class KeyValueStore(dict):
    def set(self, key, value):
        self[key] = value.encode()

    def check(self, keys):
        return all(key in self for key in keys)


class Stopped(KeyValueStore):
    """The board of a rank 0 that is stopped: a write waits until it times out."""

    def set(self, key, value):
        raise RuntimeError("timed out")


@pytest.fixture
def ranks():
    """Three ranks that see one board; `go(now, *those)` is a look of these."""
    begun, board = time.monotonic(), KeyValueStore()
    watches = [StallMonitor(rank, 3, silent_s=30, notify=None) for rank in range(3)]

    def go(after, *those, waiting=(0, 1, 2), step=7):
        for rank in those:
            HEARTBEAT.step, HEARTBEAT.waiting = step, rank in waiting
            watches[rank].exchange(board, begun + after)
        return [watches[rank].stall_message(begun + after) for rank in those]

    def watch(names, pinged_by):
        servers = [WatchedServer(name, rank) for name, rank in zip(names, pinged_by, strict=True)]
        for rank, monitor in enumerate(watches):
            mine = {i: (lambda i=i: go.answers[i]) for i, by in enumerate(pinged_by) if by == rank}
            monitor.watch_servers(servers, mine, begun)

    go.watch, go.answers = watch, [0, 0]
    yield go
    HEARTBEAT.step, HEARTBEAT.waiting = 0, False


def test_a_rank_without_a_pulse_is_named_once_by_the_lowest_other(ranks):
    assert ranks(1, 0, 1, 2) == [None] * 3
    assert ranks(5, 0, 2) == [None] * 2  # the last pulse of rank 1 is seen
    assert ranks(30, 0, 2) == [None] * 2
    assert ranks(36, 0, 2) == ["waiting: rank 1 has been silent for 31 s (after step 7)", None]
    assert ranks(40, 0, 2) == [None, None]
    assert ranks(67, 0, 2) == ["waiting: rank 1 has been silent for 62 s (after step 7)", None]
    assert ranks(70, 1, 0, 2) == [None] * 3


def test_where_the_first_is_silent_the_second_says_so(ranks):
    ranks(5, 0, 1, 2)
    assert ranks(40, 1, 2) == ["waiting: rank 0 has been silent for 35 s (after step 7)", None]


def test_a_server_without_answers_is_named_with_its_host(ranks):
    """Unless the rank that pings it is silent itself: then nothing is known of the server."""
    ranks.watch(["server 0 on a", "server 1 on b"], pinged_by=[0, 1])
    ranks(1, 0, 1, 2)
    ranks.answers[0] += 1
    assert ranks(5, 0, 1, 2) == [None] * 3
    ranks.answers[0] += 1
    assert ranks(34, 0, 1, 2)[1:] == [None, None]
    ranks.answers[0] += 1
    assert ranks(36, 1, 0, 2) == [None, "waiting: server 1 on b has been silent for 31 s", None]
    ranks.answers[1] += 1
    assert ranks(40, 1, 0, 2) == [None] * 3
    ranks(41, 1, 0, 2)
    ranks.answers[0] += 1
    assert ranks(70, 0, 2) == [None, None]
    ranks.answers[0] += 1
    assert ranks(75, 0, 2) == ["waiting: rank 1 has been silent for 34 s (after step 7)", None]


@pytest.mark.slow
def test_a_stopped_server_is_silent_and_heard_again():
    secret, reports = Secret.random(), []
    server = ServerProcess(ServerConfig(), secret)
    monitor = StallMonitor(0, 1, silent_s=0.6, notify=reports.append)
    ping = ServerPing(server.address, ping_identity(0, 1, 1), secret, tls=None, every_s=0.05)

    def wait_until(is_true):
        deadline = time.monotonic() + 120
        while not is_true():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    try:
        monitor.watch_servers(
            [WatchedServer("server 0 on b", 0)], {0: lambda: ping.answers}, time.monotonic()
        )
        wait_until(lambda: ping.answers > 2)
        os.kill(server.pid, signal.SIGSTOP)
        monitor.start(InProcessStore())
        wait_until(lambda: any("server 0 on b has been silent for" in report for report in reports))
        before = ping.answers
        os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: ping.answers > before + 2)
    finally:
        os.kill(server.pid, signal.SIGCONT)
        monitor.stop()
        ping.stop()
        server.stop()


def test_a_board_that_does_not_answer_is_the_silence_of_rank_0_alone():
    begun, board, stopped = time.monotonic(), KeyValueStore(), Stopped()
    first, second, third = watches = [StallMonitor(rank, 3, silent_s=30, notify=None) for rank in range(3)]
    for watch in watches:
        watch.exchange(board, begun + 5)
    for watch in (first, third, second):  # the third has not yet seen the last pulse of the second
        watch.exchange(board, begun + 10)
    for watch in (second, third):
        with pytest.raises(RuntimeError):
            watch.exchange(stopped, begun + 15)
    assert third.stall_message(begun + 38) is None
    assert second.stall_message(begun + 41) == "waiting: rank 0 has been silent for 31 s (after step 0)"
    assert third.stall_message(begun + 41) is None
    first.exchange(board, begun + 70)  # rank 0 goes on; the others could not publish
    assert first.stall_message(begun + 70) is None


def test_a_rank_that_has_a_pulse_but_neither_waits_nor_goes_on_is_busy(ranks):
    for after in (4, 5, 20):
        assert ranks(after, 2, 1, 0, waiting=(0, 1)) == [None] * 3
    said = ranks(36, 2, 1, 0, waiting=(0, 1))
    assert said == [None, None, "waiting: rank 2 has been busy for 32 s (after step 7)"]
    assert ranks(50, 2, 1, 0, step=8) == [None] * 3


def test_an_error_of_torchs_processes_is_that_another_is_gone_and_no_other_error_is():
    with (
        pytest.raises(ServerError, match="lost another process of the run: Connection closed"),
        waiting_for_peers(),
    ):
        raise RuntimeError("Connection closed by peer\nmore")
    with pytest.raises(ZeroDivisionError), waiting_for_peers():
        raise ZeroDivisionError
    assert not HEARTBEAT.waiting


def environment(port, rank, world_size):
    return {
        **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "BERTH_TRAIN_SILENT_S": "3", "OMP_NUM_THREADS": "1",
    }  # fmt: skip


COMMAND = (sys.executable, "-m", "berth", "train", "ctrdnn-8", "--batch", "16", "--steps", "1000000")


def said_by(process, words) -> str:
    """The first line with these words; the end of the output is a failure."""
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"never said {words!r}")


@pytest.fixture
def started():
    running = []

    def start(*arguments, **options):
        running.append(subprocess.Popen([*arguments], stderr=subprocess.PIPE, text=True, **options))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.usefixtures("forked")
@pytest.mark.slow
def test_a_rank_that_never_comes_is_named(started, free_port):
    port = free_port
    first = started(*COMMAND, env=environment(port, 0, 3))
    started(*COMMAND, env=environment(port, 1, 3))
    assert f"waiting: rank 2 of 3 did not join at 127.0.0.1:{port} within" in said_by(first, "rank 2 of 3")


@pytest.mark.usefixtures("forked")
@pytest.mark.slow
def test_a_first_rank_that_never_comes_is_named(started, free_port):
    port = free_port
    second = started(*COMMAND, env=environment(port, 1, 2))
    assert f"waiting: rank 0 of 2 did not join at 127.0.0.1:{port} within" in said_by(second, "rank 0 of 2")


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_worker_of_the_launcher_is_named_whichever_it_is(started, stopped, tmp_path):
    launcher = started(
        *COMMAND, "--workers", "2", "--checkpoint", str(tmp_path), "--checkpoint-every", "1",
        env={**os.environ, "BERTH_TRAIN_SILENT_S": "3"},
    )  # fmt: skip
    while not list(tmp_path.glob("step-*/manifest.json")):
        assert launcher.poll() is None
        time.sleep(0.05)
    os.kill(worker(launcher.pid, stopped), signal.SIGSTOP)
    assert f"waiting: rank {stopped} has been silent for " in said_by(
        launcher, f"rank {stopped} has been silent"
    )


def worker(launcher: int, rank: int) -> int:
    """The process of a rank among the launcher's children."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"BERTH_TRAIN_NAME=worker{rank}/1" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise AssertionError("no such worker")
