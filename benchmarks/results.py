"""What a benchmark found: figures with their spread, the bars they are held against, and the machine they come from.

Every benchmark makes `Figure`s, shows them and ends with the exit code of `finish`. With `--results FOLDER` they are
also written there as JSON, one file a benchmark: page.py makes the pages on performance from them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from berth.report.terminal import console, table

_BEGAN_S, _LOAD_BEFORE = time.monotonic(), os.getloadavg()[0]
PACKAGES = ("numpy", "numba", "polars", "scipy", "torch")


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which this share lies."""
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))]


STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "least": min,
    "most": max,
    "p90": lambda samples: percentile(samples, 0.90),
    "p99": lambda samples: percentile(samples, 0.99),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit, and what was found to hold against it."""

    limit: float
    found: float
    statistic: str = "median"
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """What is not a number meets no bar."""
        return self.found >= self.limit if self.at_least else self.found <= self.limit

    @property
    def off(self) -> float:
        """How far the found value is from the limit, as a share of the limit."""
        return abs(self.found - self.limit) / abs(self.limit) if self.limit else abs(self.found)

    def __str__(self) -> str:
        limit = f"{'≥' if self.at_least else '≤'} {number(self.limit, self.unit)}"
        found = number(self.found, self.unit)
        return limit if self.statistic == "median" else f"{self.statistic} {limit}: {found}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured; `beside` names the peer or floor that it is a ratio to."""

    table: str
    what: str
    unit: str
    median: float
    low: float | None = None
    high: float | None = None
    spread: str = "least–most"  # what low and high are
    bars: tuple[Bar, ...] = ()
    beside: str = ""
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether every bar is; without a bar there is none to miss."""
        return all(bar.met for bar in self.bars)

    @property
    def cells(self) -> list[str]:
        """As a row of a table: what, median, spread, bars, verdict, beside."""
        ends = [number(end, self.unit) for end in (self.low, self.high) if end is not None]
        verdict = ("met" if self.met else "MISSED") if self.bars else ""
        what = self.what + (f" ({self.note})" if self.note else "")
        median = with_unit(number(self.median, self.unit), self.unit)
        return [what, median, "–".join(ends), "; ".join(map(str, self.bars)), verdict, self.beside]


def as_table(figures: Sequence[Figure]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, without empty columns."""
    kinds = dict.fromkeys(one.spread for one in figures if one.high is not None)
    heads = ["", "median", " or ".join(kinds), "bar", "", "beside"]
    rows = [one.cells for one in figures]
    kept = [column for column in range(len(heads)) if any(row[column] for row in rows)]
    return [heads[column] for column in kept], [[row[column] for column in kept] for row in rows]


def figure(
    where: str,
    what: str,
    unit: str,
    samples: Sequence[float],
    *,
    at_most: Mapping[str, float] | None = None,
    at_least: Mapping[str, float] | None = None,
    also: Sequence[Bar] = (),
    quartiles: bool = False,
    beside: str = "",
    note: str = "",
) -> Figure:
    """Of samples; bars by the statistic that is held against them. The spread is least to most, or the quartiles."""
    bars = [
        Bar(limit, float(STATISTICS[name](samples)), name, unit, least)
        for limits, least in ((at_most, False), (at_least, True))
        for name, limit in (limits or {}).items()
    ]
    low: float | None = None
    high: float | None = None
    if len(samples) > 1:
        low, _, high = statistics.quantiles(samples, n=4) if quartiles else (min(samples), 0.0, max(samples))
        low, high = float(low), float(high)
    spread = "quartiles" if quartiles else "least–most"
    median = float(statistics.median(samples))
    return Figure(where, what, unit, median, low, high, spread, (*bars, *also), beside, note)


def number(value: float, unit: str) -> str:
    """Three digits that count; ratios and bare numbers to a thousandth, since they lie near their bars."""
    if value % 1 == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if unit in ("x", "") else f"{value:.3g}"


def with_unit(text: str, unit: str) -> str:
    """A ratio says so by its sign, a rate by its slash."""
    if unit == "x":
        return f"{text}×"
    return f"{text}{unit}" if unit.startswith("/") else f"{text} {unit}".rstrip()


def options(about: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark, with what all of them have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="also write the figures there as JSON")
    return parser


def progress(what: str) -> None:
    """One line, beside the results."""
    print(f"  {what} ({time.monotonic() - _BEGAN_S:.0f} s)", file=sys.stderr, flush=True)


def finish(name: str, figures: Sequence[Figure], folder: Path | None, *, shown: bool = False) -> int:
    """Shows (unless they are `shown`), stores, and judges; 0 if every bar is met, else 1."""
    if not shown:
        show(figures)
    bars = [bar for one in figures for bar in one.bars]
    missed = sum(not bar.met for bar in bars)
    if bars:
        said = f", {missed} MISSED" if missed else ""
        console().print(f"{len(bars) - missed} of {len(bars)} bars met{said}")
    if folder is not None:
        store(name, figures, folder)
    return 1 if missed else 0


def show(figures: Sequence[Figure]) -> None:
    """A table for each that the figures name, in their order."""
    for title in dict.fromkeys(one.table for one in figures):
        mine = [replace(one, what=_beside(one), beside="") for one in figures if one.table == title]
        heads, rows = as_table(mine)
        console().print(table(title, heads, rows))


def _beside(figure: Figure) -> str:
    """A terminal has no room for a column of its own."""
    return f"{figure.what} / {figure.beside}" if figure.beside else figure.what


@dataclass(frozen=True, slots=True)
class Results:
    """What one run of one benchmark found."""

    name: str
    date: str
    took_s: float
    load_before: float  # of the machine, over the minute before
    machine: dict[str, str]
    figures: tuple[Figure, ...]

    @property
    def missed(self) -> list[Figure]:
        """With a bar that is not met."""
        return [one for one in self.figures if not one.met]


def store(name: str, figures: Sequence[Figure], folder: Path) -> None:
    """Writes `folder/name.json`."""
    took_s = round(time.monotonic() - _BEGAN_S, 1)
    today = datetime.now(UTC).date().isoformat()
    results = Results(name, today, took_s, round(_LOAD_BEFORE, 1), machine(), tuple(figures))
    folder.mkdir(parents=True, exist_ok=True)
    document = json.dumps(asdict(results), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / f"{name}.json").write_text(document + "\n", encoding="utf-8")


def load(file: Path) -> Results:
    """What `store` wrote."""
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    figures = [
        Figure(**one | {"bars": tuple(Bar(**bar) for bar in one["bars"])}) for one in document["figures"]
    ]
    return Results(**document | {"figures": tuple(figures)})


def machine() -> dict[str, str]:
    """Facts that figures depend on; nothing that names the machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts = {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{pages / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
    }
    return facts | {name: found for name in PACKAGES if (found := _version(name))}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
