"""Jobs under berth under a real Ray: gangs, evictions, lost nodes and killed controllers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_ray import RACKS, another_driver, assert_worked_once, until

from berth.live import commands

pytestmark = pytest.mark.slow


def test_racks_and_machines_are_found_by_their_labels(desk):
    cluster = desk.controller.state.cluster
    assert [machine.name for machine in cluster.machines] == ["m0", "m1", "m2", "m3"]
    assert [machine.size for machine in cluster.machines] == [4, 4, 4, 4]
    assert [tier.name for tier in cluster.tiers] == ["machine", "rack", "network"]
    assert cluster.groups[1].tolist() == [0, 0, 1, 1]
    assert cluster.group_names[1] == ("r0", "r1")


def test_a_gang_over_two_nodes_meets_at_one_address_with_its_own_devices(desk):
    job = desk.submit(
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $GROUP_RANK $BERTH_MACHINE $CUDA_VISIBLE_DEVICES $MASTER_ADDR:$MASTER_PORT",
        6,
    )
    placed = desk.machines_of(job)
    assert sorted(placed.values()) == [2, 4]
    desk.until_over(job)
    said = [text.split() for text in desk.logs(job).values()]
    assert [(line[0], line[1]) for line in said] == [(str(rank), "6") for rank in range(6)]
    assert {line[4]: int(line[3]) for line in said} == {name: at for at, name in enumerate(placed)}
    for name, count in placed.items():
        mine = [line for line in said if line[4] == name]
        assert [line[2] for line in mine] == [str(local) for local in range(count)]
        assert len({line[5] for line in mine}) == count
    assert len({line[6] for line in said}) == 1


def test_a_gang_that_can_not_start_has_failed_by_its_own_fault(desk):
    job = desk.submit("true", 6, cwd="/no/such/folder", restarts=0)
    desk.until(lambda: desk.controller.store.ended_job(job))
    over = desk.controller.store.ended_job(job)
    assert (over["state"], over["code"], over["failures"]) == ("failed", 127, 1)


def test_devices_of_others_are_left_to_them(racks, desk):
    class Keeper:  # in here Ray takes it along whole, and need not import this file
        def devices(self):
            import ray

            return ",".join(ray.get_runtime_context().get_accelerator_ids()["GPU"])

    with another_driver(racks, "others") as ray:
        keeper = ray.remote(num_gpus=1, num_cpus=0)(Keeper)
        theirs = [keeper.options(label_selector={"machine": name}).remote() for name in ("m0", "m0", "m1")]
        taken = [ray.get(one.devices.remote(), timeout=900) for one in theirs]
        group = ray.util.placement_group([{"GPU": 2}], bundle_label_selector=[{"machine": "m3"}])
        assert group.wait(300)
        desk.until(lambda: desk.controller.state.external == [2, 1, 0, 2])
        enough = desk.folder / "enough"
        run = f"echo $BERTH_MACHINE $CUDA_VISIBLE_DEVICES; until [ -e {enough} ]; do sleep 0.1; done"
        job = desk.submit(run, 11)
        assert desk.machines_of(job) == {"m0": 2, "m1": 3, "m2": 4, "m3": 2}
        desk.until(lambda: desk.controller.state.attempts and first_attempt(desk).began is not None)
        assert desk.controller.state.external == [2, 1, 0, 2]
        enough.touch()
        desk.until_over(job)
        ours = [tuple(text.split()) for text in desk.logs(job).values()]
        assert len(set(ours)) == 11
        assert not {("m0", taken[0]), ("m0", taken[1]), ("m1", taken[2])} & set(ours)
    desk.until(lambda: desk.controller.state.external == [0, 0, 0, 0])


def first_attempt(desk):
    return next(iter(desk.controller.state.attempts.values()))


def test_an_evicted_job_saves_its_state_and_goes_on_elsewhere(open_desk, tmp_path):
    desk = open_desk(policy="srtf")
    record = tmp_path / "record"
    saves = f"""trap 'sleep 1; echo saved >> {record}; exit 0' TERM
        echo "began on $BERTH_MACHINE" >> {record}
        while ! grep -q urgent {record}; do sleep 0.1; done
        echo finished >> {record}"""
    long = desk.submit(saves, 1, duration="10h")
    desk.until(lambda: desk.lines("record"))
    (first,) = desk.machines_of(long)
    urgent = desk.submit(f"[ $RANK != 0 ] || echo urgent >> {record}; sleep 1", 16, duration="1s")
    assert desk.machines_of(long) == {}
    desk.ask(commands.drain(first))
    desk.until_over(urgent, long)
    *lines, last = desk.lines("record")
    assert lines[:3] == [f"began on {first}", "saved", "urgent"]
    assert lines[3:] != [f"began on {first}"]
    assert last == "finished"
    assert desk.controller.store.ended_job(long)["evictions"] == 1


def test_jobs_survive_the_loss_of_a_node_and_each_is_done_once(racks, desk):
    jobs = {
        name: desk.work(name, gpus, gate="go")
        for name, gpus in {"wide": 6, "near": 4, "small": 1, "two": 2}.items()
    }
    places = {name: desk.machines_of(job) for name, job in jobs.items()}
    assert all(places.values())
    desk.until(lambda: all(len(desk.lines(name)) > 2 for name in jobs))
    lost = next(iter(places["wide"]))
    racks.lose(lost)
    desk.until(lambda: not desk.machines_of(jobs["wide"]))
    (desk.folder / "go").touch()
    desk.until_over(*jobs.values())
    for name, job in jobs.items():
        assert_worked_once(desk.lines(name))
        hit = lost in places[name]
        attempts = {line.split()[-1] for line in desk.lines(name)[:-1]}
        assert attempts == ({"1", "2"} if hit else {"1"}), name
        assert desk.controller.store.ended_job(job)["failures"] == 0
    shut = [machine for machine, why in enumerate(desk.controller.state.unavailable) if why]
    assert [desk.controller.state.cluster.machines[at].name for at in shut] == [lost]
    racks.repair()
    desk.until(lambda: not any(desk.controller.state.unavailable))


def killed_when(desk, racks, condition):
    """Lets a controller of its own process work until then, and kills it."""
    script = Path(__file__).with_name("crank.py")
    crank = subprocess.Popen([sys.executable, str(script), str(desk.folder), racks.address])
    try:
        until(condition)
    finally:
        crank.kill()
        crank.wait()


def test_a_controller_that_is_killed_finds_everything_again(racks, open_desk):
    desk = open_desk()
    jobs = {name: desk.work(name, gpus) for name, gpus in {"wide": 7, "near": 4, "late": 8}.items()}
    desk.close()
    for progress in (1, 5):
        killed_when(desk, racks, lambda progress=progress: len(desk.lines("wide")) > progress)
    again = open_desk()
    again.until_over(*jobs.values())
    for name, job in jobs.items():
        assert_worked_once(again.lines(name))
        assert {line.split()[-1] for line in again.lines(name)[:-1]} == {"1"}
        assert again.controller.store.ended_job(job)["attempts"] == 1


def test_under_load_with_controllers_and_nodes_lost_every_job_is_done_once(racks, open_desk):
    desk = open_desk()
    gangs = [1, 6, 2, 4, 1, 8, 3, 2, 5, 1, 4, 2]
    jobs = {f"job{at}": desk.work(f"job{at}", gpus, units=10) for at, gpus in enumerate(gangs)}
    desk.close()

    def begun(count):
        return lambda: sum(bool(desk.lines(name)) for name in jobs) >= count

    killed_when(desk, racks, begun(2))
    racks.lose("m1")
    killed_when(desk, racks, begun(6))
    racks.repair()
    racks.lose("m2")
    again = open_desk()
    assert [machine.name for machine in again.controller.state.cluster.machines] == list(RACKS)
    again.until_over(*jobs.values())
    for name in jobs:
        assert_worked_once(again.lines(name), units=10)
    assert again.backend.observe().attempts == {}
