"""A tour of berth in a minute: what `make demo` runs. Every line printed is real output."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

OUT = Path("demo-out")
BERTH = Path(sys.executable).with_name("berth")

CLUSTER = "4x20x8:A100-80"
JOBS = f"{OUT}/jobs.csv"

TOUR = [
    ("A cluster: four racks of twenty machines with eight A100 each", f"cluster show {CLUSTER}"),
    ("What distance costs BERT-large on 16 GPUs of it", f"network bert-large --gpus 16 --cluster {CLUSTER}"),
    ("Who suffers most from distance", f"network --all --gpus 16 --cluster {CLUSTER} --congestion 5"),
    (
        "Two days of jobs at 90 % load, from a seed",
        f"trace generate {JOBS} --jobs 2000 --cluster 4x20x8 --load 0.9 --seed 7 --force",
    ),
    ("What is in that trace", f"trace info {JOBS} --cluster 4x20x8"),
]

NEXT = [
    "berth cluster show my-cluster.yaml       # describe your own: docs/guides/cluster.md",
    "berth trace info your-trace.csv          # Philly, Helios, Alibaba, Tiresias or plain CSV",
    "berth network --all --gpus 32 --cluster hgx-h100-pod",
]


def main() -> int:
    """Runs the tour, stops at the first failure."""
    OUT.mkdir(exist_ok=True)
    for number, (title, command) in enumerate(TOUR, 1):
        print(f"\n── {number}/{len(TOUR)}  {title}\n$ berth {command}\n", flush=True)
        code = subprocess.run([BERTH, *shlex.split(command)], check=False).returncode
        if code:
            print(f"berth {command}: exit code {code}", file=sys.stderr)
            return code
    print("\nTry next (after `source .venv/bin/activate`):")
    for line in NEXT:
        print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
