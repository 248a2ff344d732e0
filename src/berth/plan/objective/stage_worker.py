"""One stage of a model in a process of its own: real forwards, backwards and optimiser steps of its layers.

Micro-batches pass in 1f1b order, through shared memory. Computation is timed in CPU seconds of the one thread, so
that other load on the machine does not count; the ends of batches are wall-clock times, which all processes share.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from berth.errors import InputError
from berth.plan.objective.order import one_forward_one_backward

_LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class StageTask:
    """The layers that a process runs, and how often."""

    first: int
    last: int
    place: int  # of the stage
    stages: int
    micro: int  # micro-batches of a batch
    size: int  # examples of a micro-batch
    batches: int  # after one to warm up
    seed: int


@dataclass(slots=True)
class StageTimes:
    """Seconds of a stage: per micro-batch, and per batch."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    moving_s: list[float] = field(default_factory=list)  # tensors into and out of shared memory
    step_s: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)  # wall-clock time, the warm-up's end first
    losses: list[float] = field(default_factory=list)  # of the last stage


@dataclass(frozen=True)
class StageQueues:
    """Queues to the neighbouring stages; None at the ends of the chain."""

    activations_in: Any
    activations_out: Any
    gradients_in: Any
    gradients_out: Any


def serve(model: str, seed: int, commands: Any, queues: StageQueues) -> None:
    """Run tasks until None arrives; send errors to the parent."""
    try:
        import torch

        from berth.zoo.load import load_model

        torch.set_num_threads(1)
        layered = load_model(model, seed)
        while (task := commands.recv()) is not None:
            commands.send(("done", run_stage(layered, task, queues)))
    except InputError as error:
        commands.send(("input_error", (error.what, error.where, error.hint)))
    except EOFError:
        return  # the parent is gone
    except Exception:  # noqa: BLE001 - sent to the parent, which raises it
        commands.send(("bug", traceback.format_exc()))


def run_stage(model: Any, task: StageTask, queues: StageQueues) -> StageTimes:
    """Run all batches through the layers of one stage."""
    import torch

    stage = model.stage(task.first, task.last + 1)
    weights = [weight for weight in stage.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=_LEARNING_RATE) if weights else None
    examples = [model.example_batch(task.size, task.seed + number) for number in range(task.micro)]
    work = _StageRun(model, task, queues, examples)
    times = StageTimes()
    for _ in range(1 + task.batches):
        for ahead in one_forward_one_backward(task.micro, task.place, task.stages):
            if ahead:
                work.forward()
            else:
                work.backward()
        begun = time.thread_time()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        times.step_s.append(time.thread_time() - begun)
        times.ended.append(time.perf_counter())
    # The first batch is a warm-up.
    times.step_s = times.step_s[1:]
    times.forward_s, times.backward_s = work.forward_s[task.micro :], work.backward_s[task.micro :]
    times.moving_s = work.moving_s[task.micro :]
    times.losses = work.losses
    return times


class _StageRun:
    """Micro-batches on their way through one stage."""

    def __init__(self, model: Any, task: StageTask, queues: StageQueues, examples: list[Any]) -> None:
        self.model, self.task, self.queues, self.examples = model, task, queues, examples
        self.is_last = task.place == task.stages - 1
        self.kept: deque[tuple[Any, list[Any]]] = deque()  # inputs and roots of the backward pass
        self.moving = 0.0
        self.forward_s: list[float] = []
        self.backward_s: list[float] = []
        self.moving_s: list[float] = []
        self.losses: list[float] = []

    def forward(self) -> None:
        """Run one micro-batch through the layers and send it to the next stage."""
        from berth.plan.profile.facts import run_layer
        from berth.zoo.layered import tensors

        number = len(self.forward_s) % self.task.micro
        state = self._received(number)
        begun = time.thread_time()
        after = state
        for index in range(self.task.first, self.task.last + 1):
            after = run_layer(self.model, index, after)
        if self.is_last:
            roots = [self.model.loss(after, self.examples[number][1]) / self.task.micro]
        else:
            roots = [tensor for tensor in tensors(after) if tensor.requires_grad]
        self.forward_s.append(time.thread_time() - begun)
        self.kept.append((state, roots))
        if self.is_last:
            self.losses.append(float(roots[0].detach()) * self.task.micro)
        else:
            self._send(after)

    def backward(self) -> None:
        """Run the oldest micro-batch back through the layers and send its gradient to the previous stage."""
        import torch

        from berth.zoo.layered import tensors

        state, roots = self.kept.popleft()
        begun = time.thread_time()
        gradients = [None] if self.is_last else self.queues.gradients_in.get()
        self.moving += 0.0 if self.is_last else time.thread_time() - begun
        both = [
            (root, gradient)
            for root, gradient in zip(roots, gradients, strict=True)
            if root.requires_grad and (self.is_last or gradient is not None)
        ]
        begun = time.thread_time()
        if both:
            self._differentiate(torch, both)
        self.backward_s.append(time.thread_time() - begun)
        if self.task.place > 0:
            begun = time.thread_time()
            self.queues.gradients_out.put([tensor.grad for tensor in tensors(state) if tensor.requires_grad])
            self.moving += time.thread_time() - begun
        self.moving_s.append(self.moving)
        self.moving = 0.0

    def _differentiate(self, torch: Any, both: list[tuple[Any, Any]]) -> None:
        names = self.model.names
        try:
            torch.autograd.backward([root for root, _ in both], [gradient for _, gradient in both])
        except RuntimeError as error:
            raise InputError(
                f"the backward pass of {names[self.task.first]} .. {names[self.task.last]}"
                f" of {self.model.name} fails: {str(error).splitlines()[0]}",
                where=self.model.where,
            ) from error

    def _received(self, number: int) -> Any:
        """Return the input of the layers: an example, or the activations of the previous stage."""
        from berth.zoo.layered import tensors

        if self.task.place == 0:
            return self.examples[number][0]
        begun = time.thread_time()
        state, wanted = self.queues.activations_in.get()
        for tensor, asks in zip(tensors(state), wanted, strict=True):
            tensor.requires_grad_(asks)
        self.moving += time.thread_time() - begun
        return state

    def _send(self, after: Any) -> None:
        from berth.zoo.layered import map_tensors, tensors

        begun = time.thread_time()
        wanted = [tensor.requires_grad for tensor in tensors(after)]
        self.queues.activations_out.put((map_tensors(after, lambda tensor: tensor.detach()), wanted))
        self.moving += time.thread_time() - begun
