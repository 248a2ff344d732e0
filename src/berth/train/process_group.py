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
from berth.train.attempt import own_restarts
from berth.train.data import Share
from berth.train.devices import CPU, group_backend, reduces_on
from berth.train.heartbeat import StallMonitor, waiting_for_peers
from berth.train.hosts import Hosts
from berth.train.rendezvous import RankInfo, heartbeat_store, join
from berth.train.servers.auth import Secret
from berth.train.shm_allreduce import ShmAllReduce, connect_shm_allreduce, is_supported
from berth.train.stages.cut import Layout
from berth.train.stages.p2p import StageChannel


@dataclass(slots=True)
class ProcessGroup:
    """One process among those of a run."""

    rank_info: RankInfo = field(default_factory=RankInfo)
    layout: Layout = field(default_factory=Layout)
    store: Any = None  # key-value store shared by all ranks; its values are signed
    secret: Secret | None = None  # of the run, if there are several ranks
    hosts: Hosts | None = None  # of all ranks, if there are several
    attempt: int = 1  # of those that share the store
    group: Any = None  # ranks that run the same layers
    channel: StageChannel = field(default_factory=StageChannel)
    keep: ExitStack = field(default_factory=ExitStack)  # closed when the process leaves
    flags: tuple[float, ...] = ()  # summed along with the next gradients
    step_sums: list[float] | None = None  # sums of flags and losses, if they were sent with gradients
    monitor: StallMonitor | None = None  # reports ranks and servers that hold up the others
    _shm: ShmAllReduce | None = None  # if the group is on one machine
    _shm_tried: bool = False

    @property
    def replica(self) -> int:
        """Return which replica of its stage this rank is."""
        return self.layout.replica(self.rank_info.rank)

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
        """Return the share of every batch that this rank reads, if its stage is the first."""
        return Share(self.replica if self.stage == 0 else 0, self.layout.readers)

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
        self.agree([0.0])

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
        has_gradient = "".join("0" if weight.grad is None else "1" for weight in weights)
        if sums is not None and all(map(is_supported, weights)):
            with waiting_for_peers():
                summed = sums.all_reduce(gradients, numbers, has_gradient)
        elif sums is not None and gradients and self._staged(weights):
            host = torch.cat([gradient.reshape(-1) for gradient in gradients]).cpu()  # one copy for all
            with waiting_for_peers():
                summed = sums.all_reduce([host], numbers, has_gradient)
            _spread(host.to(gradients[0].device), gradients)
        else:
            summed = self._group_all_reduce(weights, numbers)
        self.step_sums = summed if numbers else None

    def _staged(self, weights: Sequence[Tensor]) -> bool:
        """Return whether gradients are summed in host memory, though they are float32 on a device."""
        return all(weight.dtype == torch.float32 and not reduces_on(weight.device) for weight in weights)

    def _group_all_reduce(self, weights: Sequence[Tensor], numbers: Sequence[float]) -> list[float]:
        """All-reduce by the process group, on the device if it can, else in host memory.

        A weight without a gradient is sent as zeros: the group does not check message lengths.
        """
        has_gradient = [float(weight.grad is not None) for weight in weights]
        parts = [
            weight.new_zeros(weight.numel()) if weight.grad is None else weight.grad for weight in weights
        ]
        device = parts[0].device if parts else CPU
        flat = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0)
        flat = flat if reduces_on(device) else flat.cpu()
        message = torch.cat([torch.tensor([*numbers, *has_gradient]).to(flat.device), flat])
        with waiting_for_peers():
            dist.all_reduce(message, group=self.group)
        begin = len(numbers) + len(has_gradient)
        sums = message[:begin].tolist()
        ranks = float(dist.get_world_size(self.group))
        if any(0 < count < ranks for count in sums[len(numbers) :]):
            raise InputError(
                "workers have gradients for different weights, which can't be summed",
                hint="make every step use every layer, whatever the batch contains",
            )
        _spread(message[begin:].to(device), parts)
        return sums[: len(numbers)]

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
            if self.is_main and self.rank_info.servers:
                from berth.train.server_rank import dismiss_server_ranks

                dismiss_server_ranks(self.store, self.rank_info)
        self.keep.close()


def _spread(summed: Tensor, gradients: Sequence[Tensor]) -> None:
    """Copy a sum to the gradients that it was concatenated from."""
    parts = summed.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def join_process_group(
    rank_info: RankInfo, layout: Layout, devices: Sequence[torch.device] = (CPU,), *, plain: bool = False
) -> ProcessGroup:
    """Join the other ranks; `devices` are those of all stages."""
    if rank_info.world_size != layout.world_size:
        raise ValueError(f"{rank_info.world_size} processes were started, {layout.world_size} are needed")
    if rank_info.is_single:
        return ProcessGroup(rank_info, layout, attempt=own_restarts() + 1)
    keep = ExitStack()
    with waiting_for_peers():
        joined = join(rank_info, group_backend(*devices), keep, plain=plain)
    own_group = None
    for stage in range(layout.stages):  # every rank takes part in creating every group
        ranks = layout.stage_ranks(stage)
        with waiting_for_peers():
            group = dist.new_group(ranks) if len(ranks) > 1 else None
        if stage == layout.stage(rank_info.rank):
            own_group = group
    process_group = ProcessGroup(
        rank_info, layout, joined.store, joined.secret, joined.hosts, joined.attempt, own_group, keep=keep
    )
    watch = StallMonitor(rank_info.rank, rank_info.world_size)
    watch.start(heartbeat_store(rank_info, joined))
    process_group.monitor = watch
    process_group.keep.callback(watch.stop)
    return process_group
