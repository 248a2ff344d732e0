"""How fast the live controller is: passes over a long queue, durable submissions, restarts, real short jobs.

    python benchmarks/live.py [--jobs 10000] [--journal 100000] [--real 500]

The engine is in memory for all but the last part, so that only berth is measured; HTTP, SQLite, the sync of every
commit and the processes of the last part are real. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from berth.clock import MachineClock, ManualClock
from berth.cluster.load import load_cluster
from berth.live import commands
from berth.live.controller import Controller
from berth.live.setup import Setup
from berth.live.spec import JobSpec
from berth.live.store import Store
from berth.testing.memory import MemoryBackend
from berth.testing.up import Up, until
from results import Figure, figure, finish, options, progress

CLUSTER = "40x25x8:V100-16"
SIZES = (1, 1, 2, 2, 4, 8, 8, 16, 32)
CLIENTS = 16
TITLE, BARE = "The controller", "the same processes without berth, 8 at a time"


def spec(random: Random) -> JobSpec:
    """A job whose size and length are drawn."""
    seconds = random.randrange(60, 36_000)
    facts: dict[str, Any] = {
        "run": "work",
        "name": f"n{random.randrange(20)}",
        "gpus": random.choice(SIZES),
        "duration": f"{seconds}s",
        "env": {"SECONDS": str(seconds)},
    }
    return JobSpec(**facts)


def passes(folder: Path, jobs: int, rounds: int = 300) -> list[Figure]:
    """A long queue on a large cluster: every round some jobs end, some come, and a pass is made."""
    random, clock = Random(1), ManualClock()
    cluster = load_cluster(CLUSTER)
    store = Store(folder)
    setup = Setup(cluster, store=store.name)
    controller = Controller(store, MemoryBackend(cluster, clock), setup, clock)
    running = cluster.devices // 2  # about; so that at least `jobs` wait
    for _ in range(jobs + running):
        controller.ask(commands.submit(spec(random), "me"))
    controller.step()
    took, whole = [], []
    for _ in range(rounds):
        clock.advance(20.0)
        while len(controller.state.jobs) < jobs + running:
            controller.ask(commands.submit(spec(random), "me"))
            if len(controller._requests) >= 200:
                break
        began, made = time.perf_counter(), controller.passes
        controller.step()
        whole.append(1000 * (time.perf_counter() - began))
        if controller.passes > made:  # nothing may have happened that asks for one
            took.append(1000 * controller.pass_s)
    state = controller.state.world.state[0]
    waiting = int(state["queue_stop"] - state["queue_start"])
    controller.close()
    what = f"pass, {waiting:,} waiting on {cluster.devices:,} devices"
    return [
        figure(TITLE, what, "ms", took, at_most={"p99": 100.0}),
        figure(TITLE, "whole step with its commit", "ms", whole),
    ]


def client(address: tuple[str, int], token: str, count: int, done: Any) -> None:
    """Submits one job after another over one connection; each waits for its answer."""
    random = Random(os.getpid())
    connection = http.client.HTTPConnection(*address, timeout=120)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    took = []
    for _ in range(count):
        body = json.dumps({"spec": spec(random).to_dict()})
        began = time.perf_counter()
        connection.request("POST", "/api/v1/jobs", body, headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 201, response.status
        took.append(time.perf_counter() - began)
    done.put(took)


def submissions(folder: Path, count: int) -> list[Figure]:
    """Durable submissions over HTTP, from clients in processes of their own."""
    import uvicorn

    from berth.live.api.app import make_app
    from berth.live.api.service import Service
    from berth.live.api.tokens import Tokens

    cluster = load_cluster(CLUSTER)
    store = Store(folder)
    controller = Controller(store, MemoryBackend(cluster, MachineClock()), Setup(cluster, store=store.name))
    tokens = Tokens(folder)
    token = tokens.add("bench", "admin")
    app = make_app(Service(controller, tokens, folder))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False))
    over = threading.Event()
    threads = [
        threading.Thread(target=controller.run, args=(over,), daemon=True),
        threading.Thread(target=server.run, daemon=True),
    ]
    for thread in threads:
        thread.start()
    until(lambda: server.started)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    address = (str(host), int(port))
    single = _hammer(address, token, count)
    began = time.perf_counter()
    body = json.dumps({"jobs": [{"spec": spec(Random(n)).to_dict()} for n in range(2_000)]})
    connection = http.client.HTTPConnection(*address, timeout=120)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", "/api/v1/jobs/batch", body, headers)
    answers = json.loads(connection.getresponse().read())["jobs"]
    batch_s = time.perf_counter() - began
    assert all("job" in answer for answer in answers)
    server.should_exit = True
    over.set()
    controller.wakeup.set()
    for thread in threads:
        thread.join()
    taken = controller.state.submitted
    controller.close()
    assert taken == count // CLIENTS * CLIENTS + 2_000
    return [*single, figure(TITLE, "submissions in one batch call", "/s", [2_000 / batch_s])]


def _hammer(address: tuple[str, int], token: str, count: int) -> list[Figure]:
    context = multiprocessing.get_context("fork")
    done = context.Queue()
    people = [
        context.Process(target=client, args=(address, token, count // CLIENTS, done)) for _ in range(CLIENTS)
    ]
    began = time.perf_counter()
    for one in people:
        one.start()
    took = [value for _ in people for value in done.get()]
    wall_s = time.perf_counter() - began
    for one in people:
        one.join()
    what = f"durable submissions over HTTP, {CLIENTS} clients"
    each_ms = [1000 * value for value in took]
    return [
        figure(TITLE, what, "/s", [len(took) / wall_s], at_least={"median": 500.0}),
        figure(TITLE, "answer to one of them", "ms", each_ms),
    ]


def restart(folder: Path, jobs: int) -> list[Figure]:
    """Restart of a killed controller with a journal of many jobs, most of them ended."""
    random, clock = Random(2), ManualClock()
    cluster = load_cluster(CLUSTER)
    store = Store(folder)
    setup = Setup(cluster, store=store.name)
    controller = Controller(store, MemoryBackend(cluster, clock), setup, clock)
    sent = 0
    while sent < jobs or len(controller.state.jobs) > 10_000:
        for _ in range(min(1_000, jobs - sent)):
            short = JobSpec(run="work", gpus=random.choice((1, 2, 4)), env={"SECONDS": "50"})
            controller.ask(commands.submit(short, "me"))
            sent += 1
        clock.advance(30.0)
        controller.step()
    records = store.seq
    active = len(controller.state.jobs)
    store.close()  # and not the controller: as if it had been killed
    took = []
    for _ in range(3):
        began = time.perf_counter()
        store = Store(folder)
        Controller(store, MemoryBackend(cluster, clock), setup, clock)
        took.append(time.perf_counter() - began)
        store.close()
    what, note = f"restart from a journal of {jobs:,} jobs", f"{records:,} records, {active:,} jobs not over"
    return [figure(TITLE, what, "s", took, at_most={"median": 3.0}, note=note)]


def real_jobs(folder: Path, count: int) -> list[Figure]:
    """Short jobs as real processes of this machine, beside the same processes started without berth."""
    began = time.perf_counter()
    for _ in range(0, count, 8):
        people = [subprocess.Popen(["/bin/true"]) for _ in range(8)]
        for one in people:
            one.wait()
    bare_s = time.perf_counter() - began
    live = Up(folder, "--cluster", "1x1x8", "--policy", "fifo").start()
    began = time.perf_counter()
    body = {"jobs": [{"spec": {"run": ["/bin/true"]}} for _ in range(count)]}
    live.client.post("jobs", "batch", body=body)
    until(lambda: not live.client.get("status")["queued"] and not live.client.get("status")["placed"], 600)
    wall_s = time.perf_counter() - began
    over = live.client.get("jobs", over="true", limit=count)["jobs"]
    assert len(over) == count
    assert all(row["state"] == "finished" for row in over)
    live.stop()
    return [
        figure(TITLE, f"{count} real short jobs on this machine", "ms each", [1000 * wall_s / count]),
        figure(TITLE, BARE, "ms each", [1000 * bare_s / count]),
        figure(TITLE, "real short jobs", "x", [wall_s / bare_s], beside=BARE),
    ]


def main() -> int:
    """Runs all parts and says which bars are met."""
    parser = options(__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--submissions", type=int, default=4_000)
    parser.add_argument("--journal", type=int, default=100_000)
    parser.add_argument("--real", type=int, default=500)
    given = parser.parse_args()
    found: list[Figure] = []
    root = Path(tempfile.mkdtemp(prefix="berth-bench-live-"))
    parts: list[tuple[Callable[[Path, int], list[Figure]], int]] = [
        (submissions, given.submissions),
        (passes, given.jobs),
        (restart, given.journal),
        (real_jobs, given.real),
    ]
    try:
        for part, count in parts:
            progress(part.__name__.replace("_", " "))
            found += part(root / part.__name__, count)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    found.append(figure(TITLE, "memory of this process, at most", "MB", [rss], at_most={"median": 500.0}))
    return finish("live", found, given.results)


if __name__ == "__main__":
    sys.exit(main())
