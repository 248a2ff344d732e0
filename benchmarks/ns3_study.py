"""`make bench-network-packets`: berth's network model against packets in ns-3, as docs/design/network-packets.md.

Compiles benchmarks/ns3/fabric.cc, runs every scenario of ns3_scenarios.py in it, stores the seconds of both in
docs/assets/network-packets.json and writes the page's tables from that. `--page` only writes the page again.

Needs a C++ compiler and ns-3 3.37 (Debian: g++, libns3-dev). Exit code 2 where they are missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from ns3_page import Result, fill
from ns3_scenarios import Scenario, alone_seconds, as_text, fluid_s, modelled_s, regime, scenarios

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "benchmarks" / "ns3" / "fabric.cc"
PAGE, STORED = Path("design/network-packets.md"), Path("assets/network-packets.json")
LIBRARIES = ("core", "network", "internet", "point-to-point", "traffic-control")
HEADER = Path("/usr/include/ns3/core-module.h")
PACKAGES = "Debian 12: apt-get install --no-install-recommends g++ libns3-dev libns3.37"
_EVERY_S = 10.0


class MissingError(Exception):
    """Something that the study needs is not installed."""


class Packets:
    """The compiled program."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self._known: dict[str, list[list[float]]] = {}

    @classmethod
    def compiled(cls, folder: Path, header: Path = HEADER) -> Packets:
        """Compile fabric.cc into a folder."""
        compiler = shutil.which("g++")
        if compiler is None or not header.exists():
            what = "g++" if compiler is None else f"ns-3 ({header})"
            raise MissingError(f"{what} is not installed\n  {PACKAGES}")
        program = folder / "fabric"
        libraries = [f"-lns3-{name}" for name in LIBRARIES]
        command = [compiler, "-std=c++17", "-O2", str(SOURCE), "-o", str(program), *libraries]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"{SOURCE} does not compile with this ns-3\n{done.stderr[-2000:]}")
        return cls(program)

    def ends_s(self, text: str) -> list[list[float]]:
        """Return the seconds at which the iterations of each job ended; a scenario is run once."""
        if text not in self._known:
            done = subprocess.run([self.program], input=text, capture_output=True, text=True, check=True)
            self._known[text] = parse(done.stdout)
        return self._known[text]

    def seconds(self, scenario: Scenario) -> list[float]:
        """Return the mean seconds of one iteration of each job, over the runs of a scenario."""
        runs = [
            [mean_iteration_s(ends, scenario) for ends in self.ends_s(as_text(scenario, offsets))]
            for offsets in scenario.offsets
        ]
        return [sum(job) / len(runs) for job in zip(*runs, strict=True)]


def parse(output: str) -> list[list[float]]:
    """Read what the program prints: one line of end times per job, then the number of dropped packets."""
    lines = [line.split() for line in output.splitlines()]
    return [[float(end) for end in ends] for word, *ends in lines if word == "job"]


def mean_iteration_s(ends: Sequence[float], scenario: Scenario) -> float:
    """Return the mean iteration of one job, the first ones left out."""
    first, last = scenario.skipped, scenario.iterations
    return (ends[last - 1] - ends[first - 1]) / (last - first)


def result_of(scenario: Scenario, packets: Packets) -> list[Result]:
    """Run a scenario and compute the model: one result per job (all alike in a busy fabric: the first)."""
    jobs = scenario.jobs if scenario.group != "busy" else scenario.jobs[:1]
    found, model = packets.seconds(scenario), modelled_s(scenario)
    together = len(scenario.offsets) > 1
    fluid = fluid_s(scenario) if together else model
    return [
        Result(
            group=scenario.group,
            kind=scenario.kind,
            racks=scenario.shape.racks,
            hosts=scenario.shape.hosts,
            oversubscription=scenario.shape.oversubscription,
            transport=scenario.transport.name,
            message=job.message,
            algorithm=job.algorithm,
            regime=regime(scenario.shape, job),
            packets_s=found[number],
            model_s=model[number],
            fluid_s=fluid[number],
            packets_alone_s=packets.seconds(scenario.alone(job))[0] if together else found[number],
            model_alone_s=alone_seconds(scenario.shape, job) if together else model[number],
        )
        for number, job in enumerate(jobs)
    ]


def run(packets: Packets) -> list[Result]:
    """Run the whole study."""
    every = list(scenarios())
    found: list[Result] = []
    reported = time.monotonic()
    for number, scenario in enumerate(every, start=1):
        found += result_of(scenario, packets)
        if time.monotonic() - reported >= _EVERY_S or number == len(every):
            reported = time.monotonic()
            print(f"{number} of {len(every)} scenarios", file=sys.stderr, flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the study unless only the page is asked for, and write the page."""
    given = _options(arguments)
    stored = given.docs / STORED
    if not given.page:
        began_s = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = run(Packets.compiled(Path(folder)))
        except MissingError as missing:
            print(f"error: {missing}", file=sys.stderr)
            return 2
        about = {"date": datetime.now(UTC).date().isoformat(), "took_s": round(time.monotonic() - began_s)}
        data = {"about": about, "results": [asdict(one) for one in found]}
        stored.write_text(json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
    if not stored.exists():
        print(f"error: {stored}: no stored figures\n  run without --page first", file=sys.stderr)
        return 2
    data = json.loads(stored.read_text(encoding="utf-8"))
    page = given.docs / PAGE
    results = [Result(**one) for one in data["results"]]
    page.write_text(fill(page.read_text(encoding="utf-8"), results, data["about"]), encoding="utf-8")
    print(f"made {page}")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="write the page from the stored figures")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the page")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
