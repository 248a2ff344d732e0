"""Gloo uses the interface of the route to where all meet: between two machines, that is not the loopback."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest
from two_hosts import ADDRESSES, on_host

from berth.train.hosts import Hosts, this_host
from berth.train.network_interface import (
    IFNAME,
    interface_address,
    interface_of,
    source_address,
    use_route_interface,
)


def test_the_way_to_this_machine_is_the_loopback(monkeypatch):
    monkeypatch.delenv(IFNAME, raising=False)
    assert source_address("127.0.0.1", 80) == "127.0.0.1"
    with ExitStack() as run:
        assert use_route_interface("127.0.0.1", 80, run) == "lo"
        assert os.environ[IFNAME] == "lo"
    assert IFNAME not in os.environ  # a later run of this process may have other hosts


def test_what_the_environment_says_is_left(monkeypatch):
    monkeypatch.setenv(IFNAME, "ib0")
    with ExitStack() as run:
        assert use_route_interface("127.0.0.1", 80, run) == "ib0"
    assert os.environ[IFNAME] == "ib0"


def test_an_address_of_no_interface_and_a_name_of_no_machine_have_none(monkeypatch):
    monkeypatch.delenv(IFNAME, raising=False)
    assert interface_of("192.0.2.77") is None
    assert interface_of("2001:db8::77") is None
    assert source_address("no-such-machine.invalid", 80) is None
    assert use_route_interface("no-such-machine.invalid", 80, ExitStack()) is None
    assert IFNAME not in os.environ


def test_the_sixth_version_of_loopback_is_found_too():
    if not os.path.exists("/proc/net/if_inet6") or not socket.has_ipv6:
        pytest.skip("needs IPv6")
    with open("/proc/net/if_inet6", encoding="ascii") as file:
        if not any(line.split()[-1] == "lo" for line in file):
            pytest.skip("needs IPv6 on the loopback")
    assert interface_of("::1") == "lo"


def test_between_two_hosts_it_is_the_cable(two_hosts, monkeypatch):
    monkeypatch.delenv(IFNAME, raising=False)
    assert on_host(two_hosts[1], lambda: source_address(ADDRESSES[0], 80)) == ADDRESSES[1]
    with ExitStack() as run:
        assert on_host(two_hosts[1], lambda: use_route_interface(ADDRESSES[0], 80, run)) == "cable-b"
        assert on_host(two_hosts[1], interface_address) == ADDRESSES[1]  # that of the variable, now


def test_other_hosts_are_not_given_a_loopback_address(two_hosts, monkeypatch):
    monkeypatch.setenv(IFNAME, "lo")
    assert [on_host(name, lambda: this_host(ADDRESSES[0], 80)).address for name in two_hosts] == [*ADDRESSES]


def test_processes_of_one_network_namespace_share_a_host(two_hosts, monkeypatch):
    monkeypatch.delenv(IFNAME, raising=False)
    here = [on_host(name, lambda: this_host(ADDRESSES[0], 80)) for name in (*two_hosts, two_hosts[0])]
    hosts = Hosts(here, 1)
    assert [hosts.of_rank(rank) for rank in range(3)] == [0, 1, 0]
    assert [hosts.address(host) for host in range(len(hosts))] == list(ADDRESSES)
    assert (hosts.here, hosts.is_leader, hosts.leader(0)) == (1, True, 0)
    assert [hosts.of_server(index) for index in range(3)] == [0, 1, 0]
    assert len(set(hosts.names())) == 2  # though the hosts have the same name
