"""Who this process is in a training of several, and what it agrees on with the others at the end of a step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from berth.errors import InputError
from berth.train.data import Share
from berth.train.rendezvous import Seat, join, pulse_board
from berth.train.stages.cut import Layout
from berth.train.stages.parcels import Post
from berth.train.sums import SharedSums, fits, shared_sums
from berth.train.watch import Watch, among_others


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
        with among_others():
            dist.all_reduce(told)
        return [float(value) for value in told]

    def wait_for_all(self) -> None:
        """Until everybody has come here."""
        if not self.seat.alone:
            with among_others():
                dist.barrier()

    def exchange(self, model: nn.Module, loss: float) -> None:
        """Sums dense gradients over those that run the same layers, in one message.

        Where those are all there are, the flags and the losses go along: waking the others once is enough.
        """
        if self.group is None:
            return
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        told = [*self.flags, loss] if self.layout.stages == 1 else []
        if not weights and not told:
            return
        sums = self._shared_sums(model)
        if sums is not None and all(map(fits, weights)):
            learned = "".join("0" if weight.grad is None else "1" for weight in weights)
            with among_others():
                summed = sums.add(gradients, told, learned)
        else:
            summed = self._summed(weights, told)
        self.said = summed if told else None

    def _summed(self, weights: Sequence[Tensor], told: Sequence[float]) -> list[float]:
        """By gloo. A weight without a gradient goes along as zeros: messages of different lengths would be mixed up."""
        learned = [float(weight.grad is not None) for weight in weights]
        parts = [
            weight.new_zeros(weight.numel()) if weight.grad is None else weight.grad for weight in weights
        ]
        together = torch.cat([torch.tensor([*told, *learned]), *(part.reshape(-1) for part in parts)])
        with among_others():
            dist.all_reduce(together, group=self.group)
        begin = len(told) + len(learned)
        ranks = float(dist.get_world_size(self.group))
        if any(0 < count < ranks for count in together[len(told) : begin].tolist()):
            raise InputError(
                "workers have gradients of different weights, which can't be summed",
                hint="let every step use every layer, whatever the batch holds",
            )
        for weight in weights:
            if weight.grad is not None:
                weight.grad.copy_(together[begin : begin + weight.numel()].view_as(weight))
            begin += weight.numel()
        return together[: len(told)].tolist()

    def _shared_sums(self, model: nn.Module) -> SharedSums | None:
        """Asked for once, by all of the group at their first exchange; used if all of them got it."""
        if not self._asked_for_sums:
            self._asked_for_sums = True
            numbers = sum(weight.numel() for weight in model.parameters())
            place, count = dist.get_rank(self.group), dist.get_world_size(self.group)
            sums = shared_sums(self.store, f"sums of stage {self.stage}", place, count, numbers)
            got = torch.tensor(float(sums is not None))
            with among_others():
                dist.all_reduce(got, dist.ReduceOp.MIN, self.group)
            if sums is not None:
                self.keep.callback(sums.close)
                self._sums = sums if got else None
        return self._sums

    def leave(self) -> None:
        """Waits for what is under way, and parts."""
        if not self.seat.alone and dist.is_initialized():
            self.post.flush()
            with among_others():
                dist.destroy_process_group()
        self.keep.close()


def assemble(seat: Seat, layout: Layout) -> Team:
    """Meets the others."""
    if seat.world != layout.world:
        raise ValueError(f"{seat.world} processes, and {layout.world} are needed")
    if seat.alone:
        return Team(seat, layout)
    with among_others():
        store = join(seat)
    mine = None
    for stage in range(layout.stages):  # everybody has to take part in making every group
        ranks = layout.together(stage)
        with among_others():
            group = dist.new_group(ranks) if len(ranks) > 1 else None
        if stage == layout.stage(seat.rank):
            mine = group
    team = Team(seat, layout, store, mine)
    watch = Watch(seat.rank, seat.world)
    watch.start(pulse_board(seat))
    team.keep.callback(watch.stop)
    return team
