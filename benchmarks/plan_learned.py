"""`make bench-plan-learned`: how near the learned searches come to the optimum, against the bars of berth-lstm.

CPU time after torch and kernels are loaded. berth-rnn and the published method (one seed each) are reported beside it.
plan_learner.py has more figures of them, and the other searches. An evaluation of a plan takes milliseconds, and a
search has 6,400: all runs together take hours.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys

from plan_learner import learned_rows
from results import Figure, finish, options, progress


def learning(seeds: int, processes: int) -> list[Figure]:
    """berth-lstm against its bars, the others beside it."""
    found: list[Figure] = []
    for name, count in (("berth-lstm", seeds), ("berth-rnn", 1), ("reinforce-lstm", 1)):
        progress(f"{name}, {count} seeds")
        row = learned_rows((name,), count, processes)[0]
        found += row.figures(held=name == "berth-lstm")
    return found


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    return finish("plan-learned", learning(given.seeds, given.processes), given.results)


if __name__ == "__main__":
    sys.exit(main())
