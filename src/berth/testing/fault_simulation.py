"""Deterministic fault simulation of the live controller: its real code, an engine in memory, virtual time.

A run is given by its seed. It submits gangs and jobs with alternatives, cancels, drains, loses machines, crashes the
controller before or after any write to its journal, fills the disk, loses and delays orders, and jumps the clock. After
every step the state is audited. At the end all faults are repaired; then every accepted job must have finished exactly
once, and the journal must replay without a difference.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

from berth.clock import ManualClock
from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.live import commands, snapshot
from berth.live.controller import Controller
from berth.live.demand import sensitivity_key
from berth.live.records import Record
from berth.live.recover import apply_all
from berth.live.setup import Setup
from berth.live.spec import JobSpec, SentJob
from berth.live.store import Store, StoreError
from berth.testing.live_audit import audit
from berth.testing.memory import FAILS, SECONDS, Faults, MemoryBackend

CLUSTERS = ("2x3x4:V100-16", "1x4x2:V100-16", "3x2x8:V100-16", "8", "mixed")
_MIXED = """\
name: mixed
racks:
  - {count: 2, machines: [{count: 2, devices: {V100-16: 4}}, {count: 1, devices: {T4: 4, cpu-core: 8}}]}
"""
POLICIES = ("berth", "dally:mode=tuned", "fifo", "srtf", "tiresias")
MODELS = ("resnet50", "vgg19", "bert-base")


class CrashError(BaseException):
    """The process is gone, as far as the controller knows."""


class FragileStore(Store):
    """A store whose process may die at a write, or whose disk may be full."""

    def __init__(self, folder: Path) -> None:
        self.crash: str | None = None  # "before" or "after" the next write
        self.full = False
        super().__init__(folder)

    def commit(self, records: Sequence[Record], ended: Any = (), *, ends_adoption: bool = False) -> None:
        """Writes, unless something happens first."""
        if self.full:
            raise StoreError("database or disk is full")
        if self.crash == "before":
            raise CrashError
        super().commit(records, ended, ends_adoption=ends_adoption)
        if self.crash == "after":
            raise CrashError

    def snapshot(self, code: str, state: bytes) -> None:
        """A crash may come here too."""
        if self.crash == "snapshot":
            raise CrashError
        super().snapshot(code, state)


class FaultRun:
    """One run, from its seed."""

    def __init__(self, seed: int, folder: Path, *, steps: int = 120) -> None:
        self.random, self.folder, self.steps = Random(seed), folder, steps
        self.clock = ManualClock()
        self.cluster = _cluster(self.random.choice(CLUSTERS))
        self.policy = self.random.choice(POLICIES)
        chance = self.random.choice((0, 5, 20))
        self.backend = MemoryBackend(
            self.cluster,
            self.clock,
            seed=seed,
            faults=Faults(chance, chance, chance, chance, chance),
        )
        self.pending: list[tuple[str, JobSpec, Future[dict[str, Any]]]] = []
        self.accepted: dict[str, JobSpec] = {}
        self.cancelled: set[str] = set()
        self.crashes = self.named = self.last_seq = self.changes = 0
        self.controller = self._open()

    def _open(self) -> Controller:
        store = FragileStore(self.folder)
        setup = Setup(self.cluster, policy=self.policy, store=store.name)
        return Controller(store, self.backend, setup, self.clock)

    @property
    def store(self) -> FragileStore:
        """The store of the current controller."""
        store = self.controller.store
        assert isinstance(store, FragileStore)
        return store

    def play(self) -> None:
        """Run it; raise AssertionError if something is wrong."""
        for _ in range(self.steps):
            self._random_event()
            self._step()
        self._heal()
        self._check_end()
        self._check_replay()
        self.last_seq, self.changes = self.store.seq, self.shape_changes
        self.controller.close()

    def _random_event(self) -> None:
        happens = self.random.choice(
            [self._submit] * 5
            + [self._cancel, self._prioritise, self._drain, self._lose, self._repair, self._resubmit]
            + [self._crash] * 2
            + [self._fill_disk, self._jump, self._learn, self._snapshot]
            + [lambda: None] * 6
        )
        self.store.full = self.store.full and self.random.random() < 0.5
        happens()
        self.clock.advance(self.random.choice((0.0, 0.1, 1.0, 10.0, 60.0, 900.0)))

    def _step(self) -> None:
        try:
            self.controller.step()
        except CrashError:
            self._restart()
        self._collect()
        wrong = audit(self.controller.state)
        assert not wrong, wrong

    def _restart(self) -> None:
        """Start a new controller: only the store and the engine's jobs are left of the old one."""
        self.crashes += 1
        self.store.close()
        if self.random.random() < 0.2:
            self.policy = self.random.choice(POLICIES)
        self.controller = self._open()
        self.pending = [  # without an answer it is sent again
            (name, spec, answer if answer.done() else self._ask(name, spec))
            for name, spec, answer in self.pending
        ]

    def _ask(self, name: str, spec: JobSpec) -> Future[dict[str, Any]]:
        return self.controller.ask(commands.submit(spec, "user", name))

    def _collect(self) -> None:
        left = []
        for name, spec, answer in self.pending:
            if not answer.done():
                left.append((name, spec, answer))
            elif answer.exception() is None:
                self.accepted[name] = spec
            elif isinstance(answer.exception(), StoreError):
                left.append((name, spec, self._ask(name, spec)))
        self.pending = left

    def _submit(self) -> None:
        self.named += 1
        largest = self.cluster.devices
        facts: dict[str, Any] = {
            "run": "work",
            "name": self.random.choice(("a", "b", "c")),
            "gpus": min(largest, self.random.choice((1, 1, 2, 3, 4, 6, 8, 12, largest))),
            "model": self.random.choice(MODELS),
            "duration": self.random.choice((None, "30s", "600s")),
            "grace": self.random.choice(("0s", "5s", "60s")),
            "priority": self.random.choice((0, 0, 0, 5)),
            "restarts": 50,
            "env": {
                SECONDS: str(self.random.choice((1, 30, 300, 3000))),
                FAILS: str(self.random.choice((0, 0, 0, 1, 2))),
            },
        }
        spec = JobSpec(**facts)
        if self.random.random() < 0.4:
            spec = self._offer(facts)
        name = f"job-{self.named}"
        self.pending.append((name, spec, self._ask(name, spec)))

    def _offer(self, facts: dict[str, Any]) -> JobSpec:
        """Return a job with one to three alternatives of one or two parts, of any device types."""
        kept = ("run", "name", "grace", "priority", "restarts", "env")
        alternatives = [self._alternative(number) for number in range(self.random.randrange(1, 4))]
        work: dict[str, Any] = {
            "work": f"{self.random.choice((10, 1000, 50000))} steps",
            "alternatives": alternatives,
        }
        return SentJob(**{name: facts[name] for name in kept}, **work)

    def _alternative(self, number: int) -> dict[str, Any]:
        kinds = self.random.sample(range(len(self.cluster.device_types)), k=len(self.cluster.device_types))
        tiers = [tier.name for tier in self.cluster.tiers]
        parts = []
        for at, kind in enumerate(kinds[: self.random.choice((1, 2))]):
            count = self.random.randrange(1, 1 + min(6, self.cluster.count_of(kind)))
            part = {"name": f"part-{at}", "devices": {self.cluster.device_types[kind].name: count}}
            tier = self.random.choice((None, None, *tiers[1:]))
            parts.append(part if tier is None else part | {"tier": tier})
        near_ms = self.random.choice((10, 50, 200))
        steps = {"near": f"{near_ms}ms"} | {tier: f"{near_ms + 20 * at}ms" for at, tier in enumerate(tiers)}
        return {"name": f"shape-{number}", "parts": parts, "step": steps}

    def _known(self) -> str | None:
        names = sorted(self.accepted)
        return self.random.choice(names) if names else None

    def _resubmit(self) -> None:
        if (name := self._known()) is not None:
            self.pending.append((name, self.accepted[name], self._ask(name, self.accepted[name])))

    def _cancel(self) -> None:
        if (name := self._known()) is not None and self.random.random() < 0.5:
            answer = self.controller.ask(commands.cancel(name))
            self._step()
            if answer.done() and answer.exception() is None:
                self.cancelled.add(name)
            elif not answer.done() or not isinstance(answer.exception(), InputError):
                self.cancelled.add(name)  # it may have been: there was no answer

    def _prioritise(self) -> None:
        if (name := self._known()) is not None:
            self.controller.ask(commands.prioritise(name, self.random.randrange(-5, 6)))

    def _learn(self) -> None:
        state = self.controller.state
        job = state.jobs.get(self._known() or "")
        if job is not None and job.spec.offer is None:  # step times of alternatives are stated
            key, tier = sensitivity_key(state.setup, job.spec), self.random.randrange(len(self.cluster.tiers))
            self.controller.ask(commands.learn(key, tier, self.random.uniform(0.1, 2.0)))

    def _machine(self) -> str:
        return self.random.choice(self.cluster.machines).name

    def _drain(self) -> None:
        self.controller.ask(commands.drain(self._machine(), back=self.random.random() < 0.5))

    def _lose(self) -> None:
        self.backend.lose(self._machine())

    def _repair(self) -> None:
        self.backend.repair(self._machine())

    def _crash(self) -> None:
        self.store.crash = self.random.choice(("before", "after", "snapshot"))

    def _snapshot(self) -> None:
        try:
            self.controller.keep_snapshot()
        except CrashError:
            self._restart()

    def _fill_disk(self) -> None:
        self.store.full = True

    def _jump(self) -> None:
        self.clock.jump(self.random.choice((-1e6, -60.0, 60.0, 1e5)))

    def _heal(self) -> None:
        """Repair all faults and step until all jobs have ended."""
        self.backend.faults = Faults()
        for machine in self.cluster.machines:
            self.backend.repair(machine.name)
            self.controller.ask(commands.drain(machine.name, back=True))
        for _ in range(6000):
            self.store.crash, self.store.full = None, False
            self._step()
            if not self.controller.state.jobs and not self.pending:
                break
            self.clock.advance(30.0)
        assert not self.controller.state.jobs, f"left over: {sorted(self.controller.state.jobs)}"
        self.controller.step()
        assert not self.backend.alive(), "an attempt runs without a job"

    def _check_end(self) -> None:
        for name in self.accepted:
            ended = self.store.ended_job(name)
            assert ended is not None, f"{name} was accepted and is lost"
            work = self.backend.work.get(name)
            finished = work.finished if work else 0
            if name in self.cancelled and ended["state"] == "cancelled":
                assert finished <= 1
            else:
                assert ended["state"] == "finished", f"{name} is {ended['state']}"
                assert finished == 1, f"{name} finished {finished} times"
        extra = {row["id"] for row in self.store.recent(10_000)} - set(self.accepted)
        assert not extra, f"{extra} ran without being accepted"

    @property
    def shape_changes(self) -> int:
        """How many attempts ran another alternative than the one before them."""
        last: dict[str | None, str] = {}
        changes = 0
        for record in self.store.records():
            if record.kind in ("start", "move") and "shape" in record.body:
                changes += last.get(record.job, record.body["shape"]) != record.body["shape"]
                last[record.job] = record.body["shape"]
        return changes

    def _check_replay(self) -> None:
        """Replay the journal; it must lead to the same decisions and the same state."""
        state = apply_all(None, self.store.records(), trust=True)
        assert state is not None
        assert snapshot.same(state, self.controller.state), "a replay leads to another state"


def _cluster(name: str) -> Cluster:
    """Return a cluster by its name; the mixed one has unlike machines."""
    if name != "mixed":
        return load_cluster(name)
    with tempfile.TemporaryDirectory(prefix="berth-cluster-") as folder:
        file = Path(folder, "mixed.yaml")
        file.write_text(_MIXED)
        return load_cluster(str(file))


def _main(seed: str) -> None:
    """Run one seed and print a summary: `python -m berth.testing.fault_simulation 17`."""
    with tempfile.TemporaryDirectory(prefix="berth-faults-") as folder:
        run = FaultRun(int(seed), Path(folder))
        print(f"{run.policy} on {run.cluster.name}")
        run.play()
    facts = f"{len(run.accepted)} jobs, {run.crashes} crashes, {run.changes} changes of shape"
    print(f"{facts}, {run.last_seq} records: no error")


if __name__ == "__main__":
    _main(sys.argv[1])
