"""`make papers`: the experiments of Dally, LWF and HeterPS by their shape, with berth's own figures, as one page.

Runs simulations and planners, stores what they gave in docs/assets/papers.json and writes docs/papers.md and its
pictures from that. `--page` only writes the page again; `--quick` runs a small part, for tests.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from papers_page import pages
from papers_plots import pictures
from papers_runs import FULL, QUICK, SHARE, Scale, as_data, messages, plans, simulations

DOCS = Path(__file__).resolve().parents[1] / "docs"
PARTS = ("schedulers", "messages", "plans")
_EVERY_S = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Run what is not stored yet, and write the page."""
    given = _options(arguments)
    stored = given.docs / "assets" / "papers.json"
    stored.parent.mkdir(parents=True, exist_ok=True)
    for part in () if given.page else given.only or PARTS:
        found = measured(part, QUICK if given.quick else FULL, given.cache)
        stored.write_text(json.dumps(_read(stored) | found, separators=(",", ":"), allow_nan=False) + "\n")
    data = _read(stored)
    for name, text in (pages(data, given.docs) | pictures(data)).items():
        target = given.docs / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(f"made {target}")
    return 0


def _read(stored: Path) -> dict[str, Any]:
    """What earlier runs stored, by part."""
    data: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    return data


def measured(part: str, scale: Scale, cache: Path) -> dict[str, Any]:
    """The stored form of one part: its figures, its date and what it took."""
    about: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat()}
    cache.mkdir(parents=True, exist_ok=True)
    found: list[Any]
    if part == "schedulers":
        found, engine_s = simulations(scale, cache / "cells.jsonl", Progress())
        runs = sum(len(one.values["makespan_s"]) for one in found)
        about |= {"seeds": scale.seeds, "jobs_per_rack": scale.jobs_per_rack}
        about["took"] = f"{runs:,} simulations, {engine_s:.0f} CPU seconds in the engine"
    elif part == "messages":
        began_s = time.process_time()
        found = messages(scale)
        about |= {"seeds": scale.message_seeds, "jobs": scale.message_jobs}
        runs = sum(len(one.mean_jct_s) for one in found)
        about["took"] = f"{runs:,} simulations, {time.process_time() - began_s:.0f} CPU seconds"
    else:
        found = plans(scale, cache / "plans.jsonl")
        about |= {"plan_s": scale.plan_s, "share": SHARE}
        about["took"] = f"{len(found):,} searches, {sum(one.cpu_s for one in found):.0f} CPU seconds"
    return {part: {"about": about, "points": as_data(found)}}


class Progress:
    """A line every ten seconds."""

    def __init__(self) -> None:
        self.reported = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.reported >= _EVERY_S or done == total:
            self.reported = time.monotonic()
            print(f"{done:,} of {total:,} simulations", file=sys.stderr, flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small part: one rack, one seed")
    parser.add_argument("--page", action="store_true", help="write the page from the stored figures")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part again")
    parser.add_argument("--cache", type=Path, default=Path("demo-out/papers"), help="folder of finished runs")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
