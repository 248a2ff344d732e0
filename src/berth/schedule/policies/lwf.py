"""LWF with Ada-SRSF (Wang et al., arXiv 2002.10105): the least loaded machines, shortest service first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from berth.schedule.policy import Policy, Rules


@dataclass(frozen=True)
class Lwf(Policy):
    """Least GPU time goes first, onto the emptiest machines, as few of them as can be.

    Devices are not shared here, so all free ones are equally loaded: k, up to which a gang is placed device
    by device, makes no difference and is left out; a machine's load is what of it is taken. AdaDUAL, which
    holds back an all-reduce while others use its link, is left out too: links share fairly at every moment.
    """

    def rules(self) -> Rules:
        """Emptiest first; nobody is moved."""
        return Rules(steady=True, emptiest=True)

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """Least GPU time left."""
        return job.remaining * job.gpus
