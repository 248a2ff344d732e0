"""What the runs behind docs/waiting.md say: one policy over another, cell by cell, with intervals.

A cell is one load and one congestion. In it two policies play the same slices, and the ratio of a figure is
taken slice by slice; the interval is Student's over the logarithms of the ratios.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from waiting_runs import CONGESTIONS, LOADS, METRICS, SLICES, Figures, Play

Floats = NDArray[np.float64]
MATTERS = 0.01  # a difference of less is none, however sure
COMM = METRICS.index("exposed_comm_gpu_s")
GPU_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of one policy over another's; below 1 is better."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Better, worse, or even: less than a hundredth apart, or the interval holds 1."""
        if abs(self.mean - 1) < MATTERS or self.low <= 1 <= self.high:
            return "even"
        return "better" if self.mean < 1 else "worse"

    @classmethod
    def of(cls, mine: Floats, base: Floats) -> Ratio:
        """From the figures of each slice."""
        logs = np.log(mine / base)
        middle = float(logs.mean())
        reach = float(stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / np.sqrt(len(logs)))
        return cls(float(np.exp(middle)), float(np.exp(middle - reach)), float(np.exp(middle + reach)))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f}-{self.high:.2f})"


Cell = tuple[float, float]  # load, congestion
CELLS: tuple[Cell, ...] = tuple((load, congestion) for load in LOADS for congestion in CONGESTIONS)


@dataclass(frozen=True)
class Versus:
    """One policy against another in one figure, over all cells of a workload."""

    cells: dict[Cell, Ratio]
    overall: Ratio  # geometric mean over the cells, interval over the slices

    def count(self, verdict: str) -> int:
        """In how many cells it is so."""
        return sum(ratio.verdict == verdict for ratio in self.cells.values())

    def where(self, verdict: str) -> list[Cell]:
        """In which."""
        return [cell for cell, ratio in self.cells.items() if ratio.verdict == verdict]

    @property
    def tally(self) -> str:
        """`0.83 · 12/8/0`: the mean, and the cells in which it is better, even, worse."""
        counts = "/".join(str(self.count(verdict)) for verdict in ("better", "even", "worse"))
        return f"{self.overall.mean:.2f} · {counts}"

    def over(self, at: int, value: float) -> float:
        """The mean over the cells of one load (0) or of one congestion (1)."""
        return mean_of(ratio for cell, ratio in self.cells.items() if cell[at] == value)


def mean_of(ratios: Iterable[Ratio]) -> float:
    """Geometric."""
    return float(np.exp(np.mean([np.log(ratio.mean) for ratio in ratios])))


@dataclass(frozen=True)
class Study:
    """All figures."""

    figures: Figures

    def values(self, workload: str, policy: str, cell: Cell) -> Floats:
        """[slice, metric]."""
        plays = [Play(workload, *cell, part, policy) for part in range(SLICES)]
        return np.array([self.figures[play] for play in plays])

    def versus(self, workload: str, policy: str, base: str, metric: str = "mean_jct_s") -> Versus:
        """One policy over another."""
        at = METRICS.index(metric)
        mine, other = ([self._column(workload, name, cell, at) for cell in CELLS] for name in (policy, base))
        cells = {cell: Ratio.of(mine[i], other[i]) for i, cell in enumerate(CELLS)}
        means = (np.exp(np.log(np.array(values)).mean(axis=0)) for values in (mine, other))
        return Versus(cells, Ratio.of(*means))

    def best(self, workload: str, policies: Iterable[str], cell: Cell) -> str:
        """Who has the least mean completion time in a cell."""
        return min(policies, key=lambda name: float(np.log(self.values(workload, name, cell)[:, 0]).mean()))

    def versus_best(self, workload: str, policy: str, others: Iterable[str]) -> dict[Cell, Ratio]:
        """Mean completion time over that of the best of some others, chosen separately for every cell."""
        names, found = tuple(others), {}
        for cell in CELLS:
            best = self.values(workload, self.best(workload, names, cell), cell)[:, 0]
            found[cell] = Ratio.of(self.values(workload, policy, cell)[:, 0], best)
        return found

    def _column(self, workload: str, policy: str, cell: Cell, at: int) -> Floats:
        # One GPU-hour or second more on either side: none over none is then 1, and little over none finite.
        extra = GPU_HOUR_S if at == COMM else 1.0 if METRICS[at] == "mean_wait_s" else 0.0
        return self.values(workload, policy, cell)[:, at] + extra
