"""LWF with Ada-SRSF (Wang et al., arXiv 2002.10105): the least loaded machines, shortest service first."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule import JobView, Policy, Rules, StaticOrder, number


@dataclass(frozen=True)
class Lwf(Policy):
    """Least GPU time goes first, onto the emptiest machines, over links that at most one other uses.

    As published, a gang of at most k devices takes the least loaded devices anywhere, and a larger one fills the
    least loaded machines. Devices are not shared here, so all free ones are equally loaded, and what counts is the load
    of a machine: what of it is taken. A gang of at most k takes its devices one by one from the machine with most
    free devices; with k = 1 every gang fills the emptiest machines.

    AdaDUAL holds an all-reduce back while two others use one of its links, or while one does whose message
    is not much larger: joining pays below b / (2 (b + e)) of it, with b the seconds per byte and e what a byte
    costs more where two compete. Links here share without such loss (e = 0): one half. And a gang
    sends in every iteration, so it is the gang that is held back, before it starts, not each message.
    """

    k: float = number(1.0, "devices up to which a gang is scattered over the emptiest machines")
    ratio: float = number(0.5, "its message over that of the one other on a link, below which a gang joins")

    def rules(self) -> Rules:
        """Emptiest machines first; no job is moved."""
        return Rules(order=StaticOrder(), worst_fit=True, scatter_up_to=self.k, link_ratio=self.ratio)

    @staticmethod
    def order(job: JobView, now: float, params: Lwf) -> float:
        """Least GPU time left."""
        return job.estimated_remaining_s * job.gpus
