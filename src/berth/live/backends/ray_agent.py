"""The agent process, which talks to Ray for the controller: requests and answers are lines of JSON.

    python -P ray_agent.py ADDRESS

Ray ends a driver whose cluster does not answer, and some of its calls block indefinitely. The controller ends this
process on a timeout and starts another. It exits when its input is closed. Everything it creates in Ray is detached,
has a name, and is found again by that name.

The file needs only ray and the standard library, so that machines need no berth to run what it sends them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import subprocess
import sys
import threading
from typing import Any

import ray
from ray._private import state as ray_state
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

NAMESPACE = "berth"
_BUNDLE = re.compile(r"bundle_group_(\d+)_([0-9a-f]+)")
# Detaches the supervisor from the worker: Ray kills a worker's children, and the supervisor acts when it ends.
_DETACH = """
import os, sys
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv[1:]])
"""


class Runner:
    """Keeps the supervisor of one part of a gang, on one machine, and exits with it.

    Two pipes connect them, and nothing is written to either. The supervisor reads end of file from one when this
    process has exited, and kills the part. This process reads end of file from the other when the supervisor has.
    """

    def __init__(self, supervise: str, folder: str, machine: str) -> None:
        given = ",".join(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))
        lifeline, self._hold = os.pipe()
        self._ended, alive = os.pipe()
        options = ["-I", "-S", "-c", _DETACH, supervise, folder, machine, given, str(lifeline)]
        with open(os.path.join(folder, "supervisor.log"), "ab") as log:
            subprocess.run(
                [sys.executable, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                cwd="/",
                pass_fds=(lifeline, alive),
                check=True,
            )
        os.close(lifeline)
        os.close(alive)
        threading.Thread(target=self._end_with_it, daemon=True).start()

    def _end_with_it(self) -> None:
        os.read(self._ended, 1)
        os._exit(0)


class Agent:
    """Handles requests; each method is one."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[str, dict[int, float]]] = {}  # by id: name, GPUs of each bundle

    def look(self) -> dict[str, Any]:
        """Return live nodes, machines of dead nodes, and the names of live runners."""
        free, draining = ray_state.available_resources_per_node(), ray_state.state.get_draining_nodes()
        nodes = [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "host": node["NodeManagerHostname"],
                "labels": node["Labels"],
                "resources": node["Resources"],
                "draining": node["NodeID"] in draining,
                "free": free[node["NodeID"]].get("GPU", 0.0),
                "held": self._held(free[node["NodeID"]]),
            }
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] in free
        ]
        dead = [
            node["Labels"].get("machine") or node["NodeManagerHostname"]
            for node in ray.nodes()
            if not node["Alive"]
        ]
        return {"nodes": nodes, "dead": dead, "runners": ray.util.list_named_actors()}

    def _held(self, free: dict[str, float]) -> dict[str, float]:
        """GPUs of a node by the placement group that holds them, from the node's free resources."""
        held: dict[str, float] = {}
        for name in free:
            if found := _BUNDLE.fullmatch(name):
                group, bundles = self._group(found[2])
                held[group] = held.get(group, 0.0) + bundles.get(int(found[1]), 0.0)
        return held

    def _group(self, number: str) -> tuple[str, dict[int, float]]:
        if number not in self._groups:
            table = ray_state.state.placement_group_table(ray.PlacementGroupID(bytes.fromhex(number)))
            bundles = {int(at): float(of.get("GPU", 0.0)) for at, of in table.get("bundles", {}).items()}
            self._groups[number] = (table.get("name", ""), bundles)
        return self._groups[number]

    def start(
        self, token: str, supervise: str, folder: str, parts: list[dict[str, Any]], missing: list[int]
    ) -> None:
        """Create a placement group with a bundle per part, and start the missing runners in it.

        A runner for a part that has `begun` before only records its end, which needs its node but no devices.
        """
        runner = ray.remote(max_restarts=0, num_cpus=0)(Runner)
        group = _find(token)
        if group is None and not all(parts[at]["begun"] for at in missing):
            group = _place(token, parts)
        for at in missing:
            part = parts[at]
            options: dict[str, Any] = {"name": part["runner"], "lifetime": "detached", "get_if_exists": True}
            if part["begun"]:
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(part["node"], soft=False)
            elif group is not None:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, at)
                options["num_gpus"] = part["gpus"]
            runner.options(**options).remote(supervise, folder, part["machine"])

    def end(self, token: str, runners: list[str]) -> None:
        """Remove the runners and the placement group of a gang."""
        for name in runners:
            with contextlib.suppress(ValueError):  # it has already exited
                ray.kill(ray.get_actor(name))
        if (group := _find(token)) is not None:
            remove_placement_group(group)


def _find(token: str) -> PlacementGroup | None:
    try:
        return ray.util.get_placement_group(token)
    except ValueError:
        return None


def _place(token: str, parts: list[dict[str, Any]]) -> PlacementGroup:
    return placement_group(
        [{"GPU": part["gpus"]} for part in parts],
        name=token,
        lifetime="detached",
        bundle_label_selector=[{"ray.io/node-id": part["node"]} for part in parts],
    )


def main(address: str) -> None:
    """Answer requests until the input is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints goes to stderr
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    request: dict[str, Any] = {"do": "connect"}
    agent = Agent()
    while True:
        try:
            if request["do"] == "connect":
                ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
                answer = None
            else:
                answer = getattr(agent, request.pop("do"))(**request)
        except Exception as error:  # noqa: BLE001 - the client gets any error and restarts this process
            lines = str(error).strip().splitlines()
            print(json.dumps({"error": f"{type(error).__name__}: {lines[0] if lines else ''}"}), file=answers)
            answers.flush()
            return
        print(json.dumps({"answer": answer}), file=answers, flush=True)
        request = requests.get()


def _read(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)  # also while Ray blocks


if __name__ == "__main__":
    main(sys.argv[1])
