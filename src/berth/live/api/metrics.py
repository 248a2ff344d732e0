"""The controller's metrics in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from berth.live import views
from berth.live.controller import Controller


def metrics_text(controller: Controller) -> str:
    """Return all metrics of a controller; call with its lock held."""
    registry = CollectorRegistry()
    registry.register(_ControllerMetrics(controller))
    return generate_latest(registry).decode()


class _ControllerMetrics(Collector):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        controller, state = self._controller, self._controller.state
        counts = views.counts(state)
        states = ("queued", "delayed", "placed")
        yield _gauge(
            "berth_jobs", "Jobs that have not ended, by state.", "state", {s: counts[s] for s in states}
        )
        free, shut = counts["free"], counts["unavailable"]
        uses = {"busy": max(0, counts["devices"] - free - shut), "free": free, "shut": shut}
        yield _gauge("berth_devices", "Devices, by use.", "use", uses)
        yield CounterMetricFamily(
            "berth_submitted", "Jobs submitted since the journal began.", state.submitted
        )
        yield CounterMetricFamily(
            "berth_passes", "Scheduling passes since this controller started.", controller.passes
        )
        yield GaugeMetricFamily(
            "berth_pass_seconds", "Duration of the last scheduling pass.", controller.pass_s
        )
        yield GaugeMetricFamily("berth_journal_records", "Records in the journal.", controller.store.seq)
        reasons = Counter({"lost": 0, "drained": 0, "closed": 0})
        reasons.update(why for machine in state.unavailable for why in machine)
        yield _gauge("berth_machines_shut", "Machines that take no jobs, by reason.", "why", reasons)
        up = 0 if controller.observer.error else 1
        yield GaugeMetricFamily("berth_backend_up", "1 if the back end answered the last request.", up)
        works = 1 if state.setup.paused is None else 0
        yield GaugeMetricFamily(
            "berth_policy_up", "1 unless the policy fails, so that nothing is decided.", works
        )
        yield self._timers()

    def _timers(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "berth_timer_seconds", "How long jobs of a size wait for a tier.", labels=["gpus", "tier"]
        )
        world = self._controller.state.world
        for at, gpus in enumerate(world.demands["gpus"].tolist()):
            for level, tier in enumerate(self._controller.state.setup.tiers):
                if gpus > 0:
                    family.add_metric([str(gpus), tier], float(world.wait_stats["timer_s"][at, level]))
        return family


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
