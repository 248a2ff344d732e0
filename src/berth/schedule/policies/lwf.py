"""LWF-k with Ada-SRSF (Wang et al., arXiv 2002.10105): the least loaded machines, shortest service first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from berth.schedule.policies.constant import number
from berth.schedule.policy import Policy, Rules


@dataclass(frozen=True)
class Lwf(Policy):
    """Least GPU time goes first, onto the emptiest machines.

    Devices are not shared here, so a machine's load is what of it is taken. AdaDUAL, which holds back an
    all-reduce while others use its link, is left out: berth's links share fairly at every moment, and no
    policy sees them.
    """

    k: float = number(1, "gangs up to so many GPUs go anywhere; larger ones fill as few machines as can be")

    def rules(self) -> Rules:
        """Emptiest first; nobody is moved."""
        return Rules(steady=True, emptiest=True)

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """Least GPU time left, with what communication takes."""
        return job.remaining * job.gpus

    @staticmethod
    def reach(job: Any, now: float, my: Any) -> int:
        """Anywhere: consolidation is by taking the emptiest machines first."""
        return job.widest
