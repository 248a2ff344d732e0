"""The whole engine with shared links, against a fluid simulation of its log that shares no accounting with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.network.contention import SharedLinks
from berth.network.fabric import Fabric
from berth.network.placement import Placement
from berth.simulate.events import event_frame
from berth.simulate.run import Run
from berth.testing.strategies import scenarios
from berth.workload.profiles import load_profile

pytestmark = pytest.mark.slow

POLICIES = ("fit-first", "srtf", "berth", "dally:mode=manual,machine=100s,rack=200s,order=las", "gandiva")


@dataclass
class Gang:
    """A job as the fluid simulation sees it."""

    row: int
    work_s: float
    ran_before: bool = False
    works_from_s: float = 0.0
    worked_s: float = 0.0  # seconds of running, restores left out
    exposed_s: float = 0.0
    computes: float = 1.0  # computation per second of work, on its present devices
    near_s: float = 1.0


class Fluid:
    """Plays a log again: who runs where is the log's, how fast and how far is reckoned from nothing but that."""

    def __init__(self, run: Run) -> None:
        self.run, self.fabric = run, Fabric(run.cluster, run.setting.congestion)
        self.machines = {machine.name: number for number, machine in enumerate(run.cluster.machines)}
        self.kinds = {kind.name: number for number, kind in enumerate(run.cluster.device_types)}
        ids = run.trace.job_ids
        self.gangs = {str(ids[row]): Gang(row, float(run.records["work_s"][row])) for row in range(len(ids))}
        self.places: dict[str, tuple[str, Placement]] = {}
        self.now = 0.0
        self.left_at_finish: dict[str, float] = {}

    def play(self) -> None:
        for event in event_frame(self.run).iter_rows(named=True):
            self.advance(event["time_s"])
            name = event["job"]
            if event["event"] in ("started", "moved"):
                self.place(name, event["device"], event["places"])
            elif event["event"] in ("evicted", "finished"):
                del self.places[name]
                if event["event"] == "finished":
                    self.left_at_finish[name] = self.gangs[name].work_s

    def place(self, name: str, device: str, places: list[str]) -> None:
        gang = self.gangs[name]
        counts = {self.machines[text.rsplit(":", 1)[0]]: int(text.rsplit(":", 1)[1]) for text in places}
        self.places[name] = (device, Placement.of_counts(counts))
        gpus = sum(counts.values())
        rules = self.run.world.rules[0]  # a policy may have eviction costs of its own
        restore_s = float(rules["eviction_s" if gpus <= 8 else "eviction_large_s"])
        gang.works_from_s = self.now + (restore_s if gang.ran_before else 0.0)
        gang.ran_before = True
        record = self.run.records[gang.row]
        traffic = self.run.jobs.traffic[int(record["traffic_row"]) + self.kinds[device]]
        gang.near_s = float(traffic["near_s"])
        gang.computes = float(traffic["compute_s"]) / gang.near_s

    def advance(self, until_s: float) -> None:
        """Everything goes on as it is; the links are filled from nothing at every event."""
        if until_s > self.now:
            seconds = self.iteration_seconds()
            for name in self.places:
                gang = self.gangs[name]
                span_s = max(0.0, until_s - max(self.now, gang.works_from_s))
                work_s = span_s * gang.near_s / seconds[name]
                gang.work_s -= work_s
                gang.worked_s += span_s
                gang.exposed_s += span_s - work_s * gang.computes
        self.now = until_s

    def iteration_seconds(self) -> dict[str, float]:
        links = SharedLinks(self.fabric, len(self.gangs))
        for name, (device, placement) in sorted(self.places.items(), reverse=True):
            gang = self.gangs[name]
            kind = self.run.cluster.device_types[self.kinds[device]]
            links.add(gang.row, load_profile(str(self.run.jobs.models[gang.row])).traffic(kind), placement)
        return {name: links.seconds(self.gangs[name].row) for name in self.places}


@pytest.mark.parametrize("policy", POLICIES)
def test_finish_times_and_exposed_seconds_follow_from_the_placements_in_the_log(policy):
    @given(scenarios(st.just(policy)), st.sampled_from([1.0, 5.0, 20.0]))
    @settings(
        max_examples=6,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    def holds(scenario, congestion):
        run = replace(scenario, network="on", congestion=congestion, faults=(), quotas={}).run()
        fluid = Fluid(run)
        fluid.play()
        for name, left_s in fluid.left_at_finish.items():
            gang, record = fluid.gangs[name], run.records[fluid.gangs[name].row]
            assert left_s == pytest.approx(0.0, abs=1e-4 + 1e-9 * float(record["work_s"]))
            exposed = gang.exposed_s * int(record["gpus"])
            assert exposed == pytest.approx(
                float(run.accounts[gang.row]["exposed_comm_gpu_s"]), abs=1e-3 + 1e-6 * abs(exposed)
            )

    holds()
