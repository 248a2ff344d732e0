"""Ray's nodes as machines, and a link that is never waited for longer than it may take. Needs no Ray."""

import pytest

from berth.errors import InputError
from berth.live.backend import BackendError
from berth.live.backends import ray_client
from berth.live.backends.ray import RayBackend
from berth.live.backends.ray_client import AgentClient
from berth.live.backends.ray_nodes import cluster_of, facts_of, node_of


def node(host, gpus=4, free=None, held=None, resources=None, **labels):
    """A node as Ray shows it."""
    return node_of(
        {
            "id": f"id-{host}",
            "address": "10.0.0.1",
            "host": host,
            "labels": {
                key.replace("__", "-").replace("ray_io_", "ray.io/"): value for key, value in labels.items()
            },
            "resources": {"GPU": gpus, "CPU": 16.0, **(resources or {})},
            "draining": False,
            "free": gpus if free is None else free,
            "held": held or {},
        }
    )


def cluster(*nodes):
    return cluster_of(one.facts for one in nodes)


def shape(found):
    """The names of the groups of each machine, nearest first."""
    return {
        machine.name: [found.group_names[level][group] for level, group in enumerate(found.groups[:, at])]
        for at, machine in enumerate(found.machines)
    }


def test_nodes_that_say_nothing_are_all_equally_far():
    found = cluster(node("b"), node("a"))
    assert [tier.name for tier in found.tiers] == ["machine", "network"]
    assert shape(found) == {"a": ["a", "ray"], "b": ["b", "ray"]}
    assert [kind.name for kind in found.device_types] == ["GPU"]


def test_machines_are_ordered_by_zone_and_rack():
    nodes = [node("x", machine=f"m{at}", rack=f"r{at // 6}") for at in (10, 2, 7, 1)]
    assert [machine.name for machine in cluster(*nodes).machines] == ["m1", "m2", "m7", "m10"]
    assert shape(cluster(*nodes)) == shape(cluster(*reversed(nodes)))


def test_equal_racks_in_unlike_zones_are_two_racks():
    found = cluster(
        node("a", rack="r1", zone="east"),
        node("b", rack="r1", zone="west"),
        node("c", rack="r2", zone="west"),
    )
    assert [tier.name for tier in found.tiers] == ["machine", "rack", "zone", "network"]
    assert shape(found) == {
        "a": ["a", "east/r1", "east", "ray"],
        "b": ["b", "west/r1", "west", "ray"],
        "c": ["c", "r2", "west", "ray"],
    }


def test_a_node_without_a_rack_is_near_no_other_and_a_rack_without_a_zone_stays_one_rack():
    found = cluster(node("a", rack="r1"), node("b", rack="r1"), node("c"), node("d", rack="r2", zone="east"))
    assert shape(found) == {
        "c": ["c", "c alone", "c alone alone", "ray"],
        "a": ["a", "r1", "r1 alone", "ray"],
        "b": ["b", "r1", "r1 alone", "ray"],
        "d": ["d", "r2", "east", "ray"],
    }


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"ray_io_accelerator__type": "A100"}, "A100"),  # with 40 or 80 GB: unknown
        ({"ray_io_accelerator__type": "A100-80G"}, "A100-80"),
        ({"ray_io_accelerator__type": "A100-40G"}, "A100-40"),
        ({"resources": {"accelerator_type:H100": 1.0}}, "H100"),
        ({"ray_io_accelerator__type": "MI9000"}, "MI9000"),
        ({}, "GPU"),
    ],
)
def test_devices_have_the_catalogues_name_where_it_knows_them(said, name):
    (kind,) = cluster(node("a", **said)).device_types
    assert kind.name == name


def test_unlike_devices_are_never_taken_for_one_type():
    found = cluster(node("a", ray_io_accelerator__type="MI9000"), node("b", gpus=8), node("c"))
    assert [kind.name for kind in found.device_types] == ["MI9000", "GPU"]
    assert [machine.devices for machine in found.machines] == [((0, 4),), ((1, 8),), ((1, 4),)]


@pytest.mark.parametrize(
    ("free", "held", "external"),
    [
        (4, {}, 0),
        (1, {}, 3),
        (1, {"ours": 3.0}, 0),
        (0, {"ours": 3.0, "theirs": 1.0}, 1),
        (3.5, {}, 1),  # half a device of others is a device we can't have
        (2.0000001, {"ours": 2.0}, 0),
    ],
)
def test_devices_that_are_neither_free_nor_ours_are_external(free, held, external):
    assert node("a", free=free, held=held).external(["ours", "gone"]) == external


def test_what_is_known_of_a_machine_can_be_written_down():
    facts = node("a", rack="r1", zone="east").facts
    assert facts_of(facts.plain()) == facts


def test_two_nodes_of_one_name_are_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"two nodes .* 'vm'[\s\S]*machine="):
        cluster(node("vm"), node("vm"))


def test_a_ray_without_devices_is_refused():
    with pytest.raises(InputError, match="no node of the Ray cluster has GPUs"):
        cluster()


def test_without_ray_the_error_names_the_package_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("berth.extras.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"berth-ml\[ray\]"):
        RayBackend(tmp_path)


ECHO = """
import json, sys
print(json.dumps({"answer": None}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "look": print(json.dumps({"answer": asked}), flush=True)
    elif asked["do"] == "fail": print(json.dumps({"error": "ValueError: no"}), flush=True)
    elif asked["do"] == "end": break
"""


@pytest.fixture
def link(monkeypatch, tmp_path):
    """A connection with prepared answers."""
    agent = tmp_path / "agent.py"
    agent.write_text(ECHO)
    monkeypatch.setattr(ray_client, "AGENT", agent)
    found = AgentClient("here", tmp_path / "log", connect_s=300.0, answer_s=300.0)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("do", "error"), [("hang", "did not answer in time"), ("fail", "ValueError: no"), ("end", "has ended")]
)
def test_after_an_answer_that_does_not_come_the_next_question_goes_to_a_new_process(link, do, error):
    assert link.ask("look", patient=True, token="a") == {"do": "look", "token": "a"}
    if do == "hang":
        link._answer_s = 0.2
    with pytest.raises(BackendError, match=error):
        link.ask(do)
    link._answer_s = 300.0
    assert link.ask("look", patient=True) == {"do": "look"}


def test_a_connection_is_made_without_blocking(monkeypatch, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr(ray_client, "AGENT", agent)
    link = AgentClient("here", tmp_path / "log", connect_s=300.0)
    with pytest.raises(BackendError, match="connecting to Ray at here"):
        link.ask("look")
    link._connect_s = 0.0
    with pytest.raises(BackendError, match="can't be reached"):
        link.ask("look")
    link.close()
