"""Who this process is in a training of several, and what it agrees on with the others at the end of a step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from berth.train.data import Share
from berth.train.rendezvous import Seat, join
from berth.train.stages.cut import Layout
from berth.train.stages.parcels import Post
from berth.train.sums import SharedSums, fits, shared_sums


@dataclass(slots=True)
class Team:
    """One process of a training; alone it has nobody to ask."""

    seat: Seat = field(default_factory=Seat)
    layout: Layout = field(default_factory=lambda: Layout(1, 1))
    store: Any = None  # small facts for the others
    group: Any = None  # those that run the same layers
    post: Post = field(default_factory=Post)
    keep: ExitStack = field(default_factory=ExitStack)  # what lives as long as this process
    flags: tuple[float, ...] = ()  # to be summed along with the next gradients
    said: list[float] | None = None  # their sums and that of the losses, once they are known
    _sums: SharedSums | None = None  # of those of the group, if they are all on this machine
    _asked_for_sums: bool = False

    @property
    def lane(self) -> int:
        """Which pipeline."""
        return self.layout.lane(self.seat.rank)

    @property
    def stage(self) -> int:
        """Which stage of it."""
        return self.layout.stage(self.seat.rank)

    @property
    def is_lead(self) -> bool:
        """The one that writes checkpoints and tells people."""
        return self.seat.rank == 0

    @property
    def share(self) -> Share:
        """Which rows of a batch its lane reads."""
        return Share(self.lane, self.layout.lanes)

    def agree(self, flags: Sequence[float]) -> list[float]:
        """Sums of everybody's flags, the same for all."""
        if self.seat.alone:
            return list(flags)
        told = torch.tensor(flags, dtype=torch.float64)
        dist.all_reduce(told)
        return [float(value) for value in told]

    def wait_for_all(self) -> None:
        """Until everybody has come here."""
        if not self.seat.alone:
            dist.barrier()

    def exchange(self, model: nn.Module, loss: float) -> None:
        """Sums dense gradients over those that run the same layers, in one message.

        Where those are all there are, the flags and the losses go along: waking the others once is enough.
        """
        if self.group is None:
            return
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        told = [*self.flags, loss] if self.layout.stages == 1 else []
        if not gradients and not told:
            return
        sums = self._shared_sums(model)
        if sums is not None and all(map(fits, gradients)):
            summed = sums.add(gradients, told)
        else:
            together = torch.cat([torch.tensor(told), *(gradient.reshape(-1) for gradient in gradients)])
            dist.all_reduce(together, group=self.group)
            summed = together[: len(told)].tolist()
            _put_back(together[len(told) :], gradients)
        self.said = summed if told else None

    def _shared_sums(self, model: nn.Module) -> SharedSums | None:
        """Asked for once, by all of the group at their first exchange; used if all of them got it."""
        if not self._asked_for_sums:
            self._asked_for_sums = True
            numbers = sum(weight.numel() for weight in model.parameters())
            place, count = dist.get_rank(self.group), dist.get_world_size(self.group)
            sums = shared_sums(self.store, f"sums of stage {self.stage}", place, count, numbers)
            got = torch.tensor(float(sums is not None))
            dist.all_reduce(got, dist.ReduceOp.MIN, self.group)
            if sums is not None:
                self.keep.callback(sums.close)
                self._sums = sums if got else None
        return self._sums

    def leave(self) -> None:
        """Waits for what is under way, and parts."""
        if not self.seat.alone and dist.is_initialized():
            self.post.flush()
            dist.destroy_process_group()
        self.keep.close()


def assemble(seat: Seat, layout: Layout) -> Team:
    """Meets the others."""
    if seat.world != layout.world:
        raise ValueError(f"{seat.world} processes, and {layout.world} are needed")
    if seat.alone:
        return Team(seat, layout)
    store = join(seat)
    mine = None
    for stage in range(layout.stages):  # everybody has to take part in making every group
        ranks = layout.together(stage)
        group = dist.new_group(ranks) if len(ranks) > 1 else None
        if stage == layout.stage(seat.rank):
            mine = group
    return Team(seat, layout, store, mine)


def _put_back(together: Tensor, gradients: Sequence[Tensor]) -> None:
    begin = 0
    for gradient in gradients:
        gradient.copy_(together[begin : begin + gradient.numel()].view_as(gradient))
        begin += gradient.numel()
