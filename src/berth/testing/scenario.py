"""A whole test case as plain data: what a failing random test prints, and what repeats it."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from berth.schedule.policies.registry import load_policy
from berth.schedule.policy import Policy
from berth.simulate.run import Run, Setting
from berth.testing.builders import ClusterText, cluster, faults, jobs
from berth.testing.check import check_policy
from berth.testing.policies import EXERCISES


@dataclass(frozen=True)
class Scenario:
    """A cluster, jobs, a policy by name, and what goes wrong."""

    cluster: ClusterText
    jobs: tuple[tuple[Any, ...], ...]  # (arrival, GPUs, duration[, model[, virtual cluster[, priority]]])
    policy: str = "fit-first"
    network: Literal["off", "static", "on"] = "off"
    congestion: float = 1.0
    eviction_s: float = 40.0
    eviction_large_s: float = 60.0
    checkpoint_s: float = 1800.0
    estimate_error: float = 0.0
    preemptible: float = 1.0
    seed: int = 0
    faults: tuple[tuple[float, int, str], ...] = ()
    quotas: dict[str, int] = field(default_factory=dict)

    def setting(self) -> Setting:
        """The simulation's setting."""
        return Setting(
            network=self.network,
            congestion=self.congestion,
            eviction_s=self.eviction_s,
            eviction_large_s=self.eviction_large_s,
            checkpoint_s=self.checkpoint_s,
            estimate_error=self.estimate_error,
            preemptible=self.preemptible,
            seed=self.seed,
            faults=faults(self.faults),
            quotas=self.quotas,
            log=True,
        )

    def run(self, policy: Policy | None = None) -> Run:
        """Plays it and checks all that must hold; raises where something does not."""
        return check_policy(
            policy or self.named_policy(), jobs(self.jobs), cluster(self.cluster), self.setting()
        )

    def named_policy(self) -> Policy:
        """One of the exercises, or one that berth knows by name."""
        return EXERCISES.get(self.policy) or load_policy(self.policy)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Scenario:
        """What `to_json` wrote."""
        data = json.loads(text)
        for name in ("jobs", "faults"):
            data[name] = tuple(tuple(row) for row in data.get(name, ()))
        return Scenario(**data)

    def command(self) -> str:
        """The one command that repeats it."""
        return f"python -m berth.testing.repeat {shlex.quote(self.to_json())}"
