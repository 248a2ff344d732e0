"""A Ray cluster: a gang is a placement group, pinned to its nodes, with a runner on each of them.

A runner is a detached actor that keeps one supervisor (`supervise.py`), and the supervisors tell in the attempt's
folder what becomes of the gang. So the root must be a folder that all nodes see. Nothing is remembered here that
could not be lost: folders tell what was launched, and everything in Ray is found again by the attempt's token.

Whether a runner lives is only asked where a part has told no end. On a node that lives, a runner that is missing is
started again: it runs a part that never began, and buries one that did. A node that is gone takes its part with it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from berth.cluster.model import Cluster
from berth.live.backend import (
    AttemptStatus,
    BackendError,
    Forget,
    Launch,
    MachineStatus,
    Observation,
    Order,
    Pace,
    Stop,
)
from berth.live.backends.ray_client import AgentClient
from berth.live.backends.ray_gang import Part, end_of, fenced, give_up, parts_of
from berth.live.backends.ray_nodes import Node, NodeFacts, cluster_of, facts_of, node_of
from berth.live.folder import ENDED, SUPERVISE, Folder, tokens_in, write_whole
from berth.live.lifecycle import Cause

_log = logging.getLogger("berth.live")
# What became of a part: it told its end, was fenced before it began, was lost with its node, has a runner, or has none.
Fate = Literal["told", "void", "gone", "here", "missing"]
_OVER = ("told", "void", "gone")


@dataclass(frozen=True, slots=True)
class _View:
    """What Ray shows: the nodes that live, by the names of their machines, and the names of the runners that do."""

    nodes: dict[str, Node]
    runners: frozenset[str]
    dead: frozenset[str] = frozenset()  # machines that Ray calls dead; others may be missing without a word


class RayBackend:
    """Gangs on a Ray cluster, under a folder that all its nodes see.

    `fence_s`: how long a process may outlive its node. `missing_s`: how long a node may be missing from an answer
    that does not call it dead. `notice_s`: how long Ray may take to notice that a node is dead. `start_s`: how long a
    gang may take to come together; the devices it was given may have been taken by others meanwhile.
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
        self._supervise = self._root / "supervise.py"
        self._nodes: dict[str, Node] = {}  # as last seen
        self._gangs: dict[str, tuple[Part, ...]] = {}
        self._waits: dict[tuple[str, str], float] = {}  # since when
        self._cleared: set[str] = set()  # tokens of which Ray has nothing any more

    def cluster(self) -> Cluster:
        """All nodes with GPUs that live, and those that were seen here before: they may come back."""
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
        """Every attempt whose folder is here, and every node that lives."""
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
        said = self._agent.ask("look")
        nodes: dict[str, Node] = {}
        for node in sorted(self._all_nodes(said), key=lambda node: node.id):
            known = self._nodes.get(node.facts.name)
            if node.facts.name not in nodes or (known is not None and known.id == node.id):
                nodes[node.facts.name] = node
        self._nodes = nodes
        return _View(nodes, frozenset(said["runners"]), frozenset(said["dead"]) - nodes.keys())

    @staticmethod
    def _all_nodes(said: dict[str, Any]) -> list[Node]:
        nodes = map(node_of, said["nodes"])
        return [node for node in nodes if node.facts.devices > 0]

    def _strays(self, view: _View, live: set[str]) -> list[str]:
        """Placement groups of attempts whose end is on record: they were made by an order that came late."""
        held = {token for node in view.nodes.values() for token in node.held if token not in live}
        plain = (token for token in held if "/" not in token and token.strip("."))
        return sorted(token for token in plain if (self._root / ENDED / token).exists())

    def _attempt(self, folder: Folder, view: _View) -> AttemptStatus | None:
        """An attempt as its folder and Ray show it; does what must be done for it to come together, or to end."""
        parts = self._parts(folder)
        if parts is None:
            return folder.never_began()
        fates = self._fates(folder, parts, view)
        if not fenced(folder) and ("gone" in fates or self._late(folder, parts)):
            give_up(folder)
            fates = self._fates(folder, parts, view)
        if all(fate in _OVER for fate in fates):
            self._clear(folder.token, [part.runner for part in parts if part.runner in view.runners])
            lost = [part.machine for part, fate in zip(parts, fates, strict=True) if fate == "gone"]
            cause = Cause.NODE_LOST if lost else Cause.NOT_STARTED
            whole = all(fate == "told" for fate in fates)
            end = end_of(folder, whole=whole, cause=cause, detail=", ".join(lost))
            dead = [part.machine for part in parts if part.machine in view.dead]
            if end.cause is not Cause.SUPERVISOR_LOST:
                return end
            if dead:
                return replace(end, cause=Cause.NODE_LOST, detail=", ".join(dead))
            # Ray may be about to notice that the node is dead: nothing is to be placed there again before that
            return end if self._waited(folder.token, "notice", self._notice_s) else AttemptStatus("running")
        missing = [at for at, fate in enumerate(fates) if fate == "missing"]
        if missing:
            self._start(folder, parts, missing)
        seen = folder.seen(together=False)
        return seen if seen is not None and seen.state == "running" else AttemptStatus("starting")

    def _parts(self, folder: Folder) -> tuple[Part, ...] | None:
        if folder.token not in self._gangs:
            parts = parts_of(folder)
            if parts is None:
                return None
            self._gangs[folder.token] = parts
        return self._gangs[folder.token]

    def _fates(self, folder: Folder, parts: tuple[Part, ...], view: _View) -> list[Fate]:
        # In this order: whoever says that it is ready looks for the fence after that.
        shut = fenced(folder)
        return [self._fate(folder, at, part, view, shut=shut) for at, part in enumerate(parts)]

    def _fate(self, folder: Folder, at: int, part: Part, view: _View, *, shut: bool) -> Fate:
        if folder.report(at, "ended") is not None:
            return "told"
        begun = folder.report(at, "ready") is not None
        if shut and not begun:
            return "void"
        missing = (folder.token, f"missing {part.machine}")
        if part.machine in view.nodes:
            self._waits.pop(missing, None)
        elif part.machine not in view.dead and not self._waited(*missing, self._missing_s):
            return "here"  # an answer may be cut short
        else:
            return self._fence(folder, at, part) if begun else "gone"
        return "here" if part.runner in view.runners else "missing"

    def _fence(self, folder: Folder, at: int, part: Part) -> Fate:
        """A node is gone for Ray, its processes may not be: those that still see the folder end, and tell so."""
        give_up(folder, at)
        return "gone" if self._waited(folder.token, part.machine, self._fence_s) else "here"

    def _late(self, folder: Folder, parts: tuple[Part, ...]) -> bool:
        begun = all(folder.report(at, "ready") is not None for at in range(len(parts)))
        if begun or not self._waited(folder.token, "", self._start_s):
            return False
        told = "%s did not come together in %.0f s: its devices are taken, or not all nodes see %s"
        _log.warning(told, folder.token, self._start_s, self._root)
        return True

    def _waited(self, token: str, what: str, seconds: float) -> bool:
        now = time.monotonic()
        return now - self._waits.setdefault((token, what), now) >= seconds

    def _start(self, folder: Folder, parts: tuple[Part, ...], missing: Sequence[int]) -> None:
        """Runners for the parts that have none; nothing where a node is gone, the next look tells."""
        if any(parts[at].machine not in self._nodes for at in missing):
            return
        if not self._supervise.exists() or self._supervise.read_bytes() != SUPERVISE.read_bytes():
            write_whole(self._supervise, SUPERVISE.read_text())
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
            supervise=str(self._supervise),
            folder=str(folder.path),
            parts=facts,
            missing=list(missing),
        )

    def _clear(self, token: str, runners: list[str]) -> None:
        """Its devices are free before anybody is told that it has ended."""
        if token not in self._cleared:
            self._agent.ask("end", token=token, runners=runners)
            self._cleared.add(token)

    def apply(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Writes folders, and starts runners as long as Ray answers; observing starts the others later."""
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
        elif isinstance(order, Forget):
            folder.archive()
            self._gangs.pop(order.token, None)
            self._cleared.discard(order.token)
            for key in [key for key in self._waits if key[0] == order.token]:
                del self._waits[key]

    def devices_of(self, token: str) -> Mapping[str, Sequence[int]] | None:
        """Return the devices that an attempt was launched on, by machine, as its folder has them."""
        return Folder(self._root, token).devices()

    def close(self) -> None:
        """Lets go of Ray; what runs goes on running."""
        self._agent.close()
