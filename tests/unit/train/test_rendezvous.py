"""The rank of a process, from the environment variables of any launcher."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from berth.errors import InputError
from berth.train import rendezvous
from berth.train.rendezvous import LISTENER, Joined, RankInfo, first_host, rank_from_environment, wait_for_all
from berth.train.servers.auth import SECRET_VARIABLE

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "node7", "MASTER_PORT": "29400"}
SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[03-07],cpu1",
    "SLURM_JOB_ID": "10012",
}
ON_ONE_OF_TWO = {  # srun --nodelist node2
    **SLURM,
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node2",
    "SLURM_STEP_NUM_NODES": "1",
}


@pytest.mark.parametrize(
    ("environment", "rank_info"),
    [
        ({}, None),
        (TORCHRUN, RankInfo(1, 3, "node7", 29400)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, RankInfo(0, 1)),
        (SLURM, RankInfo(2, 4, "gpu03", 29512)),
        ({**SLURM, "MASTER_PORT": "5000"}, RankInfo(2, 4, "gpu03", 5000)),
        ({**SLURM, "MASTER_ADDR": "10.0.0.3"}, RankInfo(2, 4, "10.0.0.3", 29512)),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "5"}, RankInfo(2, 4, "gpu03", 29512)),
        # names need not resolve
        ({**SLURM, "SLURM_STEP_NUM_NODES": "1"}, RankInfo(2, 4, "127.0.0.1", 29512)),
        ({**SLURM, "SLURM_JOB_NUM_NODES": "1"}, RankInfo(2, 4, "127.0.0.1", 29512)),
        ({**ON_ONE_OF_TWO, "MASTER_ADDR": "node1"}, RankInfo(2, 4, "127.0.0.1", 29512)),
        ({**ON_ONE_OF_TWO, "MASTER_ADDR": "node1.cluster"}, RankInfo(2, 4, "127.0.0.1", 29512)),
        ({**ON_ONE_OF_TWO, "MASTER_ADDR": "node2"}, RankInfo(2, 4, "node2", 29512)),
        (
            {**SLURM, "SLURM_JOB_NODELIST": "gpu[01-07],cpu1", "MASTER_ADDR": "gpu01"},
            RankInfo(2, 4, "gpu03", 29512),
        ),
        (
            {**SLURM, "SLURM_JOB_NODELIST": "gpu[03-09]", "MASTER_ADDR": "gpu03.x"},
            RankInfo(2, 4, "gpu03.x", 29512),
        ),
        ({**SLURM, **TORCHRUN}, RankInfo(1, 3, "node7", 29400)),
        ({**SLURM, "SLURM_NTASKS": "1"}, None),
    ],
)
def test_a_rank_is_read_from_the_variables_of_torchrun_or_slurm(environment, rank_info):
    assert rank_from_environment(environment) == rank_info


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "3"}, "rank 3 is out of range"),
        ({"RANK": "one"}, "RANK is 'one'"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR"),
    ],
)
def test_half_an_environment_is_refused(change, words):
    reported = {name: value for name, value in {**TORCHRUN, **change}.items() if value is not None}
    with pytest.raises(InputError, match=words):
        rank_from_environment(reported)


def test_a_seat_says_itself_in_the_words_it_is_read_from():
    rank_info = RankInfo(2, 5, "10.0.0.1", 4321)
    assert rank_from_environment(rank_info.environment()) == rank_info


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a1,b2", "a1"), ("gpu[03-07,9],cpu1", "gpu03"), ("rack-1-[10,12]", "rack-1-10")],
)
def test_the_first_of_slurms_nodes_is_where_all_meet(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize("is_inherited", [True, False])
def test_an_address_that_a_step_inherited_is_named_as_such(monkeypatch, is_inherited):
    elsewhere = "192.0.2.1"  # reserved for documentation, so no host has it
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("MASTER_ADDR", elsewhere if is_inherited else "other")
    with pytest.raises(InputError, match=r"rank 0 can't listen at 192\.0\.2\.1:29512") as error:
        wait_for_all(RankInfo(0, 2, elsewhere, 29512), ExitStack(), plain=False)
    assert ("unset MASTER_ADDR" in error.value.hint) == is_inherited
    said = []
    rendezvous._report_missing(RankInfo(1, 2, elsewhere, 29512), [0], time.monotonic(), said.append)
    source = ", which MASTER_ADDR sets," if is_inherited else ""
    assert said == [f"waiting: rank 0 of 2 did not join at 192.0.2.1:29512{source} within 0 s"]


def test_rank_0_listens_at_the_socket_that_the_launcher_holds(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        rank_info = RankInfo(0, 1, "127.0.0.1", listener.getsockname()[1])
        monkeypatch.setenv(LISTENER, str(os.dup(listener.fileno())))  # the store closes what it is given
        store = rendezvous._store(rank_info, is_master=True, wait_s=300)
        store.set("key", "value")
        assert rendezvous._store(rank_info, is_master=False, wait_s=300).get("key") == b"value"


@pytest.fixture
def agent_store(monkeypatch):
    """The key-value store of torchrun's agent, which outlives the workers."""
    wait = timedelta(seconds=60)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv(SECRET_VARIABLE, "5e" * 32)
    return store


def joined_by_all(port: int, order: list[int]) -> list[Joined]:
    """What each rank knows after they have joined, having arrived in an order."""
    arrived = {rank: ThreadPoolExecutor(1) for rank in order}
    futures = {}
    for rank, thread in arrived.items():
        info = RankInfo(rank, len(order), "127.0.0.1", port)
        futures[rank] = thread.submit(wait_for_all, info, ExitStack(), plain=False)
    return [futures[rank].result(timeout=60) for rank in sorted(order)]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_ranks_that_torchrun_restarts_agree_on_the_attempt_whatever_their_agents_count(
    agent_store, monkeypatch, order
):
    first = joined_by_all(agent_store.port, order)
    first[0].store.set("key", "of the first attempt")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")  # of an agent that only followed another one
    agent_store.set("berth arrived/1", "of a rank that was killed before it joined")
    second = joined_by_all(agent_store.port, order)
    assert [one.attempt for one in (*first, *second)] == [1, 1, 1, 2, 2, 2]
    assert not second[1].store.check(["key"])
    second[0].store.set("key", "of the second")
    assert {one.store.get("key") for one in second} == {b"of the second"}
    assert first[2].store.get("key") == b"of the first attempt"
