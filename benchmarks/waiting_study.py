"""`make docs-waiting`: does waiting for a near place pay? Makes the tables and pictures of docs/waiting.md.

Plays slices of the Philly trace under every policy, over load and congestion, and writes what came of it
between the markers of the page. Exit code 2 if the trace is not there.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import time
from pathlib import Path

from waiting_page import TUNED, fill, parts
from waiting_plots import dots, heat_maps
from waiting_ratios import Ratio, Study
from waiting_runs import BASELINES, MODES, OWN, STEPS, WORKLOADS, Play, dally, philly_file, play_all, plays

DOCS = Path(__file__).resolve().parents[1] / "docs"
_EVERY_S = 10.0


def main() -> int:
    """Plays what is not played yet, and makes the page."""
    options = _options()
    if not philly_file().is_file():
        print(f"the Philly trace is not at {philly_file()} (set BERTH_SHARED)", file=sys.stderr)
        return 2
    study = Study(play_all(plays(), options.cache, Progress()))
    page = options.docs / "waiting.md"
    page.write_text(fill(page.read_text(encoding="utf-8"), parts(study)), encoding="utf-8")
    for name, picture in pictures(study).items():
        (options.docs / "assets" / name).write_text(picture, encoding="utf-8")
    print(f"made {page}")
    return 0


def pictures(study: Study) -> dict[str, str]:
    """The SVGs by file name."""
    others = (*BASELINES, *(dally(mode) for mode in MODES if mode != "tuned"), *OWN)
    made = {}
    for one in WORKLOADS:
        maps = [(name.removeprefix("dally:"), study.versus(one.name, TUNED, name)) for name in others]
        title = f"Mean JCT of dally, tuned / another, {one.name}: load down, congestion across"
        made[f"waiting-{one.name.replace(', ', '-').replace(' ', '-')}.svg"] = heat_maps(title, maps)
    rows = {f"{mode}, {word}": dally(mode, step) for step, word in _STEPS.items() for mode in MODES}
    rows |= {name: name for name in OWN}
    panels = [
        (one.name, [_overall(study, one.name, policy) for policy in rows.values()]) for one in WORKLOADS
    ]
    title = "Mean JCT over that of no-wait at FIFO order, all cells, 95 % interval over slices"
    return made | {"waiting-steps.svg": dots(title, list(rows), panels)}


_STEPS = dict(zip(STEPS, ("waiting alone", "+ order", "+ preemption"), strict=True))


def _overall(study: Study, workload: str, policy: str) -> Ratio:
    return study.versus(workload, policy, dally("no-wait", "wait")).overall


class Progress:
    """A line every ten seconds: how far, and how long still."""

    def __init__(self) -> None:
        self.began = self.reported = time.monotonic()

    def __call__(self, done: int, total: int, play: Play) -> None:
        now = time.monotonic()
        if now - self.reported < _EVERY_S and done < total:
            return
        self.reported = now
        left_s = (now - self.began) / done * (total - done)
        what = f"{play.workload}, load {play.load:g}, congestion x{play.congestion:g}"
        print(f"{done:,} of {total:,} runs ({what}); about {left_s / 60:.0f} min left", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="makes docs/waiting.md from runs on the Philly trace")
    parser.add_argument(
        "--cache", type=Path, default=Path("demo-out/waiting"), help="folder of finished runs"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
