"""Ratios of two policies over the cells of the study, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from berth.simulate.intervals import has_ratios, median_interval, paired_ratios
from berth.units import format_count
from papers_runs import Point

Where = tuple[str, int, float]  # arrivals, racks, congestion


@dataclass(frozen=True, slots=True)
class Ratio:
    """One policy over another in one cell: the median over seeds and its 95 % interval."""

    where: Where
    median: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """Better, worse, or noise (also where there is no interval)."""
        if self.low is None or self.high is None or self.low <= 1.0 <= self.high:
            return "noise"
        return "better" if self.high < 1.0 else "worse"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


class Study:
    """The simulations of one section, by cell and policy."""

    def __init__(self, data: dict[str, Any], section: str) -> None:
        points = [Point(**one) for one in data["schedulers"]["points"] if one["section"] == section]
        self.values = {((one.arrivals, one.racks, one.congestion), one.policy): one.values for one in points}
        self.cells: list[Where] = list(dict.fromkeys(where for where, _ in self.values))
        self.policies: list[str] = list(dict.fromkeys(policy for _, policy in self.values))

    def ratios(self, policy: str, base: str, metric: str, arrivals: str | None = None) -> list[Ratio]:
        """In every cell of these arrivals where both have a figure above 0."""
        found = []
        for where in self.cells:
            mine, other = (np.array(self.values[where, name][metric]) for name in (policy, base))
            if arrivals in (None, where[0]) and has_ratios(mine, other):
                each = paired_ratios(mine, other)
                found.append(Ratio(where, float(np.median(each)), *(median_interval(each) or (None, None))))
        return found

    def median(self, where: Where, policy: str, metric: str) -> float:
        """The median over seeds."""
        return float(np.median(self.values[where, policy][metric]))

    def best(self, policies: Sequence[str], metric: str, arrivals: str) -> str:
        """The policy with the least geometric mean over the cells of these arrivals."""
        cells = [where for where in self.cells if where[0] == arrivals]

        def score(policy: str) -> float:
            return float(np.mean([np.log(max(1e-9, self.median(where, policy, metric))) for where in cells]))

        return min(policies, key=score)


def overall(ratios: Sequence[Ratio]) -> float:
    """The geometric mean of the medians; 1 if there are none."""
    return float(np.exp(np.mean([np.log(max(one.median, 1e-9)) for one in ratios]))) if ratios else 1.0


def tally(ratios: Sequence[Ratio]) -> str:
    """`0.83 · 7/3/2`: the mean, then in how many cells it is better, within noise and worse."""
    counts = [sum(one.verdict == word for one in ratios) for word in ("better", "noise", "worse")]
    return f"{overall(ratios):.2f} · {'/'.join(map(str, counts))}"


def losses(ratios: Sequence[Ratio]) -> str:
    """The cells in which a policy is worse, most first."""
    worse = sorted((one for one in ratios if one.verdict == "worse"), key=lambda one: -one.median)
    return "; ".join(f"{place(one.where)} {one}" for one in worse)


def place(where: Where) -> str:
    """A cell in words."""
    arrivals, racks, congestion = where
    return f"{arrivals}, {format_count(racks, 'rack')}, x{congestion:g}"
