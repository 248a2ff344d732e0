"""Gloo uses the interface of the route to where all meet: between two machines, that is not the loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from berth.train.network_interface import IFNAME, interface_of, source_address, use_route_interface


def test_the_way_to_this_machine_is_the_loopback(monkeypatch):
    monkeypatch.delenv(IFNAME, raising=False)
    assert source_address("127.0.0.1", 80) == "127.0.0.1"
    assert use_route_interface("127.0.0.1", 80) == "lo"
    assert os.environ[IFNAME] == "lo"


def test_what_the_environment_says_is_left(monkeypatch):
    monkeypatch.setenv(IFNAME, "ib0")
    assert use_route_interface("127.0.0.1", 80) == "ib0"


def test_an_address_of_no_interface_and_a_name_of_no_machine_have_none(monkeypatch):
    monkeypatch.delenv(IFNAME, raising=False)
    assert interface_of("192.0.2.77") is None
    assert interface_of("2001:db8::77") is None
    assert source_address("no-such-machine.invalid", 80) is None
    assert use_route_interface("no-such-machine.invalid", 80) is None
    assert IFNAME not in os.environ


def test_the_sixth_version_of_loopback_is_found_too():
    if not os.path.exists("/proc/net/if_inet6") or not socket.has_ipv6:
        pytest.skip("needs IPv6")
    with open("/proc/net/if_inet6", encoding="ascii") as file:
        if not any(line.split()[-1] == "lo" for line in file):
            pytest.skip("needs IPv6 on the loopback")
    assert interface_of("::1") == "lo"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_machines():
    """Two network namespaces with a cable between them, as two machines have."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    names = [f"berth-{os.getpid()}-{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("needs permission to make network namespaces")
    try:
        ip(
            "link",
            "add",
            "cable-a",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable-b",
            "netns",
            names[1],
        )
        for number, (name, side) in enumerate(zip(names, "ab", strict=True), 1):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", f"cable-{side}")
            ip("-n", name, "link", "set", f"cable-{side}", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.slow
def test_two_machines_find_the_network_interface(two_machines):
    command = [sys.executable, "-m", "berth", "train", "ctrdnn-8", "--steps", "4", "--batch", "64", "--json"]
    told = {name: value for name, value in os.environ.items() if name != IFNAME}
    told |= {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29400", "OMP_NUM_THREADS": "1"}
    told |= {"BERTH_TRAIN_SECRET": "5e" * 32}
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *command],
            env={**told, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(two_machines)
    ]
    try:
        said = [process.communicate(timeout=300) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], said
    result = json.loads(said[0][0])
    assert (result["step"], len(result["workers"])) == (4, 2)
