"""A real Ray of five nodes on this machine, four of them with four GPUs that are not there."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from berth.live import commands
from berth.live.backend import Launch, Member
from berth.live.backends.ray import RayBackend
from berth.live.controller import Controller
from berth.live.lifecycle import PLACED
from berth.live.setup import Setup
from berth.live.spec import JobSpec
from berth.live.store import Store

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# Works off its units, each written down once it is done, and goes on after the last one that is; past the
# fifth when it may.
WORKER = """
touch $RECORD
if grep -q finished $RECORD; then exit; fi
if [ $RANK != 0 ]; then until grep -q finished $RECORD; do sleep 0.5; done; exit; fi
done=$(grep -c unit $RECORD)
while [ $done -lt $UNITS ]; do
    sleep 0.1
    until [ $done -lt 5 ] || [ -e $MAY_GO_ON ]; do sleep 0.1; done
    echo "unit $done of $BERTH_ATTEMPT" >> $RECORD
    done=$((done + 1))
done
echo finished >> $RECORD
touch $BERTH_FOLDER/done
"""
QUICK_HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 20_000,  # a killed node refuses at once; a busy one answers late
    "health_check_failure_threshold": 3,
}
SMALL = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_log_monitor": False}
RACKS = {"m0": "r0", "m1": "r0", "m2": "r1", "m3": "r1"}


def until(condition, timeout=900.0):
    """Waits for what must come, and says so if it does not."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {timeout:.0f} s in vain"
        time.sleep(0.05)
    return found


class Racks:
    """The Ray under test."""

    def __init__(self):
        from ray._private import utils
        from ray.cluster_utils import Cluster

        # as if Ray were installed without its dashboard: agents on every node would take seconds to start
        utils.get_dashboard_dependency_error = lambda: ImportError("the dashboard is left out")
        self.ray = Cluster(
            initialize_head=True,
            head_node_args={
                **SMALL,
                "num_gpus": 0,
                "include_dashboard": False,
                "no_monitor": True,
                "_system_config": QUICK_HEALTH,
            },
        )
        self.nodes = {name: self.join(name, wait=False) for name in RACKS}
        self.ray.wait_for_nodes()
        self.address = self.ray.address

    def join(self, name, *, wait=True, gpus=4, device_type=None):
        labels = {"machine": name, "rack": RACKS.get(name, "others")}
        named = {f"accelerator_type:{device_type}": 1} if device_type else {}
        return self.ray.add_node(wait=wait, num_gpus=gpus, labels=labels, resources=named, **SMALL)

    def lose(self, name):
        self.ray.remove_node(self.nodes.pop(name), allow_graceful=False)

    def repair(self):
        for name in set(RACKS) - set(self.nodes):
            self.nodes[name] = self.join(name)


class Desk:
    """A controller that is cranked by hand."""

    def __init__(self, folder, address, policy="fifo"):
        self.folder = folder
        self.backend = RayBackend(folder / "attempts", address, answer_s=60.0)
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
        spec = JobSpec(run=run, gpus=gpus, **{"grace": "60s", **more})
        return self.ask(commands.submit(spec, "ada"))["job"]

    def work(self, name, gpus, units=15, gate="", **more):
        """A job that keeps a record of its own, and stops at half-way until the file `gate` is there."""
        folder = self.folder
        env = {"RECORD": str(folder / name), "UNITS": str(units), "MAY_GO_ON": str(folder / gate)}
        return self.submit(WORKER, gpus, name=name, env=env, **more)

    def until(self, condition, timeout=900.0):
        return until(lambda: self.controller.step() is not None and condition(), timeout)

    def until_over(self, *jobs):
        self.until(lambda: all(self.controller.store.ended_job(job) for job in jobs))
        assert [self.controller.store.ended_job(job)["state"] for job in jobs] == ["finished"] * len(jobs)

    def machines_of(self, job):
        """Where a job has its place, with how many devices on each machine."""
        found = self.controller.state.jobs.get(job)
        if found is None or found.state != PLACED:
            return {}
        machines = self.controller.state.cluster.machines
        seats = self.controller.state.attempts[found.token].seats
        return {machines[seat.machine].name: len(seat.devices) for seat in seats}

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def logs(self, job, attempt=1):
        token = self.controller.store.tokens_of(job)[attempt - 1]
        home = self.folder / "attempts" / "ended" / token
        return {path.name: path.read_text() for path in sorted(home.glob("rank-*.log"))}


def launch(token, script, *members, **more):
    """A gang: (machine, devices) of each process."""
    gang = tuple(Member(rank, 0, machine, devices) for rank, (machine, devices) in enumerate(members))
    argv = ("/bin/sh", "-c", script)
    return Launch(token, "j1", 1, "job", "ada", argv, gang, **{"grace_s": 5.0, **more})


def ended(backend, token):
    def look():
        seen = backend.observe().attempts.get(token)
        return seen if seen is not None and seen.state == "ended" else None

    return until(look)


def assert_worked_once(lines, units=15):
    """Every unit was done once, in order, and the end came once."""
    assert [line.split()[1] for line in lines[:-1]] == [str(unit) for unit in range(units)]
    assert lines[-1] == "finished"


def processes_of(token):
    """Processes of this machine that were started under a token, and live."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"BERTH_ATTEMPT_TOKEN={token}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def running_as(command):
    """Processes of this machine with this command line."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cmdline").read_bytes() == wanted:
                found.append(int(path.name))
    return found


def runner_of(pid):
    """The actor that holds the other end of a supervisor's lifeline."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"Runner" in (path / "cmdline").read_bytes() and pipes_of(path.name) & pipes_of(pid):
                return int(path.name)
    raise AssertionError(f"{pid} has no runner")


def pipes_of(pid):
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    return {link for link in links if link.startswith("pipe:")}


@contextlib.contextmanager
def another_driver(racks, namespace):
    """Another user of the same Ray."""
    import ray

    ray.init(address=racks.address, namespace=namespace, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()
