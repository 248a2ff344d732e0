"""Virtual time: the scheduling code over a trace.

Importing this package costs nothing; each name is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from berth.lazy import exports

if TYPE_CHECKING:
    from berth.simulate.comparison import Comparison as Comparison
    from berth.simulate.comparison import Difference as Difference
    from berth.simulate.comparison import compare as compare
    from berth.simulate.metrics import Summary as Summary
    from berth.simulate.metrics import summarise as summarise
    from berth.simulate.run import Run as Run
    from berth.simulate.run import Setting as Setting
    from berth.simulate.run import simulate as simulate
    from berth.simulate.trace_source import TraceSource as TraceSource

_HOME = {
    "Comparison": "comparison",
    "Difference": "comparison",
    "Run": "run",
    "Setting": "run",
    "TraceSource": "trace_source",
    "Summary": "metrics",
    "compare": "comparison",
    "simulate": "run",
    "summarise": "metrics",
}

__all__ = [
    "Comparison",
    "Difference",
    "Run",
    "Setting",
    "Summary",
    "TraceSource",
    "compare",
    "simulate",
    "summarise",
]

__getattr__ = exports(__name__, _HOME)
