"""The tables of docs/design/network-packets.md, from the results of the packet-level study."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from berth.units import format_count, format_seconds
from ns3_scenarios import ALGORITHMS, OVERSUBSCRIPTIONS, REGIMES, TRANSPORTS, WINDOW
from papers_page import fill as fill_tables

NONE = "-"
SLOWED = 1.02  # a job that is slowed by less meets nothing on its links


@dataclass(frozen=True, slots=True)
class Result:
    """One job of one scenario: seconds of an iteration by packets and by the model."""

    group: str
    kind: str
    racks: int
    hosts: int
    oversubscription: int
    transport: str
    message: int
    algorithm: str
    regime: str
    packets_s: float
    model_s: float
    fluid_s: float  # two jobs: by the explicit simulation of shares
    packets_alone_s: float
    model_alone_s: float

    @property
    def error(self) -> float:
        """The model over packets, less 1: below 0 the model is too fast."""
        return self.model_s / self.packets_s - 1

    @property
    def fluid_error(self) -> float:
        """The same of the explicit simulation of shares."""
        return self.fluid_s / self.packets_s - 1

    @property
    def slowdown(self) -> float:
        """How much longer an iteration takes beside the other job, by packets."""
        return self.packets_s / self.packets_alone_s

    @property
    def slowdown_error(self) -> float:
        """The modelled slowdown over that of packets, less 1."""
        return self.model_s / self.model_alone_s / self.slowdown - 1


def fill(page: str, results: Sequence[Result], about: dict[str, Any]) -> str:
    """Write the tables between their markers."""
    return fill_tables(
        page,
        {
            "summary": summary(results),
            "one job": one_job(results),
            "choice": choice(results),
            "busy": busy(results),
            "two jobs": two_jobs(results),
            "slowdowns": slowdowns(results),
            "transports": transports(results),
            "hashed": hashed(results),
            "worst": worst(results),
            "spent": f"{about['date']}, {format_count(len(results), 'result')}, {format_seconds(about['took_s'])}.",
        },
    )


def errors(values: Iterable[float]) -> str:
    """`+0.3 / -4.1`: the median error and the one furthest from 0, in percent; `-` without values."""
    found = [100 * value for value in values]
    return f"{statistics.median(found):+.1f} / {max(found, key=abs):+.1f}" if found else NONE


def summary(results: Sequence[Result]) -> str:
    """Errors by regime, for one job and for two."""
    parts = {
        "one job": _of(results, "one job"),
        "all hosts of a busy fabric": _of(results, "busy"),
        "two jobs": _of(results, "two jobs"),
    }
    rows = [
        [
            name,
            str(len(part)),
            *(errors(one.error for one in part if one.regime == regime) for regime in REGIMES),
        ]
        for name, part in parts.items()
    ]
    return _table(["", "results", *REGIMES], rows)


def one_job(results: Sequence[Result]) -> str:
    """Errors of collectives by regime and over-subscription."""
    part = _of(results, "one job")
    rows = [
        [f"{algorithm} ring", regime, *_by_oversubscription(part, lambda one: one.error, algorithm, regime)]
        for algorithm in ALGORITHMS
        for regime in REGIMES
    ]
    return _table(["", "", *_columns()], rows)


def choice(results: Sequence[Result]) -> str:
    """How often the ring that the model takes is the faster one by packets, and what a wrong choice costs."""
    cells: dict[tuple[int, int, int], list[Result]] = {}
    for one in _of(results, "one job"):
        cells.setdefault((one.racks, one.oversubscription, one.message), []).append(one)
    taken = [min(both, key=lambda one: one.model_s) for both in cells.values()]
    fastest = [min(both, key=lambda one: one.packets_s) for both in cells.values()]
    costs = [mine.packets_s / best.packets_s for mine, best in zip(taken, fastest, strict=True)]
    return (
        f"The ring that the model takes is the faster one by packets in {costs.count(1.0)} of {len(costs)} cells; "
        f"a wrong choice costs {100 * (max(costs, default=1.0) - 1):.1f} % at most. "
        f"Error of the ring that is taken: {errors(one.error for one in taken)}."
    )


def busy(results: Sequence[Result]) -> str:
    """Errors of the share of a busy fabric."""
    part = _of(results, "busy")
    rows = [[regime, *_by_oversubscription(part, lambda one: one.error, None, regime)] for regime in REGIMES]
    return _table(["", *_columns()], rows)


def two_jobs(results: Sequence[Result]) -> str:
    """Errors of two jobs by regime, kind and over-subscription: the closed form, and the explicit simulation."""
    part = _of(results, "two jobs")
    rows = []
    for kind in dict.fromkeys(one.kind for one in part):
        mine = [one for one in part if one.kind == kind]
        for regime in REGIMES:
            here = [one for one in mine if one.regime == regime]
            if here:
                closed = _by_oversubscription(here, lambda one: one.error)
                rows.append([kind, regime, *closed, errors(one.fluid_error for one in here)])
    return _table(["", "", *_columns(), "shares played one by one"], rows)


def slowdowns(results: Sequence[Result]) -> str:
    """Errors of the slowdown itself, where jobs slow each other."""
    part = [one for one in _of(results, "two jobs") if one.slowdown > SLOWED]
    rows = []
    for kind in dict.fromkeys(one.kind for one in part):
        mine = [one for one in part if one.kind == kind]
        span = f"{min(one.slowdown for one in mine):.2f}-{max(one.slowdown for one in mine):.2f}"
        rows.append([kind, str(len(mine)), span, errors(one.slowdown_error for one in mine)])
    return _table(["", "slowed jobs", "slowdown by packets", "error of the slowdown"], rows)


def transports(results: Sequence[Result]) -> str:
    """The same scenarios under every transport: packets over those of the default, and the model's error."""
    part = _of(results, "transport")
    base = {_scenario(one): one.packets_s for one in part if one.transport == WINDOW.name}
    rows = []
    for transport in TRANSPORTS:
        cells = []
        for kind in ("one job", "two jobs"):
            mine = [one for one in part if one.transport == transport.name and one.kind == kind]
            ratios = [one.packets_s / base[_scenario(one)] for one in mine]
            cells += (
                [f"{min(ratios):.2f}-{max(ratios):.2f}", errors(one.error for one in mine)]
                if mine
                else [NONE, NONE]
            )
        rows.append([transport.name, *cells])
    return _table(["", "one job: time / default", "error", "two jobs: time / default", "error"], rows)


def hashed(results: Sequence[Result]) -> str:
    """Errors where flows take one of several spines at random."""
    part = _of(results, "hashed")
    rows = [
        [f"{algorithm} ring", *_by_oversubscription(part, lambda one: one.error, algorithm)[:2]]
        for algorithm in ALGORITHMS
    ]
    return _table(["", *_columns()[:2]], rows)


def worst(results: Sequence[Result], count: int = 5) -> str:
    """The results of one and two jobs that the model misses most."""
    part = [one for one in results if one.group in ("one job", "busy", "two jobs")]
    rows = [
        [
            f"{one.group}: {one.kind}",
            f"{one.racks} x {one.hosts}, {one.oversubscription}:1",
            f"{one.message / 1024:,.0f} KiB",
            one.regime,
            format_seconds(one.packets_s),
            format_seconds(one.model_s),
            f"{100 * one.error:+.1f}",
        ]
        for one in sorted(part, key=lambda one: -abs(one.error))[:count]
    ]
    return _table(["", "racks x hosts", "message", "regime", "packets", "model", "error"], rows)


def _of(results: Sequence[Result], group: str) -> list[Result]:
    return [one for one in results if one.group == group]


def _scenario(one: Result) -> tuple[str, int, str]:
    return one.kind, one.message, f"{one.algorithm} {one.model_s!r}"


def _columns() -> list[str]:
    return [f"{over}:1" for over in OVERSUBSCRIPTIONS]


def _by_oversubscription(
    part: Sequence[Result],
    value: Callable[[Result], float],
    algorithm: str | None = None,
    regime: str | None = None,
) -> list[str]:
    return [
        errors(
            value(one)
            for one in part
            if one.oversubscription == over
            and algorithm in (None, one.algorithm)
            and regime in (None, one.regime)
        )
        for over in OVERSUBSCRIPTIONS
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
