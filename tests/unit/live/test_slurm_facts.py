"""What Slurm says, in the words of several of its releases, and what berth makes of it."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess

import pytest

from berth.errors import InputError
from berth.live.backend import BackendError
from berth.live.backends.device_names import device_named
from berth.live.backends.slurm import SlurmBackend
from berth.live.backends.slurm_commands import Partition, SlurmCommands, Switch, expand_hosts, parse_switches
from berth.live.backends.slurm_discover import discover
from berth.live.backends.slurm_json import JsonObject, SlurmNode, parse_gpus, parse_job, parse_node
from berth.live.backends.slurm_submit import Part, RefusedError, Site, gres_of, headroom_by_node, submit
from berth.live.folder import Folder
from berth.live.server import make_backend


def node(
    name="n1", gpus="gpu:a100:8", used="", cpus=16, cpus_used=0, memory=64_000, memory_used=0
) -> SlurmNode:
    facts = {
        "name": name,
        "address": "",
        "gres": gpus,
        "gres_used": used,
        "cpus": cpus,
        "alloc_cpus": cpus_used,
    }
    rest = {"real_memory": memory, "alloc_memory": memory_used, "state": "mixed", "partitions": []}
    return parse_node(JsonObject(facts | rest))


def job(name="berth:t:0", on="n1", gpus=2, cpus=4, memory=16_000, state="RUNNING", **more):
    facts = {"job_id": 1, "name": name, "nodes": on, "tres_per_node": f"gres:gpu:{gpus}", "cpus": cpus}
    rest = {
        "user_id": 0,
        "flags": [],
        "state_reason": "",
        "required_nodes": "",
        "exit_code": 0,
        "end_time": 0,
    }
    return parse_job(JsonObject(rest | facts | {"memory_per_node": memory, "job_state": state} | more))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("a[1,3-4],b,c[2]-ib", ["a1", "a3", "a4", "b", "c2-ib"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
    ],
)
def test_lists_of_hosts(text, names):
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("gpu:8", [("", 8)]),
        ("gpu:a100:8(S:0-1)", [("a100", 8)]),
        ("gpu:2080ti:4(IDX:0-3),shard:16", [("2080ti", 4)]),
        ("gpu:a100:2,gpu:v100:1", [("a100", 2), ("v100", 1)]),
        ("gres:gpu:5", [("", 5)]),
        ("gres/gpu:a100=3", [("a100", 3)]),
        ("craynetwork:4", []),
    ],
)
def test_gpus(text, found):
    assert parse_gpus(text) == found


def test_a_job_that_is_completing_is_not_over_and_a_held_one_waits():
    assert not job(state=["COMPLETED", "COMPLETING"]).over
    assert job(state="NODE_FAIL").node_failed
    held = job(state="PENDING", state_reason="JobHeldUser")
    assert held.held
    assert not held.over
    assert not job(state="PENDING", state_reason="Resources").held


@pytest.mark.parametrize(
    "name", ["train", "berth", "berth:x", "berth:x:y", "berth:a/b:0", "xberth:a:0", "berth:a:0 "]
)
def test_only_names_that_berth_gives_are_its_own(name):
    assert job(name).ours is None


def test_what_narrows_the_view_in_the_environment_is_not_passed_on(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nenv\n")
    squeue.chmod(squeue.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("SLURM_CONF", "/somewhere")
    said = SlurmCommands().ask("squeue")
    assert "SQUEUE_STATES" not in said
    assert "SLURM_CONF=/somewhere" in said


def test_a_command_that_hangs_is_an_error_after_a_while():
    with pytest.raises(BackendError, match="sleep did not answer within"):
        SlurmCommands(timeout_s=0.01).ask("sleep", "10")


TREE = """
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=a[0-1]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=a[2-3]
SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=b[0-1]
SwitchName=spine1 Level=1 LinkSpeed=1 Nodes=a[0-3] Switches=leaf[1-2]
SwitchName=spine2 Level=1 LinkSpeed=1 Nodes=b[0-1] Switches=leaf3
"""


def test_switches_become_tiers_and_one_tier_joins_all():
    cluster = discover([node(name) for name in ("a0", "a1", "a2", "a3", "b0", "b1")], parse_switches(TREE))
    assert [tier.name for tier in cluster.tiers] == ["machine", "rack", "pod", "network"]
    assert cluster.group_names[1:] == (("leaf1", "leaf2", "leaf3"), ("spine1", "spine2"), ("slurm",))
    assert cluster.groups.tolist()[1:] == [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1], [0] * 6]


def test_a_node_without_a_switch_is_near_no_other_node():
    cluster = discover([node(name) for name in ("a", "b", "c", "d")], [Switch("s", 0, ("a", "b"))])
    assert cluster.groups[1].tolist() == [0, 0, 1, 2]
    assert cluster.groups[2].tolist() == [0] * 4


def test_without_a_topology_there_are_machines_and_a_network_and_that_is_said():
    cluster = discover([node("a", gpus="gpu:h100:8"), node("b", gpus="gpu:h100:8")], [])
    assert [tier.name for tier in cluster.tiers] == ["machine", "network"]
    assert cluster.notes == ("Slurm has no topology configured: all nodes are treated as equally distant",)


def test_nodes_without_gpus_are_left_out_unless_all_are():
    mixed = discover([node("a"), node("login", gpus="")], [])
    assert [machine.name for machine in mixed.machines] == ["a"]
    assert "1 node without a GPU: left out" in mixed.notes
    bare = discover([node("a", gpus=""), node("b", gpus="")], [])
    assert [machine.size for machine in bare.machines] == [1, 1]
    assert "no node has a GPU that Slurm counts: every node is one device" in bare.notes
    with pytest.raises(InputError, match="no node"):
        discover([], [])


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a100", "a100"),
        ("tesla_v100", "tesla_v100"),
        ("NVIDIA-A100", "NVIDIA-A100"),
        ("a100-80gb", "A100-80"),
        ("nvidia_a100-sxm4-40gb", "A100-40"),
        ("nvidia_h100_80gb_hbm3", "H100"),
        ("rtx_3090", "RTX-3090"),
        ("", "GPU"),
        ("abacus", "abacus"),
    ],
)
def test_types_of_gpus_are_those_of_the_catalogue_where_it_knows_them(written, name):
    assert device_named(written).name == name


def test_a_type_that_may_be_one_of_several_is_not_guessed_and_that_is_said():
    cluster = discover([node("a", gpus="gpu:a100:8")], [])
    (kind,) = cluster.device_types
    assert (kind.name, kind.memory_bytes, kind.flops) == ("a100", None, None)
    assert any("A100-40 or A100-80" in note for note in cluster.notes)


def test_the_gpus_of_others_are_what_is_used_and_not_ours():
    headrooms = headroom_by_node([node(used="gpu:a100:5(IDX:0-4)", cpus_used=7, memory_used=20_000)], [job()])
    assert headrooms["n1"].external == 3


def test_a_job_of_ours_that_has_just_ended_does_not_count_as_external(monkeypatch):
    monkeypatch.setattr("berth.live.backends.slurm_submit.time.time", lambda: 1000.0)
    used = node(used="gpu:a100:2", cpus_used=4, memory_used=16_000)
    assert headroom_by_node([used], [job(state="COMPLETED", end_time=995)])["n1"].external == 0
    assert headroom_by_node([used], [job(state="COMPLETED", end_time=900)])["n1"].external == 2


@pytest.mark.parametrize(
    ("facts", "external"),
    [
        ({}, 0),
        ({"cpus_used": 13}, 5),  # three cores are left, so three GPUs
        ({"memory_used": 62_000}, 7),  # and not two gigabytes
        ({"memory_used": 64_000}, 8),
        ({"gpus": "", "used": ""}, 0),
        ({"gpus": "", "used": "", "cpus_used": 1}, 1),
        ({"memory": 1, "memory_used": 0}, 0),  # memory that is not configured
    ],
)
def test_gpus_that_others_make_useless_count_as_theirs(facts, external):
    assert headroom_by_node([node(**facts)], [])["n1"].external == external


def test_a_part_asks_for_its_share_of_what_others_leave():
    headroom = headroom_by_node([node(used="gpu:a100:4", cpus_used=8, memory_used=32_000)], [])["n1"]
    assert headroom.take(1) == (2, 8_000)
    assert headroom.take(3) == (6, 24_000)
    assert headroom.take(1) == (1, 1)  # there is nothing left; Slurm has it wait
    assert headroom_by_node([node(memory=1)], [])["n1"].take(4) == (8, 0)
    assert headroom_by_node([node()], [])["n1"].take(1, memory_bytes=20_000 * 2**20) == (2, 20_000)


def test_gpus_are_asked_for_by_their_type():
    assert gres_of(node(gpus="gpu:a100:2,gpu:v100:2"), (1, 2, 3)) == "gpu:a100:1,gpu:v100:2"
    assert gres_of(node(gpus="gpu:4"), (0, 3)) == "gpu:2"
    assert gres_of(node(gpus=""), (0,)) == ""


def test_a_number_that_sbatch_does_not_give_may_have_been_given_all_the_same(tmp_path):
    class Chatty(SlurmCommands):
        def run(self, *argv, text=""):
            return subprocess.CompletedProcess(argv, 0, "Welcome to the cluster!\n", "")

    folder, part = Folder(tmp_path, "s-j1.1"), Part(0, "n1", (0,), 0)
    with pytest.raises(BackendError, match="Welcome") as error:
        submit(Chatty(), Site(tmp_path, "python"), folder, part, node(), headroom_by_node([node()], [])["n1"])
    assert not isinstance(error.value, RefusedError)


class Submitting(SlurmCommands):
    """sbatch as it answers, time after time, and a controller that answers a ping or does not."""

    def __init__(self, *codes: int, up: bool = True) -> None:
        super().__init__()
        self.codes, self.up, self.asked = list(codes), up, []

    def run(self, *argv, text=""):
        if argv[:2] == ("scontrol", "ping"):
            return subprocess.CompletedProcess(argv, 0 if self.up else 1, "", "")
        self.asked.append(argv)
        code = self.codes.pop(0)
        return subprocess.CompletedProcess(argv, code, "17\n", "sbatch: error: connect to contact timed out")


def submitted_by(commands, tmp_path, *options: str, max_time="UNLIMITED") -> int:
    site = Site(tmp_path, "python", options=options)
    headroom = headroom_by_node([node()], [])["n1"]
    folder, part = Folder(tmp_path, "s-j1.1"), Part(0, "n1", (0,), 0)
    return submit(commands, site, folder, part, node(), headroom, max_time=max_time)


def test_a_refusal_is_distinguished_from_a_slurm_controller_that_does_not_answer(tmp_path):
    with pytest.raises(BackendError) as error:
        submitted_by(Submitting(1, up=False), tmp_path)
    assert not isinstance(error.value, RefusedError)
    with pytest.raises(RefusedError):
        submitted_by(Submitting(1, 1), tmp_path)
    assert submitted_by(Submitting(1, 0), tmp_path) == 17  # for a moment only


def test_a_job_asks_for_the_longest_time_of_its_partition_unless_one_is_given(tmp_path, monkeypatch):
    def times(*options: str, max_time="UNLIMITED") -> list[str]:
        commands = Submitting(0)
        submitted_by(commands, tmp_path, *options, max_time=max_time)
        return [word for word in commands.asked[0] if "time" in word or word.startswith("-t")]

    assert times() == ["--time=UNLIMITED"]
    assert times(max_time="1-00:00:00") == ["--time=1-00:00:00"]
    assert times("--time=2:00:00") == ["--time=2:00:00"]
    assert times("-t", "60") == ["-t"]
    monkeypatch.setenv("SBATCH_TIMELIMIT", "30")
    assert times() == []


class PretendedCommands(SlurmCommands):
    """Answers as they were written down."""

    def __init__(self, *nodes: SlurmNode) -> None:
        super().__init__()
        self.listed = list(nodes)

    def nodes(self):
        return self.listed

    def switches(self):
        return []

    def partition(self, name):
        return Partition(name or "main")


def in_partition(name: str, partition: str) -> SlurmNode:
    return dataclasses.replace(node(name, gpus="gpu:8"), partitions=(partition,))


def test_only_nodes_of_the_partition_are_found(tmp_path, monkeypatch):
    commands = PretendedCommands(in_partition("a", "main"), in_partition("b", "other"))
    assert names_of(SlurmBackend(tmp_path, commands=commands)) == ["a"]
    assert names_of(SlurmBackend(tmp_path, partition="other", commands=commands)) == ["b"]
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    assert names_of(SlurmBackend(tmp_path, commands=commands)) == ["b"]


def test_a_discovered_cluster_is_discovered_again_and_a_described_one_is_not(tmp_path):
    commands = PretendedCommands(in_partition("a", "main"))
    found = SlurmBackend(tmp_path, commands=commands).cluster()
    commands.listed.append(in_partition("b", "main"))
    assert names_of(SlurmBackend(tmp_path, found, commands=commands)) == ["a", "b"]
    described = dataclasses.replace(found, name="mine")
    assert names_of(SlurmBackend(tmp_path, described, commands=commands)) == ["a"]


def test_a_machine_without_slurm_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="scontrol: "):
        make_backend("slurm", tmp_path, None, lambda: None).cluster()


def names_of(backend: SlurmBackend) -> list[str]:
    return [machine.name for machine in backend.cluster().machines]
