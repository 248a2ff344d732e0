"""Profiles every model of the zoo on this machine and stores the result among berth's own (`make profiles`).

Beside it, a whole step of each is measured: the sum of the layers' times should not be far from it. Name
models to profile only those: `python benchmarks/profiles.py ctrdnn nce`.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

from berth.plan.profile import profile_model, read_profile, write_profile
from berth.plan.profile.measure import KEEP_MEMORY
from berth.plan.threads import single_thread
from berth.zoo import make_model, zoo

FOLDER = Path(__file__).resolve().parents[1] / "src" / "berth" / "plan" / "profile" / "data"


def main() -> None:
    if not KEEP_MEMORY.keys() <= os.environ.keys():  # only read when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    for name in sys.argv[1:] or zoo():
        start = time.monotonic()
        profile = profile_model(name)
        path = FOLDER / f"{name}.yaml"
        write_profile(profile, path)
        assert read_profile(path) == profile
        took = time.monotonic() - start
        core = profile.on("cpu-core")
        spread, layers, step = statistics.median(core.spread), sum(core.oct_s), whole_step_s(name)
        print(
            f"{name:12} {len(core.oct_s):3} layers in {took:2.0f} s: computing {layers * 1e3:6.1f} ms (whole step "
            f"{step * 1e3:6.1f}), synchronising {sum(core.odt_s) * 1e3:5.1f} ms, spread {spread:.0%}",
            flush=True,
        )


def whole_step_s(name: str) -> float:
    """Median CPU time of five steps, forward and backward, after one that is not counted."""
    with single_thread():
        model = make_model(name)
        inputs, labels = model.example_batch(model.batch, 0)
        seconds = []
        for _ in range(6):
            model.zero_grad(set_to_none=True)
            start = time.process_time()
            model.loss(model(inputs), labels).backward()
            seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
