"""Slurm's JSON in the shapes of five releases: the same cluster, written down in each of them, reads the same."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from berth.live.backend import BackendError
from berth.live.backends.slurm_commands import SlurmCommands
from berth.live.backends.slurm_json import JsonObject, SlurmNode, parse_job, parse_list, parse_node

SHAPES = Path(__file__).parent / "slurm_json"
RELEASES = ("22.05", "23.02", "23.11", "24.05", "24.11")

GPU, ALL = ("gpu", "all"), ("all",)
NODES = [
    SlurmNode("g01", "10.0.0.1", frozenset({"MIXED"}), GPU, (("a100", 8),), 3, 64, 24, 512_000, 192_000),
    SlurmNode(
        *(
            "g02",
            "10.0.0.2",
            frozenset({"IDLE", "DRAIN"}),
            GPU,
            (("h100", 4), ("a30", 2)),
            0,
            128,
            0,
            1_031_000,
            0,
        )
    ),
    SlurmNode(
        *("g03", "g03", frozenset({"DOWN", "NOT_RESPONDING"}), ("gpu",), (("", 8),), 0, 64, 0, 512_000, 0)
    ),
    SlurmNode("login", "10.0.0.9", frozenset({"IDLE"}), ALL, (), 0, 8, 0, 16_000, 0),
]
# number, user, states without COMPLETING, reason, node, GPUs, cores, MiB, code, end
JOBS = [
    (101, 1000, {"RUNNING"}, "None", "g01", 3, 24, 192_000, 0, 1_700_003_600),
    (102, 1000, {"PENDING"}, "JobHeldUser", "g02", 2, 16, 64_000, 0, 0),
    (103, 1000, set(), "None", "g01", 1, 8, 64_000, 0, 1_700_000_100),
    (104, 1000, {"FAILED"}, "NonZeroExitCode", "g01", 1, 8, 64_000, 3, 1_700_000_200),
    (105, 1000, {"TIMEOUT"}, "TimeLimit", "g01", 1, 8, 64_000, 128 + 15, 1_700_000_300),
    (106, 1000, {"CANCELLED"}, "None", "g01", 1, 8, 64_000, 128 + 9, 1_700_000_400),
    (107, 1000, {"NODE_FAIL"}, "NodeDown", "g03", 8, 64, 512_000, 0, 1_700_000_500),
    (108, 1001, {"RUNNING"}, "None", "g01", 1, 8, 64_000, 0, 1_700_003_700),
]


def answer(release: str, what: str) -> str:
    return (SHAPES / release / f"{what}.json").read_text()


@pytest.fixture(params=RELEASES)
def release(request) -> str:
    return request.param


@pytest.fixture
def commands(release, tmp_path, monkeypatch) -> SlurmCommands:
    """Commands that answer as those of a release do, and know the options that it knows."""
    number = json.loads(answer(release, "jobs"))["meta"]
    version = (number.get("slurm") or number.get("Slurm"))["release"]
    by_sinfo = release == "22.05"
    summary = json.dumps({"meta": number, "errors": [], "sinfo": [{"nodes": {"total": 4}}]})
    (tmp_path / "summary").write_text(summary)
    nodes, jobs = (SHAPES / release / f"{what}.json" for what in ("nodes", "jobs"))
    _program(tmp_path / "sinfo", f"exec cat {nodes if by_sinfo else tmp_path / 'summary'}")
    refuse = (
        'case "$*" in *--json*) echo "scontrol: unrecognized option" >&2; exit 1;; esac' if by_sinfo else ""
    )
    _program(
        tmp_path / "scontrol",
        f"case $1 in --version) echo slurm-wlm {version}; exit;; esac\n{refuse}\nexec cat {nodes}",
    )
    _program(tmp_path / "squeue", f'echo "$@" > {tmp_path}/asked; exec cat {jobs}')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    return SlurmCommands()


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_nodes_read_the_same_in_every_release(commands):
    assert commands.nodes() == NODES


def test_jobs_read_the_same_in_every_release(release):
    jobs = [parse_job(facts) for facts in parse_list(answer(release, "jobs"), "jobs", "squeue")]
    for job, (number, user, states, reason, node, gpus, cpus, memory, code, ended) in zip(
        jobs, JOBS, strict=True
    ):
        assert (job.id, job.user_id, job.reason, job.node) == (number, user, reason, node)
        assert job.states - {"COMPLETING", "COMPLETED"} == states
        assert (job.gpus, job.cpus, job.memory_mib) == (gpus, cpus, memory)
        assert (job.code, job.ended) == (code, ended)
        assert job.over == (number in (104, 105, 106, 107))
    assert [job.id for job in jobs if job.held] == [102]
    assert [job.id for job in jobs if job.node_failed] == [107]
    assert jobs[0].ours == jobs[7].ours == ("s-j1.1", 0)


def test_jobs_of_another_user_are_not_ours_whatever_their_name(commands, tmp_path):
    assert [job.id for job in commands.jobs()] == [101, 102, 103, 104, 105, 106, 107]
    assert "--me" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("what", ["nodes", "jobs"])
def test_a_fact_that_is_missing_or_written_otherwise_is_named_with_the_release(release, what):
    read, keys = {
        "nodes": (
            parse_node,
            ("name", "state", "gres", "gres_used", "cpus", "alloc_cpus", "alloc_memory", "partitions"),
        ),
        "jobs": (
            parse_job,
            ("job_id", "name", "user_id", "job_state", "nodes", "cpus", "exit_code", "end_time"),
        ),
    }[what]
    for key in keys:
        document = json.loads(answer(release, what))
        document[what][1][key] = {"value": {"of": 1}}
        _assert_named(document, what, read, release, key)
        del document[what][1][key]
        _assert_named(document, what, read, release, key)


def _assert_named(document, what, read, release, key):
    with pytest.raises(BackendError) as error:
        list(map(read, parse_list(json.dumps(document), what, "squeue")))
    assert f"Slurm {release}" in str(error.value)
    assert f"{what}[1]" in str(error.value)
    assert key in str(error.value)


def test_a_list_under_another_key_is_named_with_the_release():
    document = {"meta": {"slurm": {"release": "26.05.1"}}, "errors": [], "node_list": []}
    with pytest.raises(
        BackendError, match=r"scontrol \(Slurm 26\.05\.1\): no list 'nodes', only errors, meta, node_list"
    ):
        parse_list(json.dumps(document), "nodes", "scontrol")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (
            '{"errors": [{"description": "no controller", "error_number": 1}], "jobs": []}',
            r"no controller \(error 1\)",
        ),
        (
            '{"errors": [{"error": "Unspecified error", "errno": -1}], "jobs": []}',
            r"Unspecified error \(error -1\)",
        ),
        ('{"errors": []}', "no list 'jobs'"),
        ("slurm_load_jobs error", "invalid JSON"),
        ("[]", "not an object"),
    ],
)
def test_an_answer_with_an_error_is_an_error_and_no_empty_list(answer, what):
    with pytest.raises(BackendError, match=what):
        parse_list(answer, "jobs", "squeue")


@pytest.mark.parametrize(
    ("said", "version"),
    [("slurm-wlm 22.05.8", (22, 5)), ("slurm 23.02.7", (23, 2)), ("slurm 24.11.0-0rc2", (24, 11))],
)
def test_the_release_is_read_from_what_the_commands_say(said, version, monkeypatch):
    monkeypatch.setattr(SlurmCommands, "ask", lambda *_: said)
    assert SlurmCommands().version == version


def test_a_release_that_can_not_be_read_is_an_error(monkeypatch):
    monkeypatch.setattr(SlurmCommands, "ask", lambda *_: "slurm latest")
    with pytest.raises(BackendError, match="slurm latest"):
        _ = SlurmCommands().version


def test_a_limit_that_is_infinite_or_not_set_counts_nothing():
    numbers = {
        "cpus": {"set": False, "infinite": False, "number": 7},
        "end": {"set": True, "infinite": True, "number": 9},
    }
    assert (JsonObject(numbers).number("cpus"), JsonObject(numbers).number("end")) == (0, 0)


def test_a_node_of_22_05_keeps_its_flags_apart():
    assert replace(NODES[1], states=frozenset()) != NODES[1]
    facts = json.loads(answer("22.05", "nodes"))["nodes"][1]
    assert (facts["state"], facts["state_flags"]) == ("idle", ["DRAIN"])
    assert parse_node(JsonObject(facts)).states == {"IDLE", "DRAIN"}
