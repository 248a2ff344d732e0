"""The process group of a run: this process's rank, and what ranks exchange at the end of a step."""

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
from berth.train.heartbeat import StallMonitor, waiting_for_peers
from berth.train.rendezvous import RankInfo, heartbeat_store, join
from berth.train.shm_allreduce import ShmAllReduce, connect_shm_allreduce, is_supported
from berth.train.stages.cut import Layout
from berth.train.stages.p2p import StageChannel


@dataclass(slots=True)
class ProcessGroup:
    """One process among those of a run."""

    rank_info: RankInfo = field(default_factory=RankInfo)
    layout: Layout = field(default_factory=lambda: Layout(1, 1))
    store: Any = None  # key-value store shared by all ranks
    group: Any = None  # ranks that run the same layers
    channel: StageChannel = field(default_factory=StageChannel)
    keep: ExitStack = field(default_factory=ExitStack)  # closed when the process leaves
    flags: tuple[float, ...] = ()  # summed along with the next gradients
    step_sums: list[float] | None = None  # sums of flags and losses, if they were sent with gradients
    _shm: ShmAllReduce | None = None  # if the group is on one machine
    _shm_tried: bool = False

    @property
    def pipeline(self) -> int:
        """Return the pipeline of this rank."""
        return self.layout.pipeline(self.rank_info.rank)

    @property
    def stage(self) -> int:
        """Return the stage of this rank."""
        return self.layout.stage(self.rank_info.rank)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes checkpoints and reports."""
        return self.rank_info.rank == 0

    @property
    def share(self) -> Share:
        """Return the share of every batch that this pipeline reads."""
        return Share(self.pipeline, self.layout.pipelines)

    def agree(self, flags: Sequence[float]) -> list[float]:
        """Return the sums of all ranks' numbers."""
        if self.rank_info.is_single:
            return list(flags)
        numbers = torch.tensor(flags, dtype=torch.float64)
        with waiting_for_peers():
            dist.all_reduce(numbers)
        return [float(value) for value in numbers]

    def wait_for_all(self) -> None:
        """Wait until all ranks have called this."""
        if not self.rank_info.is_single:
            with waiting_for_peers():
                dist.barrier()

    def all_reduce(self, model: nn.Module, loss: float) -> None:
        """All-reduce dense gradients over the ranks that run the same layers, in one message.

        Without stages, flags and losses are sent along, which saves waking the peers a second time.
        """
        if self.group is None:
            return
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        numbers = [*self.flags, loss] if self.layout.stages == 1 else []
        if not weights and not numbers:
            return
        sums = self._shm_allreduce(model)
        if sums is not None and all(map(is_supported, weights)):
            has_gradient = "".join("0" if weight.grad is None else "1" for weight in weights)
            with waiting_for_peers():
                summed = sums.all_reduce(gradients, numbers, has_gradient)
        else:
            summed = self._gloo_all_reduce(weights, numbers)
        self.step_sums = summed if numbers else None

    def _gloo_all_reduce(self, weights: Sequence[Tensor], numbers: Sequence[float]) -> list[float]:
        """All-reduce by gloo. A weight without a gradient is sent as zeros: gloo does not check message lengths."""
        has_gradient = [float(weight.grad is not None) for weight in weights]
        parts = [
            weight.new_zeros(weight.numel()) if weight.grad is None else weight.grad for weight in weights
        ]
        message = torch.cat([torch.tensor([*numbers, *has_gradient]), *(part.reshape(-1) for part in parts)])
        with waiting_for_peers():
            dist.all_reduce(message, group=self.group)
        begin = len(numbers) + len(has_gradient)
        ranks = float(dist.get_world_size(self.group))
        if any(0 < count < ranks for count in message[len(numbers) : begin].tolist()):
            raise InputError(
                "workers have gradients for different weights, which can't be summed",
                hint="make every step use every layer, whatever the batch contains",
            )
        for weight in weights:
            if weight.grad is not None:
                weight.grad.copy_(message[begin : begin + weight.numel()].view_as(weight))
            begin += weight.numel()
        return message[: len(numbers)].tolist()

    def _shm_allreduce(self, model: nn.Module) -> ShmAllReduce | None:
        """Return the shared-memory all-reduce; set up once by the whole group, and used if all ranks have it."""
        if not self._shm_tried:
            self._shm_tried = True
            numbers = sum(weight.numel() for weight in model.parameters())
            place, count = dist.get_rank(self.group), dist.get_world_size(self.group)
            sums = connect_shm_allreduce(self.store, f"sums of stage {self.stage}", place, count, numbers)
            got = torch.tensor(float(sums is not None))
            with waiting_for_peers():
                dist.all_reduce(got, dist.ReduceOp.MIN, self.group)
            if sums is not None:
                self.keep.callback(sums.close)
                self._shm = sums if got else None
        return self._shm

    def leave(self) -> None:
        """Wait for messages in flight, then leave the group."""
        if not self.rank_info.is_single and dist.is_initialized():
            self.channel.flush()
            with waiting_for_peers():
                dist.destroy_process_group()
        self.keep.close()


def join_process_group(rank_info: RankInfo, layout: Layout) -> ProcessGroup:
    """Join the other ranks."""
    if rank_info.world_size != layout.world_size:
        raise ValueError(f"{rank_info.world_size} processes were started, {layout.world_size} are needed")
    if rank_info.is_single:
        return ProcessGroup(rank_info, layout)
    with waiting_for_peers():
        store = join(rank_info)
    own_group = None
    for stage in range(layout.stages):  # every rank takes part in creating every group
        ranks = layout.stage_ranks(stage)
        with waiting_for_peers():
            group = dist.new_group(ranks) if len(ranks) > 1 else None
        if stage == layout.stage(rank_info.rank):
            own_group = group
    process_group = ProcessGroup(rank_info, layout, store, own_group)
    watch = StallMonitor(rank_info.rank, rank_info.world_size)
    watch.start(heartbeat_store(rank_info))
    process_group.keep.callback(watch.stop)
    return process_group
