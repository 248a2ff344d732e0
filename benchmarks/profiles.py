"""Profiles every model of the zoo on this machine and stores the result among berth's own (`make profiles`).

Name models to profile only those: `python benchmarks/profiles.py ctrdnn nce`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from berth.plan.profile import DeviceTimes, LayerProfile, profile_model, read_profile, write_profile
from berth.plan.profile.layer_profile import short
from berth.plan.profile.machine import CORE, core_key, cpu_vendor
from berth.zoo import zoo

FOLDER = Path(__file__).resolve().parents[1] / "src" / "berth" / "plan" / "profile" / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*zoo(), []], metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    for name in given.models or zoo():
        start = time.monotonic()
        path = FOLDER / f"{name}.yaml"
        profile = with_other_cores(profile_model(name, repeats=given.repeats), path)
        write_profile(profile, path)
        assert read_profile(path) == profile
        took = time.monotonic() - start
        core = profile.on("cpu-core")
        layers, step = core.at(profile.batch).sum(), sum(core.step_s)
        print(
            f"{name:12} {len(profile.layers):3} layers in {took:2.0f} s: {layers * 1e3:6.1f} ms for "
            f"{profile.batch:,} examples, optimiser {step * 1e3:5.2f} ms, +-{core.uncertainty:.0%}",
            flush=True,
        )


def with_other_cores(profile: LayerProfile, path: Path) -> LayerProfile:
    """Add the measured cores of other CPU vendors that the file holds, under the name of their vendor."""
    core = profile.on(CORE)
    devices = {core.device: core}
    for other in read_profile(path).devices if path.exists() else ():
        key = core_key(cpu_vendor(other.compute.note))
        if other.is_measured and other.device.startswith(CORE) and key != core_key(cpu_vendor()):
            devices[key] = at_batches(replace(other, device=key), profile.batches)
    modelled = (one for one in profile.devices if one.device != core.device)
    return replace(profile, devices=(*devices.values(), *modelled))


def at_batches(times: DeviceTimes, batches: tuple[int, ...]) -> DeviceTimes:
    """Return the times at other numbers of examples, between and beyond those known."""
    columns = [times.at(batch).tolist() for batch in batches]
    return replace(
        times, batches=batches, curves=tuple(tuple(map(short, row)) for row in zip(*columns, strict=True))
    )


if __name__ == "__main__":
    main()
