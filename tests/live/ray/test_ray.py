"""What berth asks of a real Ray, order by order."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from small_ray import another_driver, ended, launch, processes_of, runner_of, running_as, until

from berth.live.backend import BackendError, Forget, Stop
from berth.live.backends.ray import RayBackend

pytestmark = pytest.mark.slow


def test_a_token_that_is_launched_repeatedly_starts_once(backend, tmp_path):
    record = tmp_path / "record"
    order = launch("once", f"echo $RANK >> {record}; sleep 1", ("m0", (0,)), ("m1", (0,)))
    assert list(backend.apply([order, order])) == [order, order]
    backend.apply([order])
    assert ended(backend, "once").codes == (0, 0)
    backend.apply([order])
    assert backend.observe().attempts["once"].state == "ended"
    backend.apply([Forget("once")])
    assert "once" not in backend.observe().attempts
    backend.apply([order])  # a journal that lost the end asks for it again: it is shown, and nothing runs
    assert backend.observe().attempts["once"].codes == (0, 0)
    assert sorted(record.read_text().split()) == ["0", "1"]


def test_what_was_stopped_before_it_was_launched_never_starts(backend, tmp_path):
    record = tmp_path / "record"
    order = launch("never", f"echo here >> {record}", ("m0", (0,)))
    assert list(backend.apply([Stop("never", 1.0), order])) == [Stop("never", 1.0), order]
    marker = launch("after", "true", ("m0", (0,)))
    backend.apply([marker])
    ended(backend, "after")
    seen = backend.observe().attempts["never"]
    assert (seen.state, seen.stopped, seen.codes) == ("ended", True, ())
    assert not record.exists()


def test_a_gang_whose_devices_others_hold_gives_up_and_never_starts_late(backend, tmp_path):
    record = tmp_path / "record"
    holder = launch("holder", "sleep 600", ("m0", (0, 1, 2)))
    backend.apply([holder])
    until(lambda: backend.observe().attempts["holder"].state == "running")
    backend._start_s = 3.0
    backend.apply([launch("late", f"echo here >> {record}", ("m0", (0, 1)), ("m1", (0,)))])
    assert backend.observe().attempts["late"].state == "starting"
    seen = ended(backend, "late")
    assert (seen.codes, seen.lost) == ((), True)
    backend.apply([Stop("holder", 1.0)])
    assert ended(backend, "holder").stopped
    backend._start_s = 300.0
    backend.apply([launch("after", "true", ("m0", (0, 1)), ("m1", (0,)))])
    assert ended(backend, "after").codes == (0, 0)
    assert not record.exists()


def test_a_part_whose_runner_was_killed_ends_the_gang(backend, tmp_path):
    backend.apply([launch("torn", "setsid sleep 600 & sleep 600", ("m0", (0,)), ("m1", (0,)))])
    until(lambda: backend.observe().attempts["torn"].state == "running")
    # on each machine a shell and two that sleep, one of them out of its sight
    until(lambda: len(processes_of("torn")) == 6)
    ready = json.loads((tmp_path / "live" / "torn" / "part-1.ready").read_text())
    os.kill(runner_of(ready["pid"]), signal.SIGKILL)
    assert ended(backend, "torn").lost
    assert processes_of("torn") == []


def test_a_late_placement_group_is_removed_and_never_external(racks, backend):
    backend.apply([launch("gone", "true", ("m0", (0,)))])
    ended(backend, "gone")
    backend.apply([Forget("gone")])
    with another_driver(racks, "berth") as ray:
        pinned = [{"machine": "m0"}]
        late = ray.util.placement_group(
            [{"GPU": 3}], name="gone", lifetime="detached", bundle_label_selector=pinned
        )
        assert late.wait(300)
        theirs = ray.util.placement_group(
            [{"GPU": 1}], name="unknown", lifetime="detached", bundle_label_selector=pinned
        )
        assert theirs.wait(300)
        until(lambda: backend.observe().machines["m0"].external == 1)
        until(lambda: ray.util.placement_group_table(late)["state"] == "REMOVED")
        assert ray.util.placement_group_table(theirs)["state"] == "CREATED"
        ray.util.remove_placement_group(theirs)
    until(lambda: backend.observe().machines["m0"].external == 0)


def test_a_node_that_ray_drains_takes_no_jobs(racks, backend):
    from ray._raylet import GcsClient

    node = backend._nodes["m3"].id
    backend.apply([launch("stays", "sleep 600", ("m3", (0,)))])
    until(lambda: backend.observe().attempts["stays"].state == "running")
    in_an_hour = int((time.time() + 3600) * 1000)
    preempted = 2  # of Ray's two reasons the one that a node can't refuse
    accepted, why = GcsClient(address=racks.address).drain_node(node, preempted, "maintenance", in_an_hour)
    assert accepted, why
    until(lambda: backend.observe().machines["m3"].drained)
    assert [name for name, seen in backend.observe().machines.items() if seen.drained] == ["m3"]
    assert backend.observe().attempts["stays"].state == "running"
    backend.apply([Stop("stays", 1.0)])
    ended(backend, "stays")
    racks.lose("m3")


def test_processes_that_outlive_their_node_are_gone_before_the_attempt_is(racks, backend):
    stubborn = "[ $BERTH_MACHINE = m0 ] || trap '' TERM; while true; do sleep 0.1; done"
    backend.apply([launch("split", stubborn, ("m0", (0,)), ("m1", (0,)), grace_s=60.0)])
    backend.apply([launch("sole", stubborn, ("m1", (1,)), grace_s=60.0)])
    attempts = ("split", "sole")
    until(lambda: all(backend.observe().attempts[token].state == "running" for token in attempts))
    # Until its exit status is read, its workers take it for alive.
    raylet = racks.nodes["m1"].all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGKILL)
    until(lambda: not backend.observe().machines["m1"].up)
    for token in attempts:
        assert ended(backend, token).lost
        assert processes_of(token) == []
    racks.lose("m1")


@pytest.mark.parametrize("graceful", [False, True], ids=["killed", "removed"])
def test_nothing_of_an_attempt_outlives_its_end_also_what_left_its_parents(
    racks, backend, tmp_path, graceful
):
    mark = f"86{os.getpid() % 10_000_000}"
    hidden = f"env -i setsid sleep {mark} & trap 'exit 0' TERM; sleep 600 & wait"
    backend.apply([launch("lone", hidden, ("m2", (0,)), grace_s=60.0)])
    until(lambda: backend.observe().attempts["lone"].state == "running")
    until(lambda: running_as(f"sleep {mark}"))
    racks.ray.remove_node(racks.nodes.pop("m2"), allow_graceful=graceful)
    seen = ended(backend, "lone")
    assert (processes_of("lone"), running_as(f"sleep {mark}")) == ([], [])
    assert (seen.lost, seen.cause) == (True, "node-lost")
    assert not backend.observe().machines["m2"].up


def test_a_ray_that_does_not_answer_is_an_error_and_no_hang(racks, tmp_path):
    backend = RayBackend(tmp_path, racks.address, answer_s=60.0)
    backend.cluster()
    before = backend.observe()
    backend._agent._answer_s = 2.0
    gcs = racks.ray.head_node.all_processes["gcs_server"][0].process.pid
    os.kill(gcs, signal.SIGSTOP)
    try:
        with pytest.raises(BackendError, match="did not answer in time"):
            backend.observe()
        with pytest.raises(BackendError, match="connecting to Ray"):
            backend.observe()
        order = launch("dark", "true", ("m0", (0,)))
        assert list(backend.apply([order, Stop("dark", 1.0)])) == [Stop("dark", 1.0)]
    finally:
        os.kill(gcs, signal.SIGCONT)
        backend._agent._answer_s = 60.0

    def looked():
        try:
            return backend.observe()
        except BackendError:
            return None

    assert until(looked).machines.keys() == before.machines.keys()
    assert ended(backend, "dark").stopped
    backend.close()
