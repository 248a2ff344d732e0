"""Ray as a back end: a gang is a placement group, pinned to its nodes, with a runner on each of them.

A runner is a detached actor that keeps one supervisor (`supervise`), and the supervisors record the state of the
gang in the attempt's folder. So the root must be a folder that all nodes see. Nothing else is stored: folders have what
was launched, and everything in Ray is found again by the attempt's token.

A runner matters only while its part has not recorded its end. On a live node a missing runner is started again: it
starts a part that has not started, and records the end of one that had. A part on a lost node is lost.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from berth.cluster.model import Cluster
from berth.live.backend import (
    AttemptStatus,
    BackendError,
    Launch,
    MachineStatus,
    Observation,
    Order,
    Pace,
    Stop,
)
from berth.live.backends.ray_client import AgentClient
from berth.live.backends.ray_nodes import Node, NodeFacts, cluster_of, facts_of, node_of
from berth.live.folder import ENDED, Folder, archive_supervisor, tokens_in, write_whole
from berth.live.lifecycle import Cause

_log = logging.getLogger("berth.live")
# A part has recorded its end, was fenced before it started, was lost with its node, has a runner, or has none.
PartState = Literal["recorded", "never-started", "lost", "has-runner", "no-runner"]
_ENDED = ("recorded", "never-started", "lost")


@dataclass(frozen=True, slots=True)
class _Part:
    """The ranks of a gang on one machine."""

    machine: str
    gpus: int
    runner: str  # name of the actor


@dataclass(frozen=True, slots=True)
class _View:
    """What Ray reports: live nodes by machine, and the names of live runners."""

    nodes: dict[str, Node]
    runners: frozenset[str]
    dead: frozenset[str] = frozenset()  # machines that Ray reports as dead; others may just be missing


class RayBackend:
    """Runs gangs on a Ray cluster, under a folder that all its nodes see.

    `fence_s`: how long a process may outlive its node. `missing_s`: how long a node may be missing from the list of
    nodes without being reported dead. `notice_s`: how long Ray may take to report a dead node. `start_s`: how long a
    gang may take to start; other users may have taken its devices meanwhile.
    """

    name = "ray"
    pace = Pace(busy_s=1.0, idle_s=10.0, least_s=0.25)

    def __init__(
        self,
        root: Path,
        address: str = "auto",
        *,
        fence_s: float = 5.0,
        missing_s: float = 120.0,
        notice_s: float = 20.0,
        start_s: float = 120.0,
        answer_s: float = 10.0,
    ) -> None:
        self._root = root.absolute()
        self._fence_s, self._start_s = fence_s, start_s
        self._missing_s, self._notice_s = missing_s, notice_s
        self._agent = AgentClient(address, self._root / "ray.log", answer_s=answer_s)
        self._nodes: dict[str, Node] = {}  # as last seen
        self._gangs: dict[str, tuple[_Part, ...]] = {}
        self._waits: dict[tuple[str, str], float] = {}  # since when
        self._cleared: set[str] = set()  # tokens that have nothing in Ray any more

    def cluster(self) -> Cluster:
        """Return all live nodes with GPUs and those seen before, which may return."""
        nodes = self._all_nodes(self._agent.ask("look", patient=True))
        here = [node.facts for node in nodes]
        path = self._root / "machines.json"
        known = [facts_of(plain) for plain in json.loads(path.read_text())] if path.exists() else []
        names = {facts.name for facts in here}
        machines: list[NodeFacts] = here + [facts for facts in known if facts.name not in names]
        found = cluster_of(machines)
        self._root.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps([facts.plain() for facts in machines]))
        return found

    def observe(self) -> Observation:
        """Return all attempts that have a folder, and all nodes."""
        view = self._look()
        try:
            live = tokens_in(self._root)
            folders = {token: Folder(self._root, token) for token in live}
            attempts = {token: self._attempt(folder, view) for token, folder in folders.items()}
            strays = self._strays(view, set(live))
        except OSError as error:
            raise BackendError(f"{self._root}: {error}") from None
        for token in strays:
            self._agent.ask("end", token=token, runners=[])
        machines = {
            name: MachineStatus(drained=node.draining, external=node.external((*live, *strays)))
            for name, node in view.nodes.items()
        } | {name: MachineStatus(up=False) for name in view.dead}
        return Observation({token: seen for token, seen in attempts.items() if seen is not None}, machines)

    def _look(self) -> _View:
        report = self._agent.ask("look")
        nodes: dict[str, Node] = {}
        for node in sorted(self._all_nodes(report), key=lambda node: node.id):
            known = self._nodes.get(node.facts.name)
            if node.facts.name not in nodes or (known is not None and known.id == node.id):
                nodes[node.facts.name] = node
        self._nodes = nodes
        return _View(nodes, frozenset(report["runners"]), frozenset(report["dead"]) - nodes.keys())

    @staticmethod
    def _all_nodes(report: dict[str, Any]) -> list[Node]:
        nodes = map(node_of, report["nodes"])
        return [node for node in nodes if node.facts.devices > 0]

    def _strays(self, view: _View, live: set[str]) -> list[str]:
        """Placement groups of attempts that are known to have ended, created by a late order."""
        held = {token for node in view.nodes.values() for token in node.held if token not in live}
        plain = (token for token in held if "/" not in token and token.strip("."))
        return sorted(token for token in plain if (self._root / ENDED / token).exists())

    def _attempt(self, folder: Folder, view: _View) -> AttemptStatus | None:
        """Return the state of an attempt; start missing runners, or end the gang if a part is lost."""
        parts = self._parts(folder)
        if parts is None:
            return folder.never_began()
        states = self._states(folder, parts, view)
        if not _fenced(folder) and ("lost" in states or self._late(folder, parts)):
            _give_up(folder)
            states = self._states(folder, parts, view)
        if all(state in _ENDED for state in states):
            self._clear(folder.token, [part.runner for part in parts if part.runner in view.runners])
            lost = [part.machine for part, state in zip(parts, states, strict=True) if state == "lost"]
            cause = Cause.NODE_LOST if lost else Cause.NOT_STARTED
            end = folder.seen(together=False)
            if end is None or not all(state == "recorded" for state in states):
                done = (folder.path / "done").exists()
                detail = ", ".join(lost)
                end = AttemptStatus(
                    "ended", stopped=folder.stopped, done=done, lost=True, cause=cause, detail=detail
                )
            dead = [part.machine for part in parts if part.machine in view.dead]
            if end.cause is not Cause.SUPERVISOR_LOST:
                return end
            if dead:
                return replace(end, cause=Cause.NODE_LOST, detail=", ".join(dead))
            # Ray may not have noticed yet that the node is dead; do not place anything there before that
            return end if self._waited(folder.token, "notice", self._notice_s) else AttemptStatus("running")
        missing = [at for at, state in enumerate(states) if state == "no-runner"]
        if missing:
            self._start(folder, parts, missing)
        seen = folder.seen(together=False)
        return seen if seen is not None and seen.state == "running" else AttemptStatus("starting")

    def _parts(self, folder: Folder) -> tuple[_Part, ...] | None:
        if folder.token not in self._gangs:
            parts = _parts_of(folder)
            if parts is None:
                return None
            self._gangs[folder.token] = parts
        return self._gangs[folder.token]

    def _states(self, folder: Folder, parts: tuple[_Part, ...], view: _View) -> list[PartState]:
        # First the fence: a supervisor checks it after it has written that it is ready.
        fenced = _fenced(folder)
        return [self._state(folder, at, part, view, fenced=fenced) for at, part in enumerate(parts)]

    def _state(self, folder: Folder, at: int, part: _Part, view: _View, *, fenced: bool) -> PartState:
        if folder.report(at, "ended") is not None:
            return "recorded"
        begun = folder.report(at, "ready") is not None
        if fenced and not begun:
            return "never-started"
        missing = (folder.token, f"missing {part.machine}")
        if part.machine in view.nodes:
            self._waits.pop(missing, None)
        elif part.machine not in view.dead and not self._waited(*missing, self._missing_s):
            return "has-runner"  # the list of nodes may be incomplete
        else:
            return self._fence(folder, at, part) if begun else "lost"
        return "has-runner" if part.runner in view.runners else "no-runner"

    def _fence(self, folder: Folder, at: int, part: _Part) -> PartState:
        """Fence a part on a lost node: processes that survive there read the folder and exit."""
        _give_up(folder, at)
        return "lost" if self._waited(folder.token, part.machine, self._fence_s) else "has-runner"

    def _late(self, folder: Folder, parts: tuple[_Part, ...]) -> bool:
        begun = all(folder.report(at, "ready") is not None for at in range(len(parts)))
        if begun or not self._waited(folder.token, "", self._start_s):
            return False
        message = "%s did not start within %.0f s: its devices are taken, or not all nodes see %s"
        _log.warning(message, folder.token, self._start_s, self._root)
        return True

    def _waited(self, token: str, what: str, seconds: float) -> bool:
        now = time.monotonic()
        return now - self._waits.setdefault((token, what), now) >= seconds

    def _start(self, folder: Folder, parts: tuple[_Part, ...], missing: Sequence[int]) -> None:
        """Start runners for parts that have none, unless one of their nodes is gone."""
        if any(parts[at].machine not in self._nodes for at in missing):
            return
        facts = [
            {
                "machine": part.machine,
                "node": self._nodes[part.machine].id if part.machine in self._nodes else "",
                "gpus": part.gpus,
                "runner": part.runner,
                "begun": folder.report(at, "ready") is not None,
            }
            for at, part in enumerate(parts)
        ]
        self._agent.ask(
            "start",
            token=folder.token,
            supervise=str(archive_supervisor(self._root)),
            folder=str(folder.path),
            parts=facts,
            missing=list(missing),
        )

    def _clear(self, token: str, runners: list[str]) -> None:
        """Free the devices of a gang before its end is reported."""
        if token not in self._cleared:
            self._agent.ask("end", token=token, runners=runners)
            self._cleared.add(token)

    def apply(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Write folders, and start runners as long as Ray answers; `observe` starts the others later."""
        done: list[Order] = []
        answers = True
        for order in orders:
            try:
                if answers or not isinstance(order, Launch):
                    self._do(order, Folder(self._root, order.token))
                    done.append(order)
            except OSError:
                continue
            except BackendError:
                answers = False
        return done

    def _do(self, order: Order, folder: Folder) -> None:
        if isinstance(order, Launch):
            first = self._nodes.get(order.members[0].machine)
            if folder.prepare(order, address=first.address if first is not None else None):
                parts = self._parts(folder)
                assert parts is not None
                self._start(folder, parts, range(len(parts)))
        elif isinstance(order, Stop):
            folder.stop()
        else:
            folder.archive()
            self._gangs.pop(order.token, None)
            self._cleared.discard(order.token)
            for key in [key for key in self._waits if key[0] == order.token]:
                del self._waits[key]

    def devices_of(self, token: str) -> Mapping[str, Sequence[int]] | None:
        """Return the devices that an attempt was launched on, by machine, as its folder has them."""
        return Folder(self._root, token).devices()

    def close(self) -> None:
        """Disconnect from Ray; gangs continue."""
        self._agent.close()


def _parts_of(folder: Folder) -> tuple[_Part, ...] | None:
    """The parts of a launched gang, None if it was not launched."""
    try:
        launch = json.loads((folder.path / "launch.json").read_text())
    except FileNotFoundError:
        return None
    gpus: Counter[str] = Counter()
    for member in launch["members"]:
        gpus[member["machine"]] += len(member["devices"])
    return tuple(_Part(name, count, f"{folder.token}@{name}") for name, count in gpus.items())


def _fenced(folder: Folder) -> bool:
    """Whether no part may start any more."""
    return folder.stopped or (folder.path / "failed").exists()


def _give_up(folder: Folder, at: int | None = None) -> None:
    """End a gang, with its grace; a part on a lost machine without."""
    if at is not None:
        (folder.path / f"part-{at}.fenced").touch()
    (folder.path / "failed").touch()
