"""berth over a real Ray: five nodes on this machine, four of them with four GPUs that are not there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from berth.live import commands
from berth.live.backend import BackendError, Forget, Launch, Member, Stop
from berth.live.backends.ray import RayBackend
from berth.live.controller import Controller
from berth.live.job import PLACED
from berth.live.setup import Setup
from berth.live.spec import JobSpec
from berth.live.store import Store

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

# Works off its units, each written down once it is done, and goes on after the last one that is.
WORKER = """
touch $RECORD
if grep -q finished $RECORD; then exit; fi
if [ $RANK != 0 ]; then until grep -q finished $RECORD; do sleep 0.1; done; exit; fi
done=$(grep -c unit $RECORD)
while [ $done -lt $UNITS ]; do sleep 0.1; echo "unit $done of $BERTH_ATTEMPT" >> $RECORD; done=$((done + 1)); done
echo finished >> $RECORD
touch $BERTH_FOLDER/done
"""
QUICK_HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
SMALL = {"num_cpus": 1, "object_store_memory": 80_000_000}
RACKS = {"m0": "r0", "m1": "r0", "m2": "r1", "m3": "r1"}


def until(condition, timeout=60.0):
    """Waits for what must come, and says so if it does not."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {timeout:.0f} s in vain"
        time.sleep(0.05)
    return found


class Racks:
    """The Ray under test."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.ray = Cluster(
            initialize_head=True,
            head_node_args={
                **SMALL,
                "num_gpus": 0,
                "include_dashboard": False,
                "_system_config": QUICK_HEALTH,
            },
        )
        self.nodes = {name: self.join(name, wait=False) for name in RACKS}
        self.ray.wait_for_nodes()
        self.address = self.ray.address

    def join(self, name, *, wait=True):
        labels = {"machine": name, "rack": RACKS[name]}
        return self.ray.add_node(wait=wait, num_gpus=4, labels=labels, **SMALL)

    def lose(self, name):
        self.ray.remove_node(self.nodes.pop(name), allow_graceful=False)

    def mend(self):
        for name in set(RACKS) - set(self.nodes):
            self.nodes[name] = self.join(name)


class Desk:
    """A controller that is cranked by hand."""

    def __init__(self, folder, address, policy="fifo"):
        self.folder = folder
        self.backend = RayBackend(folder / "attempts", address, fence_s=2.0)
        store = Store(folder)
        setup = Setup(self.backend.cluster(), policy=policy, store=store.name)
        self.controller = Controller(store, self.backend, setup)
        self.open = True

    def close(self):
        if self.open:
            self.open = False
            self.controller.close()

    def ask(self, command):
        answer = self.controller.ask(command)
        self.controller.step()
        return answer.result(0)

    def submit(self, run, gpus, **more):
        spec = JobSpec(run=run, gpus=gpus, grace="10s", **more)
        return self.ask(commands.submit(spec, "ada"))["job"]

    def work(self, name, gpus, units=15, **more):
        """A job that keeps a record of its own."""
        env = {"RECORD": str(self.folder / name), "UNITS": str(units)}
        return self.submit(WORKER, gpus, name=name, env=env, **more)

    def until(self, condition, timeout=60.0):
        return until(lambda: self.controller.step() is not None and condition(), timeout)

    def until_over(self, *jobs, timeout=60.0):
        self.until(lambda: all(self.controller.store.over(job) for job in jobs), timeout)
        assert [self.controller.store.over(job)["state"] for job in jobs] == ["finished"] * len(jobs)

    def machines_of(self, job):
        """Where a job has its place, with how many devices on each machine."""
        found = self.controller.books.jobs.get(job)
        if found is None or found.state != PLACED:
            return {}
        machines = self.controller.books.cluster.machines
        seats = self.controller.books.attempts[found.token].seats
        return {machines[seat.machine].name: len(seat.devices) for seat in seats}

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def logs(self, job, attempt=1):
        store = self.controller.store.name
        home = self.folder / "attempts" / "ended" / f"{store}-{job}.{attempt}"
        return {path.name: path.read_text() for path in sorted(home.glob("rank-*.log"))}


@pytest.fixture(scope="module")
def racks():
    found = Racks()
    yield found
    import ray

    ray.shutdown()
    found.ray.shutdown()


@pytest.fixture
def open_desk(racks, tmp_path):
    racks.mend()
    desks = []

    def opened(**more):
        desks.append(Desk(tmp_path, racks.address, **more))
        return desks[-1]

    yield opened
    for desk in desks:
        desk.close()


@pytest.fixture
def desk(open_desk):
    return open_desk()


@pytest.fixture
def backend(racks, tmp_path):
    racks.mend()
    found = RayBackend(tmp_path, racks.address, start_s=5.0)
    found.cluster()
    found.observe()
    yield found
    found.close()


def launch(token, script, *members, **more):
    """A gang: (machine, devices) of each process."""
    gang = tuple(Member(rank, 0, machine, devices) for rank, (machine, devices) in enumerate(members))
    argv = ("/bin/sh", "-c", script)
    return Launch(token, "j1", 1, "job", "ada", argv, gang, **{"grace_s": 5.0, **more})


def ended(backend, token, timeout=60.0):
    def look():
        seen = backend.observe().attempts.get(token)
        return seen if seen is not None and seen.state == "ended" else None

    return until(look, timeout)


def assert_worked_once(lines, units=15):
    """Every unit was done once, in order, and the end came once."""
    assert [line.split()[1] for line in lines[:-1]] == [str(unit) for unit in range(units)]
    assert lines[-1] == "finished"


def test_racks_and_machines_are_found_by_their_labels(desk):
    cluster = desk.controller.books.cluster
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
    desk.until(lambda: desk.controller.store.over(job))
    over = desk.controller.store.over(job)
    assert (over["state"], over["code"], over["failures"]) == ("failed", 127, 1)


def test_a_token_is_launched_once_however_often_it_is_told(backend, tmp_path):
    record = tmp_path / "record"
    order = launch("once", f"echo $RANK >> {record}; sleep 1", ("m0", (0,)), ("m1", (0,)))
    assert list(backend.apply([order, order])) == [order, order]
    backend.apply([order])
    assert ended(backend, "once").codes == (0, 0)
    backend.apply([order])
    assert backend.observe().attempts["once"].state == "ended"
    backend.apply([Forget("once"), order])
    assert "once" not in backend.observe().attempts
    assert sorted(record.read_text().split()) == ["0", "1"]


def test_what_was_stopped_before_it_was_launched_never_starts(backend, tmp_path):
    record = tmp_path / "record"
    order = launch("never", f"echo here >> {record}", ("m0", (0,)))
    assert list(backend.apply([Stop("never", 1.0), order])) == [Stop("never", 1.0), order]
    marker = launch("after", "true", ("m0", (0,)))
    backend.apply([marker])
    ended(backend, "after")
    assert "never" not in backend.observe().attempts
    assert not record.exists()


def test_a_gang_whose_devices_others_hold_gives_up_and_never_starts_late(backend, tmp_path):
    record = tmp_path / "record"
    holder = launch("holder", "sleep 600", ("m0", (0, 1, 2)))
    backend.apply([holder])
    until(lambda: backend.observe().attempts["holder"].state == "running")
    backend.apply([launch("late", f"echo here >> {record}", ("m0", (0, 1)), ("m1", (0,)))])
    assert backend.observe().attempts["late"].state == "starting"
    seen = ended(backend, "late")
    assert (seen.codes, seen.lost) == ((), True)
    backend.apply([Stop("holder", 1.0)])
    assert ended(backend, "holder").stopped
    after = launch("after", "true", ("m0", (0, 1)), ("m1", (0,)))
    backend.apply([after])
    assert ended(backend, "after").codes == (0, 0)
    assert not record.exists()


def test_a_part_whose_runner_was_killed_is_buried_and_takes_the_others_with_it(backend, tmp_path):
    backend.apply([launch("torn", "setsid sleep 600 & sleep 600", ("m0", (0,)), ("m1", (0,)))])
    until(lambda: backend.observe().attempts["torn"].state == "running")
    assert (
        len(processes_of("torn")) == 6
    )  # on each machine a shell and two that sleep, one of them out of its sight
    ready = json.loads((tmp_path / "live" / "torn" / "part-1.ready").read_text())
    os.kill(parent_of(ready["pid"]), signal.SIGKILL)
    assert ended(backend, "torn").lost
    assert processes_of("torn") == []


def processes_of(token):
    """Processes of this machine that were started under a token, and live."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"BERTH_TOKEN={token}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def another_driver(racks, namespace):
    """Somebody who uses the same Ray."""
    import ray

    ray.init(address=racks.address, namespace=namespace, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


def test_a_placement_group_that_comes_after_its_end_is_removed_and_never_foreign(racks, backend):
    backend.apply([launch("gone", "true", ("m0", (0,)))])
    ended(backend, "gone")
    backend.apply([Forget("gone")])
    with another_driver(racks, "berth") as ray:
        pinned = [{"machine": "m0"}]
        late = ray.util.placement_group(
            [{"GPU": 3}], name="gone", lifetime="detached", bundle_label_selector=pinned
        )
        assert late.wait(30)
        theirs = ray.util.placement_group(
            [{"GPU": 1}], name="unknown", lifetime="detached", bundle_label_selector=pinned
        )
        assert theirs.wait(30)
        until(lambda: backend.observe().machines["m0"].foreign == 1)
        until(lambda: ray.util.placement_group_table(late)["state"] == "REMOVED")
        assert ray.util.placement_group_table(theirs)["state"] == "CREATED"
        ray.util.remove_placement_group(theirs)
    until(lambda: backend.observe().machines["m0"].foreign == 0)


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


def test_devices_of_others_are_left_to_them(racks, desk):
    with another_driver(racks, "others") as ray:
        keeper = ray.remote(num_gpus=1, num_cpus=0)(Keeper)
        theirs = [keeper.options(label_selector={"machine": name}).remote() for name in ("m0", "m0", "m1")]
        taken = [ray.get(one.devices.remote()) for one in theirs]
        group = ray.util.placement_group([{"GPU": 2}], bundle_label_selector=[{"machine": "m3"}])
        assert group.wait(30)
        desk.until(lambda: desk.controller.books.foreign == [2, 1, 0, 2])
        job = desk.submit("echo $BERTH_MACHINE $CUDA_VISIBLE_DEVICES; sleep 2", 11)
        assert desk.machines_of(job) == {"m0": 2, "m1": 3, "m2": 4, "m3": 2}
        desk.until(lambda: desk.controller.books.attempts and first_attempt(desk).began is not None)
        assert desk.controller.books.foreign == [2, 1, 0, 2]
        desk.until_over(job)
        ours = [tuple(text.split()) for text in desk.logs(job).values()]
        assert len(set(ours)) == 11
        assert not {("m0", taken[0]), ("m0", taken[1]), ("m1", taken[2])} & set(ours)
    desk.until(lambda: desk.controller.books.foreign == [0, 0, 0, 0])


def first_attempt(desk):
    return next(iter(desk.controller.books.attempts.values()))


class Keeper:
    """Somebody else's actor."""

    def devices(self):
        import ray

        return ",".join(ray.get_runtime_context().get_accelerator_ids()["GPU"])


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
    assert desk.controller.store.over(long)["evictions"] == 1


def test_processes_that_outlive_their_node_are_gone_before_the_attempt_is(racks, backend):
    stubborn = "[ $BERTH_MACHINE = m0 ] || trap '' TERM; while true; do sleep 0.1; done"
    backend.apply([launch("torn", stubborn, ("m0", (0,)), ("m1", (0,)), grace_s=60.0)])
    backend.apply([launch("sole", stubborn, ("m1", (1,)), grace_s=60.0)])
    attempts = ("torn", "sole")
    until(lambda: all(backend.observe().attempts[token].state == "running" for token in attempts))
    # As long as nobody asks how it died, its workers take it for alive.
    raylet = racks.nodes["m1"].all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGKILL)
    until(lambda: "m1" not in backend.observe().machines)
    for token in attempts:
        assert ended(backend, token).lost
        assert processes_of(token) == []
    racks.lose("m1")


def test_jobs_survive_the_loss_of_a_node_and_each_is_done_once(racks, desk):
    jobs = {
        name: desk.work(name, gpus) for name, gpus in {"wide": 6, "near": 4, "small": 1, "two": 2}.items()
    }
    places = {name: desk.machines_of(job) for name, job in jobs.items()}
    assert all(places.values())
    desk.until(lambda: all(len(desk.lines(name)) > 2 for name in jobs))
    lost = next(iter(places["wide"]))
    racks.lose(lost)
    desk.until_over(*jobs.values())
    for name, job in jobs.items():
        assert_worked_once(desk.lines(name))
        hit = lost in places[name]
        attempts = {line.split()[-1] for line in desk.lines(name)[:-1]}
        assert attempts == ({"1", "2"} if hit else {"1"}), name
        assert desk.controller.store.over(job)["failures"] == 0
    shut = [machine for machine, why in enumerate(desk.controller.books.shut) if why]
    assert [desk.controller.books.cluster.machines[at].name for at in shut] == [lost]
    racks.mend()
    desk.until(lambda: not any(desk.controller.books.shut))


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
        assert again.controller.store.over(job)["attempts"] == 1


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
    racks.mend()
    racks.lose("m2")
    again = open_desk()
    assert [machine.name for machine in again.controller.books.cluster.machines] == list(RACKS)
    again.until_over(*jobs.values(), timeout=120.0)
    for name in jobs:
        assert_worked_once(again.lines(name), units=10)
    assert again.backend.observe().attempts == {}


def test_a_ray_that_does_not_answer_is_an_error_and_no_hang(racks, tmp_path):
    backend = RayBackend(tmp_path, racks.address, answer_s=2.0)
    backend.cluster()
    before = backend.observe()
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

    def looked():
        try:
            return backend.observe()
        except BackendError:
            return None

    assert until(looked).machines.keys() == before.machines.keys()
    assert ended(backend, "dark").stopped
    backend.close()
