"""Two hosts: what passes between them, who may take part, and what a run on them learns."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from torch._C._distributed_c10d import TCPStore
from two_hosts import ADDRESSES, PORT, SECRET, finish, on_host, result_of, tap, train

from berth.cli.main import app
from berth.errors import ForeignValueError, RefusedError, ServerError
from berth.train.checkpoint.manifest import NAME as MANIFEST
from berth.train.checkpoint.manifest import folder_of
from berth.train.fault_points import AFTER, VARIABLE
from berth.train.gateway import Gateway
from berth.train.launch import PEER_LOST
from berth.train.servers import ClientOptions, RemoteStore, Secret, Server, ServerConfig
from berth.train.servers.auth import tls_context
from berth.train.signed_store import SignedStore
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, State, sgd

PATTERN = b"a row of berth!!"  # four numbers
SPEC = TableSpec("rows", 4, sgd(), Initialiser())


def known_rows(count: int) -> State:
    keys = np.arange(count, dtype=np.int64)
    records = np.frombuffer(PATTERN * count, np.float32).reshape(count, 4).copy()
    nothing = np.empty(0, np.int64)
    return State(True, 0, keys, records, nothing, nothing, np.empty(0, np.int32))


@pytest.mark.parametrize("tls", [None, False], ids=["default", "plain"])
def test_rows_between_hosts_are_encrypted_unless_plain_is_asked_for(two_hosts, tls):
    secret = Secret(SECRET.encode())
    here, there = two_hosts
    server = on_host(there, lambda: Server(secret, ServerConfig(host=ADDRESSES[1], tls=tls)))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    def work() -> None:
        store = RemoteStore([server.address], secret, options=ClientOptions(tls=tls))
        store.open([SPEC])
        store.load("rows", known_rows(1000))
        rows = store.pull("rows", np.arange(1000, dtype=np.uint64))
        assert rows.tobytes() == PATTERN * 1000
        store.close()

    with tap(here) as close:
        on_host(here, work)
        seen = close()
    server.stop()
    thread.join()
    assert len(seen) > 2 * 1000 * len(PATTERN)
    assert (PATTERN * 4 in seen) == (tls is False)
    assert SECRET.encode() not in seen


@pytest.fixture
def gateways(two_hosts):
    """A listener on the second host, and gateways by which the first reaches it at the same loopback address."""
    secret, endpoint = Secret(SECRET.encode()), ("127.77.1.2", 4477)
    first, second = (
        on_host(host, lambda address=address: Gateway(secret, address))
        for host, address in zip(two_hosts, ADDRESSES, strict=True)
    )
    listener = on_host(two_hosts[1], lambda: socket.create_server(endpoint))
    on_host(two_hosts[1], lambda: second.open([endpoint], []))
    on_host(two_hosts[0], lambda: first.open([], [(endpoint, (ADDRESSES[1], second.port))]))
    with listener:
        yield two_hosts, endpoint, listener, second


def test_a_gateway_carries_bytes_both_ways_and_none_of_them_in_plain(gateways):
    (here, _), endpoint, listener, _ = gateways

    def echo() -> None:
        peer, _ = listener.accept()
        with peer:
            while data := peer.recv(1 << 16):
                peer.sendall(data)

    threading.Thread(target=echo, daemon=True).start()
    sent = PATTERN * 100_000
    with tap(here) as close:
        with on_host(here, lambda: socket.create_connection(endpoint, timeout=60)) as peer:
            threading.Thread(target=peer.sendall, args=(sent,), daemon=True).start()
            received = b""
            while len(received) < len(sent):
                received += peer.recv(1 << 16)
        seen = close()
    assert received == sent
    assert len(seen) > 2 * len(sent)
    assert PATTERN not in seen


def test_a_gateway_lets_in_neither_strangers_nor_requests_for_other_ports(gateways):
    (here, _), endpoint, listener, gateway = gateways
    place = (ADDRESSES[1], gateway.port)

    def answer(secret: Secret, target: bytes) -> bytes:
        context = tls_context(secret, server=False)
        with socket.create_connection(place, timeout=60) as peer, context.wrap_socket(peer) as encrypted:
            encrypted.sendall(len(target).to_bytes(2, "little") + target)
            return encrypted.recv(1)

    with pytest.raises(OSError, match=r"(?i)certificate|alert|reset"):
        on_host(here, lambda: answer(Secret.random(), json.dumps(endpoint).encode()))
    other = json.dumps(["127.0.0.1", 22]).encode()
    assert on_host(here, lambda: answer(Secret(SECRET.encode()), other)) == b""
    listener.settimeout(0.2)
    with pytest.raises(TimeoutError):  # no connection was accepted
        listener.accept()


def test_a_stranger_can_neither_publish_addresses_nor_join(two_hosts):
    """The stranger is on the network, reaches the rendezvous and a server, and lacks only the secret."""
    secret, wait = Secret(SECRET.encode()), timedelta(seconds=60)
    raw = on_host(
        two_hosts[0],
        lambda: TCPStore(ADDRESSES[0], 0, is_master=True, wait_for_workers=False, timeout=wait),
    )
    ours = SignedStore(raw, secret, "0")
    ours.set("servers/0", "the true address")
    server = on_host(two_hosts[0], lambda: Server(secret, ServerConfig(host=ADDRESSES[0])))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    def stranger() -> None:
        store = TCPStore(ADDRESSES[0], raw.port, is_master=False, timeout=wait)
        seen = store.get("servers/0")
        store.set("servers/0", seen[:32] + b"an address of mine")
        store.set("servers/1", seen)  # signed, but for another key
        SignedStore(store, Secret.random(), "0").set("here/1", "I am rank 1")
        with pytest.raises(RefusedError, match="refused the encrypted connection"):
            RemoteStore([server.address], Secret.random())
        with pytest.raises(ServerError):
            RemoteStore([server.address], Secret.random(), options=ClientOptions(tls=False, timeout_s=0.3))

    on_host(two_hosts[1], stranger)
    for key in ("servers/0", "servers/1", "here/1"):
        with pytest.raises(ForeignValueError, match="not written with this run's secret"):
            ours.get(key)
    ours.set("servers/0", "the true address")
    assert ours.get("servers/0") == b"the true address"
    store = on_host(two_hosts[1], lambda: RemoteStore([server.address], secret))  # the run is unharmed
    store.open([SPEC])
    store.close()
    server.stop()
    thread.join()


STEPS = "12"
CHECKPOINTS = ("--steps", STEPS, "--servers", "2", "--checkpoint-every", "5")
# Both workers have ended 11 steps: rank 0 has begun to save step 10, so the checkpoint of step 5 is complete.
AFTER_BOTH = "server: step ended@22"


@pytest.fixture(scope="module")
def one_host(tmp_path_factory):
    """A run with two workers and two servers on one host, and its checkpoints."""
    folder = tmp_path_factory.mktemp("one") / "run"
    command = [
        sys.executable,
        "-m",
        "berth",
        "train",
        "ctrdnn-8",
        "--batch",
        "64",
        "--json",
        "--workers",
        "2",
    ]
    done = subprocess.run(
        [*command, *CHECKPOINTS, "--checkpoint", str(folder)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def assert_same(one_host, folder: Path, result: dict, capsys) -> None:
    """The run on two hosts has loss, AUC and every row of the run on one, bit for bit."""
    for name in ("step", "examples", "loss", "auc"):
        assert result[name] == one_host[1][name], name
    capsys.readouterr()
    app(["table", "diff", str(one_host[0]), str(folder), "--json"], standalone_mode=False)
    rows = json.loads(capsys.readouterr().out)
    assert (rows["changed"], rows["only_first"], rows["only_second"]) == (0, 0, 0)
    assert rows["same"] == result["tables"]["embedding"]["rows"] > 0


@pytest.mark.slow
def test_two_hosts_learn_what_one_host_does_and_the_secret_stays_with_them(
    two_hosts, one_host, tmp_path, capsys
):
    with tap(two_hosts[0]) as close:
        result = result_of(train(two_hosts, *CHECKPOINTS, "--checkpoint", str(tmp_path / "run")))
        seen = close()
    assert_same(one_host, tmp_path / "run", result, capsys)
    assert [server["host"] for server in result["servers"]] == ["a", "b"]
    assert set(result["server_skew"]) == {"rows", "bytes", "requests"}
    assert all(1 <= skew < 2 for skew in result["server_skew"].values())
    shards = sorted(path.name for path in (tmp_path / "run" / f"step-{int(STEPS):012d}").glob("table*"))
    assert shards == ["table-0.shard-0-of-2.bin", "table-0.shard-1-of-2.bin"]
    assert len(seen) > 100_000
    assert SECRET.encode() not in seen
    assert bytes.fromhex(SECRET) not in seen


@pytest.mark.slow
def test_a_rank_with_another_secret_is_one_message_and_nothing_is_lost(two_hosts, tmp_path):
    words = ("--steps", "2", "--servers", "2", "--checkpoint", str(tmp_path / "run"))
    ended = finish(train(two_hosts, *words, secrets=(SECRET, "77" * 32)))
    for rank, (code, said, errors) in enumerate(ended):
        assert (code, said) == (2, ""), errors
        # torch cannot resolve names
        lines = [line for line in errors.splitlines() if not line.startswith("[W")]
        assert lines == [
            f"error: rank {1 - rank} does not have the secret of rank {rank}, so they can't train together",
            "  set BERTH_TRAIN_SECRET to the same value for all ranks",
        ]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    "fault",
    [
        "step@8/rank0",
        "step@8/rank1",
        f"{AFTER_BOTH}/server0",
        f"{AFTER_BOTH}/server1",
        "server: shard written@2/server1",
        "checkpoint: manifest written@2/rank0",
    ],
)
def test_after_a_kill_on_either_host_the_run_resumes_bit_for_bit(
    two_hosts, one_host, tmp_path, capsys, fault
):
    """Restarts between hosts are up to Slurm or torchrun: all end, and the next start resumes.

    Ranks are not killed before the first checkpoint is complete, which is written in the background.
    """
    words = (*CHECKPOINTS, "--checkpoint", str(tmp_path / "run"))
    after = {AFTER: str(folder_of(tmp_path / "run", 5) / MANIFEST)} if "/rank" in fault else {}
    ended = finish(train(two_hosts, *words, **{VARIABLE: fault, **after}))
    killed = [-signal.SIGKILL] if "/rank" in fault else []
    assert sorted(code for code, *_ in ended) == sorted([*killed, *[PEER_LOST] * (2 - len(killed))]), ended
    result = result_of(train(two_hosts, *words))
    assert result["resumed_from"] in ((5, 10) if AFTER_BOTH in fault else (5,))
    assert_same(one_host, tmp_path / "run", result, capsys)


MODES = {
    "async": ("--mode", "async"),
    "half-async": ("--mode", "half-async", "--staleness", "2"),
    "geo": ("--mode", "geo", "--geo-every", "3"),
}


def newest_step(folder: Path) -> int | None:
    steps = [int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/manifest.json")]
    return max(steps, default=None)


def assert_complete(one_host, folder: Path, result: dict, capsys) -> None:
    """Every example was trained: the run has the keys of the run in mode sync, and no other."""
    assert (result["step"], result["examples"]) == (one_host[1]["step"], one_host[1]["examples"])
    capsys.readouterr()
    app(["table", "diff", str(one_host[0]), str(folder), "--json"], standalone_mode=False)
    rows = json.loads(capsys.readouterr().out)
    assert (rows["only_first"], rows["only_second"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "fault",
    [
        "checkpoint: manifest renamed@1/rank0",
        "step@6/rank1",
        "server: shard written@2/server0",
        "server: shard written@2/server1",
    ],
)
def test_after_a_kill_in_other_modes_no_example_is_lost(two_hosts, one_host, tmp_path, capsys, mode, fault):
    words = (*CHECKPOINTS, "--checkpoint-every", "2", *MODES[mode], "--checkpoint", str(tmp_path / "run"))
    ended = finish(train(two_hosts, *words, **{VARIABLE: fault}))
    killed = [-signal.SIGKILL] if "/rank" in fault else []
    assert sorted(code for code, *_ in ended) == sorted([*killed, *[PEER_LOST] * (2 - len(killed))]), ended
    saved = newest_step(tmp_path / "run")
    result = result_of(train(two_hosts, *words))
    assert result["resumed_from"] == saved
    assert_complete(one_host, tmp_path / "run", result, capsys)


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "training-processes.md"


def documented_options() -> list[list[str]]:
    """Return the options of torchrun that the training guide gives, for each host, with the addresses of the hosts."""
    text = GUIDE.read_text(encoding="utf-8").replace(":29400", f":{PORT}")
    for documented, address in zip(("10.0.0.1", "10.0.0.2"), ADDRESSES, strict=True):
        text = text.replace(documented, address)
    commands = [line.split() for line in text.splitlines()]
    found = [words[2 : words.index("-m")] for words in commands if words[1:2] == ["torchrun"]]
    assert len(found) == 2
    return found


def torchrun(two_hosts, folder: Path, *words: str, **variables: str) -> list[subprocess.Popen[str]]:
    """Start an agent of torchrun on each host, with the options that the training guide gives.

    Without `is_host`, torchrun looks for the host of its rendezvous by the host's name, which is that of both here.
    """
    command = ["-m", "berth", "train", "ctrdnn-8", "--batch", "64", "--json", *CHECKPOINTS, *words]
    variables |= {"BERTH_TRAIN_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run", *options),
                *(*command, "--checkpoint", str(folder)),
            ],
            env={**os.environ, **variables, "BERTH_MACHINE": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host, options, name in zip(two_hosts, documented_options(), "ab", strict=True)
    ]


def result_of_agents(agents: list[subprocess.Popen[str]]) -> dict:
    ended = finish(agents)
    assert [code for code, *_ in ended] == [0, 0], ended
    said = next(text for _, text, _ in ended if text.strip())
    result: dict = json.loads(said[said.index("{") :])
    return result


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        ("sync", f"{AFTER_BOTH}/server0"),
        ("sync", f"{AFTER_BOTH}/server1"),
        ("sync", "step@8/rank0"),
        ("sync", "step@8/rank1"),
        ("async", "step@6/rank1"),
    ],
)
def test_torchrun_on_two_hosts_restarts_all_after_a_kill(two_hosts, one_host, tmp_path, capsys, mode, fault):
    """One agent notices first, and the other follows it: also with --fresh the restart keeps its checkpoints."""
    variables = {VARIABLE: fault}
    if "/rank" in fault:
        variables[AFTER] = str(folder_of(tmp_path / "run", 5) / MANIFEST)
    result = result_of_agents(
        torchrun(two_hosts, tmp_path / "run", "--fresh", *MODES.get(mode, ()), **variables)
    )
    assert result["resumed_from"] in (5, 10)
    (assert_same if mode == "sync" else assert_complete)(one_host, tmp_path / "run", result, capsys)
