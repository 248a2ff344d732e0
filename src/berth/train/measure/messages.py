"""Measures messages between workers: all-reduce in shared memory, and activations between stages."""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from berth.train.shm_allreduce import ShmAllReduce
from berth.train.stages.p2p import StageChannel


def all_reduce(repeats: int) -> tuple[float, float]:
    """Return CPU seconds per call and bytes per CPU second of two processes that sum gradients."""
    sizes = (1_024, 2_000_000)  # gradients
    memory = os.memfd_create("berth-rates")
    os.ftruncate(memory, 2 * 2 * 4 * (max(sizes) + 16))
    ends = socket.socketpair()
    child = os.fork()
    rank = int(child == 0)
    try:
        medians = _all_reduce_s(ShmAllReduce(rank, {1 - rank: ends[rank]}, memory), sizes, 5 * repeats)
    finally:
        if child == 0:
            os._exit(0)
        for end in ends:
            end.close()  # a child that still waits ends with an error
        os.waitpid(child, 0)
        os.close(memory)
    byte = max(medians[1] - medians[0], 1e-9) / (4 * (sizes[1] - sizes[0]))
    return max(0.0, medians[0] - byte * 4 * sizes[0]), 1 / byte


def _all_reduce_s(sums: ShmAllReduce, sizes: Sequence[int], repeats: int) -> list[float]:
    """Return the median CPU seconds of an all-reduce of each size."""
    medians = []
    for size in sizes:
        gradients = [torch.zeros(size)]
        taken = []
        for turn in range(1 + repeats):
            started = time.process_time()
            sums.all_reduce(gradients, [0.0])
            taken += [time.process_time() - started] if turn else []
        medians.append(statistics.median(taken))
    return medians


def stage_messages(repeats: int) -> tuple[float, float]:
    """Return the CPU seconds of one process to send a message to another and receive one, per call and per byte."""
    sizes = (1_024, 1 << 20)  # numbers of a message
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank = int(child == 0)
        try:
            medians = _exchange_s(rank, Path(folder, "peers"), sizes, 5 * repeats)
        finally:
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
    byte = max(medians[1] - medians[0], 0.0) / (2 * 4 * (sizes[1] - sizes[0]))
    return max(0.0, medians[0] - byte * 2 * 4 * sizes[0]), byte


def _exchange_s(rank: int, store: Path, sizes: Sequence[int], repeats: int) -> list[float]:
    """Return the median CPU seconds of this process, over all its threads, to send and receive each size."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    channel, medians = StageChannel(), []
    for size in sizes:
        message = {"state": torch.zeros(size), "labels": torch.zeros(16), "weight": 1.0, "examples": 16}
        taken = []
        for turn in range(2 + repeats):
            started = time.process_time()
            if rank:
                channel.receive(0)
            channel.send(1 - rank, message)
            if not rank:
                channel.receive(1)
            channel.flush()
            taken += [time.process_time() - started] if turn > 1 else []
        medians.append(statistics.quantiles(taken, n=4)[0])  # other programs only make it longer
    dist.destroy_process_group()
    return medians
