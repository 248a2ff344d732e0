"""A run together with what is shown of it."""

from __future__ import annotations

from dataclasses import dataclass

from berth.simulate.metrics import Summary
from berth.simulate.run import Run
from berth.simulate.timeline import TimerWatch


@dataclass(frozen=True)
class PolicyRun:
    """A run under one policy, its figures, and its timers if it learned any."""

    run: Run
    summary: Summary
    timers: TimerWatch | None = None
