"""Servers as processes: ready, ended, killed."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest

from berth.errors import InputError, RefusedError, ServerError
from berth.train.servers import (
    Address,
    ClientOptions,
    RemoteStore,
    Secret,
    Server,
    ServerConfig,
    ServerProcess,
)
from berth.train.servers.auth import _certificate
from berth.train.servers.process import in_process_servers
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, adagrad

pytestmark = pytest.mark.slow

SPEC = TableSpec("rows", 8, adagrad(), Initialiser())


@pytest.fixture
def secret():
    return Secret.random()


def test_a_server_ends_when_its_launcher_lets_go_of_it(secret):
    server = ServerProcess(ServerConfig(), secret)
    assert server.address.port > 0
    server.process.stdin.close()
    assert server.process.wait(300) == 0
    server.process.stdout.close()


def test_a_server_ends_on_sigterm(secret):
    server = ServerProcess(ServerConfig(), secret)
    assert server.address.port > 0
    os.kill(server.pid, signal.SIGTERM)
    assert server.process.wait(300) == 0
    server.stop()


def test_sigterm_does_not_end_a_server_with_workers_before_its_launcher_does(secret):
    server = ServerProcess(ServerConfig(), secret)
    store = RemoteStore([server.address], secret)
    os.kill(server.pid, signal.SIGTERM)
    store.open([SPEC])
    assert store.pull("rows", np.arange(3, dtype=np.uint64)).shape == (3, 8)
    store.close()
    assert server.process.poll() is None
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "tcp"])
def test_a_server_killed_under_load_is_a_clear_and_bounded_error(secret, shared):
    servers = [ServerProcess(ServerConfig(index=index, servers=2), secret) for index in range(2)]
    options = ClientOptions(shared=shared, timeout_s=300.0)
    store = RemoteStore([server.address for server in servers], secret, options=options)
    store.open([SPEC])
    random = np.random.default_rng(0)
    killer = threading.Timer(0.0, os.kill, (servers[1].pid, signal.SIGKILL))

    def train():
        for step in range(100_000):
            if step == 20:
                killer.start()
            keys = random.integers(0, 100_000, 20_000).astype(np.uint64)
            store.pull("rows", keys)
            store.push("rows", keys, np.ones((20_000, 8), np.float32))
            store.end_step(step)

    with pytest.raises(ServerError, match=r"server 1 .* (has ended and its rows are lost|is not running)"):
        train()
    killer.join()
    store.pool.close()
    for server in servers:
        server.stop()


@pytest.mark.slow
def test_a_worker_killed_leaves_nothing_behind_and_the_server_serves_on(secret):
    server = ServerProcess(ServerConfig(), secret)
    script = (
        "import sys, numpy as np\n"
        "from berth.train.servers import Address, RemoteStore, Secret\n"
        "from berth.train.sparse import TableSpec\n"
        "from berth.train.tables import Initialiser, adagrad\n"
        "store = RemoteStore([Address.from_json(sys.argv[1])], Secret.find())\n"
        "store.open([TableSpec('rows', 8, adagrad(), Initialiser())])\n"
        "keys = np.arange(50_000, dtype=np.uint64)\n"
        "print('go', flush=True)\n"
        "while True:\n"
        "    store.pull('rows', keys)\n"
        "    store.push('rows', keys, np.ones((50_000, 8), np.float32))\n"
        "    store.end_step(0)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script, server.address.to_json()],
        env={**os.environ, **secret.environment()},
        stdout=subprocess.PIPE,
    )
    assert worker.stdout.readline() == b"go\n"
    worker.kill()
    worker.wait()
    worker.stdout.close()
    store = RemoteStore([server.address], secret, generation=2)
    store.open([SPEC])
    assert store.pull("rows", np.arange(3, dtype=np.uint64)).shape == (3, 8)
    store.close()
    RemoteStore([server.address], secret, generation=3, options=ClientOptions(shared=False)).close()
    rings = [link for link in os.listdir(f"/proc/{server.pid}/fd") if is_ring(server.pid, link)]
    assert rings == []
    server.stop()


def is_ring(pid, link):
    try:
        return "berth-ring" in os.readlink(f"/proc/{pid}/fd/{link}")
    except FileNotFoundError:
        return False


def test_a_server_without_a_secret_does_not_start(monkeypatch):
    monkeypatch.delenv("BERTH_TRAIN_SECRET", raising=False)
    done = subprocess.run(
        [sys.executable, "-m", "berth.train.servers"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 1
    assert "shared secret" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_address_can_be_left_in_a_file(tmp_path, secret):
    ready = tmp_path / "ready"
    (tmp_path / "secret").write_text("x" * 40)
    server = subprocess.Popen(
        [sys.executable, "-m", "berth.train.servers", "--ready", ready, "--secret-file", tmp_path / "secret"],
        stdin=subprocess.PIPE,
    )
    server.stdin.close()
    assert server.wait(300) == 0
    assert Address.from_json(ready.read_text()).host == "127.0.0.1"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"host": 1}'])
def test_an_invalid_address_is_an_error(text):
    with pytest.raises(InputError):
        Address.from_json(text)


def test_servers_do_not_import_torch():
    code = "import sys, berth.train.servers.process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=900, check=False).returncode == 0


def test_importing_the_package_costs_nothing():
    code = (
        "import sys, berth.train.servers; sys.exit(any(m in sys.modules for m in ('numba', 'torch', 'ssl')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=900, check=False).returncode == 0


def test_tls_carries_the_same_rows_and_another_secret_is_refused_at_once():
    secret = Secret.random()
    server = Server(secret, ServerConfig(tls=True))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    options = ClientOptions(shared=False, tls=True)
    store = RemoteStore([server.address], secret, options=options)
    assert isinstance(store.pool[0].channel.socket, ssl.SSLSocket)
    store.open([SPEC])
    keys = np.arange(100_000, dtype=np.uint64)
    before = store.pull("rows", keys)
    store.push("rows", keys, np.ones((100_000, 8), np.float32))
    store.end_step(0)
    assert (store.pull("rows", keys) != before).all()
    store.close()
    with pytest.raises(RefusedError, match="refused the encrypted connection: its secret differs"):
        RemoteStore([server.address], Secret.random(), options=options)
    with pytest.raises(ServerError):
        RemoteStore([server.address], secret, options=ClientOptions(shared=False, timeout_s=0.3))
    server.stop()
    thread.join()


def test_a_worker_that_expects_tls_does_not_talk_to_a_plain_server(secret):
    with in_process_servers(1, secret) as (server,), pytest.raises(RefusedError, match="or it uses --plain"):
        RemoteStore([server.address], secret, options=ClientOptions(shared=False, tls=True))


def test_equal_secrets_give_equal_certificates_and_others_do_not():
    one, other = Secret.random(), Secret.random()
    assert _certificate(one.derive("tls")) == _certificate(Secret(one._key).derive("tls"))
    assert _certificate(one.derive("tls")) != _certificate(other.derive("tls"))


def test_a_client_that_disconnects_before_the_handshake_does_no_harm():
    server = Server(Secret.random(), ServerConfig(tls=True))
    guest = socket.create_connection((server.address.host, server.address.port))
    guest.sendall(b"something")
    guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # hangs up with a reset
    guest.close()
    server.run_once()
    with socket.create_connection((server.address.host, server.address.port)):
        server.run_once()
        assert len(server._connections) == 1  # the next one is heard
    server.close()


def test_a_server_without_its_secret_says_so_and_does_not_start(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "berth.train.servers", "--secret-file", str(tmp_path / "nowhere")],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 1
    assert "berth server: " in done.stderr
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
