"""What predictions of `plan_truth.py` are made from: host rates and layer curves of this machine.

They are measured once and kept in a folder, so that parts of the cases, and predictions made again, share them. With
each of them the speed of a core at that moment is kept (`probe_s`): it changes in a virtual machine, so a training
is compared with curves that were measured at the same speed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from berth.plan.profile import DeviceTimes, LayerProfile, profile_model, write_profile
from berth.plan.profile.core import curves_of_whole
from berth.plan.profile.files import read_profile
from berth.plan.profile.host import HostRates, read_host_rates, write_host_rates
from berth.plan.profile.measure import ProfilingTask, environment, measure
from berth.plan.threads import single_thread
from berth.testing.accelerator import NAME as STANDIN
from berth.testing.accelerator import SPEED, register
from berth.train.measure.host import measure_host
from berth.train.measure.rows import local_rates
from plan_truth_cases import MODELS, SPEED_OF_STANDIN
from results import progress

CORE = "cpu-core"
PROBE_SIZE, _PROBE_S = 384, 0.2


@dataclass(frozen=True)
class Curves:
    """A profile with one device, and what a probe took when it was measured."""

    profile: LayerProfile
    probe_s: float

    @property
    def times(self) -> DeviceTimes:
        """Those of the device."""
        return self.profile.devices[0]


@dataclass(frozen=True)
class CurveStore:
    """Measures what a folder does not have yet."""

    folder: Path
    repeats: int

    def rates(self) -> HostRates:
        """Return the rates of this machine."""
        path = self.folder / "host.yaml"
        if not path.is_file():
            progress("measuring host rates")
            write_host_rates(measure_host(), path)
        return read_host_rates(path)

    def rates_of(self, device: str, servers: int) -> HostRates:
        """Return the rates; without servers, rows of the stand-in device are copied to it and gradients back."""
        rates = self.rates()
        if device != STANDIN or servers:
            return rates
        path = self.folder / "host-standin.yaml"
        if not path.is_file():
            progress("measuring rows of the stand-in device")
            with single_thread(), environment({SPEED: str(SPEED_OF_STANDIN)}):
                rows = local_rates(self.repeats, torch.device(STANDIN))
            changed = {
                "local_row_s": rows.row_s,
                "local_lookup_s": rows.lookup_s,
                "local_call_s": rows.call_s,
            }
            own = rates.model_copy(update=changed)
            write_host_rates(own, path)
        return read_host_rates(path)

    def curves(self, model: str, device: str) -> Curves:
        """Return those of a core, or of the stand-in device at its stated speed."""
        if device == CORE:
            return self._kept(model, device, partial(self._core, model))
        return self._kept(model, device, partial(self._standin, model, self.curves(model, CORE).profile))

    def _kept(self, model: str, device: str, make: Callable[[], LayerProfile]) -> Curves:
        path = self.folder / f"{model}-{device}.yaml"
        beside = path.with_suffix(".probe")
        if not (path.is_file() and beside.is_file()):
            progress(f"curves of {model} on {device}")
            before = probe_s()
            write_profile(make(), path)
            beside.write_text(repr((before + probe_s()) / 2))
        return Curves(read_profile(path), float(beside.read_text()))

    def _core(self, model: str) -> LayerProfile:
        return profile_model(MODELS[model], devices=[CORE], repeats=self.repeats)

    def _standin(self, model: str, profile: LayerProfile) -> LayerProfile:
        task = ProfilingTask(
            MODELS[model], profile.batch, profile.batches, self.repeats, profile.layers,
            place=STANDIN, register=register,
        )  # fmt: skip
        with environment({SPEED: str(SPEED_OF_STANDIN)}):
            measured = measure(task, lambda what: None)
        curves, _ = curves_of_whole(measured)
        step_s = tuple(timing.seconds for timing in measured.step)
        return replace(profile, devices=(replace(profile.on(CORE), curves=curves, step_s=step_s),))


def probe_s() -> float:
    """Return the CPU seconds of a fixed piece of computation, the median of many."""
    square = torch.ones(PROBE_SIZE, PROBE_SIZE)
    seconds: list[float] = []
    with single_thread():
        while sum(seconds) < _PROBE_S:
            started = time.process_time()
            for _ in range(8):
                square @ square
            seconds.append(time.process_time() - started)
    return statistics.median(seconds)
