"""`make bench`: every benchmark, one after the other, and the pages on performance from what they found.

    python benchmarks/bench.py [NAME ...]     those alone; the page keeps what it has of the others

A benchmark that misses a bar or fails does not stop the others. The page is made again after each, so that it always
says what is stored. Exit code 0 if every bar of every benchmark that was run is met, else 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from page import BENCHMARKS, DOCS, Benchmark, results_of, stored, write_page
from results import load

MET = "every bar met"


def run_all(wanted: list[Benchmark], docs: Path = DOCS) -> int:
    """Run the benchmarks and print progress."""
    verdicts = {}
    for index, one in enumerate(wanted):
        left = _left(wanted[index:], docs)
        print(f"\n=== {index + 1} of {len(wanted)}: {one.title}{left}", flush=True)
        verdicts[one.title] = run(one, results_of(docs))
        write_page(docs)
    print()
    for title, verdict in verdicts.items():
        print(f"{title:32} {verdict}")
    return 0 if all(verdict == MET for verdict in verdicts.values()) else 1


def run(benchmark: Benchmark, folder: Path) -> str:
    """Its verdict, from what it stored."""
    file = folder / f"{benchmark.name}.json"
    began_s, before = time.monotonic(), _written(file)
    command = [sys.executable, str(benchmark.script), "--results", str(folder)]
    code = subprocess.run(command, check=False).returncode
    print(f"    took {time.monotonic() - began_s:.0f} s", flush=True)
    if _written(file) == before:
        return f"NOT MEASURED (exit code {code}); the page keeps what it had"
    missed = load(file).missed
    return f"MISSED: {'; '.join(figure.what for figure in missed)}" if missed else MET


def _left(benchmarks: list[Benchmark], docs: Path) -> str:
    last = stored(docs)
    left_s = sum(last[one.name].took_s for one in benchmarks if one.name in last)
    return f" (about {left_s / 60:.0f} min left, by the last run)" if left_s else ""


def _written(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def _wanted() -> list[Benchmark]:
    known = {one.name: one for one in BENCHMARKS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    names = parser.parse_args().names or [one.name for one in BENCHMARKS if one.always]
    for name in names:
        if name not in known:
            parser.error(f"no benchmark is called {name!r}: {', '.join(known)}")
    return [known[name] for name in names]


if __name__ == "__main__":
    sys.exit(run_all(_wanted()))
