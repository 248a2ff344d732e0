"""A tour of berth in two to three minutes: what `make demo` runs. Every line printed is real output.

The schedulers are compiled in the background while the first steps run.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

from live_demo import main as live_demo

OUT = Path("demo-out")
BERTH = Path(sys.executable).with_name("berth")

CLUSTER = "4x20x8:A100-80"
JOBS = f"{OUT}/jobs.csv"
SHAPE = "--jobs 2000 --cluster 4x20x8 --sizes odd --durations lognormal:1h:1.5"
SCENARIO = f"--cluster {CLUSTER} --congestion 5"
SCHEDULERS = ("fifo", "tiresias", "srtf", "dally", "berth")
POLICIES = " ".join(f"--policy {name}" for name in SCHEDULERS)
REPORT = f"{OUT}/report.html"
PLAN = f"{OUT}/plan.yaml"

TOUR = [
    ("A cluster: four racks of twenty machines with eight A100 each", f"cluster show {CLUSTER}"),
    ("What distance costs BERT-large on 16 GPUs of it", f"network bert-large --gpus 16 --cluster {CLUSTER}"),
    ("Which models suffer most from distance", f"network --all --gpus 16 --cluster {CLUSTER} --congestion 5"),
    (
        "Which devices should train a model at three million examples a second, by the closed formula?",
        f"plan ctrdnn --cluster cloud-mix --throughput 3M/s --out {PLAN} --force",
    ),
    (
        "Train it a little as planned, with a sixth of the processes and cores in place of GPUs",
        f"train ctrdnn --plan {PLAN} --scale 1/6 --batch 4096 --steps 25",
    ),
    (
        "Two days of jobs at full load, from a seed",
        f"trace generate {JOBS} {SHAPE} --load 1.0 --seed 7 --force",
    ),
    ("What is in that trace", f"trace info {JOBS} --cluster 4x20x8"),
    (
        "The same jobs under five schedulers; links between machines five times slower",
        f"simulate {JOBS} {SCENARIO} {POLICIES} --html {REPORT} --force",
    ),
    (
        "Why did it wait? The history of the job that waited longest",
        f"explain {JOBS} longest-wait {SCENARIO}",
    ),
]

COMPILE = f"simulate generate:jobs=50 {SCENARIO} {POLICIES}"  # the same kernels as the simulation of the tour
INSTALLED = Path(sys.prefix) / ".core"  # `make` writes there how many seconds the installation took

NEXT = [
    "berth up --cluster 2x2x4                 # a live cluster of this machine; then: berth submit --gpus 2 -- ...",
    "berth compare your-trace.csv --cluster X --policy dally --policy berth",
    "berth train ctrdnn --checkpoint run1     # Ctrl-C it, and run it again",
]


def main() -> int:
    """Run the tour; stop at the first failure."""
    began = time.monotonic()
    OUT.mkdir(exist_ok=True)
    steps = len(TOUR) + 1
    compiling = subprocess.Popen(
        [BERTH, *shlex.split(COMPILE)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for number, (title, command) in enumerate(TOUR, 1):
        print(f"\n── {number}/{steps}  {title}\n$ berth {command}\n", flush=True)
        if command.startswith("simulate"):
            compiling.wait()
        code = subprocess.run([BERTH, *shlex.split(command)], check=False).returncode
        if code:
            print(f"berth {command}: exit code {code}", file=sys.stderr)
            return code
    title = "A live cluster on this machine: a training is evicted and resumed, and why"
    print(f"\n── {steps}/{steps}  {title}\n", flush=True)
    live_demo(OUT / "live")
    print(f"\n{took(time.monotonic() - began)}")
    print(
        f"Open {Path(REPORT).resolve()} in a browser: a verdict, curves, racks over time, every job as a bar."
    )
    print("Try next (after `source .venv/bin/activate`):")
    for line in NEXT:
        print(f"  {line}")
    return 0


def took(tour_s: float) -> str:
    """Return how long the tour took, and all of it with the installation if that is known."""
    try:
        installed_s = int(INSTALLED.read_text())
    except (OSError, ValueError):
        return f"This tour took {tour_s:.0f} s."
    return f"This tour took {tour_s:.0f} s, with the installation {tour_s + installed_s:.0f} s."


if __name__ == "__main__":
    sys.exit(main())
