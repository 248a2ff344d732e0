"""The processes that run stages: started on first use and kept for the next plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from berth.errors import InputError
from berth.plan.objective.stage_worker import StageQueues, StageTask, StageTimes, serve
from berth.plan.profile.measure import KEEP_MEMORY, environment

TIMEOUT_S = 120.0  # of one run


class StageProcesses:
    """A chain of up to `limit` processes; stage i runs in process i."""

    def __init__(self, model: str, limit: int, seed: int = 0) -> None:
        self.model, self.limit, self.seed = model, limit, seed
        self.workers: list[Any] = []
        self.commands: list[Any] = []
        self._ahead: list[Any] = []
        self._back: list[Any] = []

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [worker.pid for worker in self.workers]

    def run(self, ranges: Sequence[tuple[int, int]], task: StageTask) -> list[StageTimes]:
        """Run one stage per process, given its (first, last) layer; a failure stops all processes."""
        try:
            self._start(len(ranges))
            for place, (first, last) in enumerate(ranges):
                task = replace(task, first=first, last=last, place=place, stages=len(ranges))
                _send(self.commands[place], task)
            return self._results(len(ranges))
        except BaseException:
            self.close()  # the others would wait for tensors forever
            raise

    def close(self) -> None:
        """Ask every process to stop, and terminate those that do not."""
        for command in self.commands:
            try:
                command.send(None)
            except OSError:
                continue  # it has already exited
        for worker in self.workers:
            worker.join(timeout=0.5)
            if worker.is_alive():
                worker.terminate()
                worker.join()
        for command in self.commands:
            command.close()
        for channel in [*self._ahead, *self._back]:
            channel.close()
        self.workers, self.commands, self._ahead, self._back = [], [], [], []

    def _start(self, count: int) -> None:
        import torch.multiprocessing as processes

        context = processes.get_context("spawn")
        if not self._ahead:
            self._ahead = [context.SimpleQueue() for _ in range(self.limit - 1)]
            self._back = [context.SimpleQueue() for _ in range(self.limit - 1)]
        with environment(KEEP_MEMORY):
            for place in range(len(self.workers), count):
                ours, theirs = context.Pipe()
                queues = self._queues(place)
                arguments = (self.model, self.seed, theirs, queues)
                worker = context.Process(target=serve, args=arguments, daemon=True)
                worker.start()
                theirs.close()
                self.workers.append(worker)
                self.commands.append(ours)

    def _queues(self, place: int) -> StageQueues:
        left, right = place - 1, place
        return StageQueues(
            activations_in=self._ahead[left] if place > 0 else None,
            activations_out=self._ahead[right] if right < self.limit - 1 else None,
            gradients_in=self._back[right] if right < self.limit - 1 else None,
            gradients_out=self._back[left] if place > 0 else None,
        )

    def _results(self, count: int) -> list[StageTimes]:
        results: dict[int, StageTimes] = {}
        while len(results) < count:
            waiting = [self.commands[place] for place in range(count) if place not in results]
            ready = wait(waiting, timeout=TIMEOUT_S)
            if not ready:
                raise InputError(
                    f"a measured run took more than {TIMEOUT_S:g} s",
                    hint="use a smaller batch: measure:batch=256",
                )
            for command in ready:
                results[self.commands.index(command)] = _result(command)
        return [results[place] for place in range(count)]


def _send(command: Any, task: StageTask) -> None:
    try:
        command.send(task)
    except OSError:
        raise _died() from None


def _result(command: Any) -> StageTimes:
    try:
        kind, content = command.recv()
    except (EOFError, OSError):
        raise _died() from None
    if kind == "input_error":
        what, where, hint = content
        raise InputError(what, where=where, hint=hint)
    if kind == "bug":
        raise RuntimeError(f"a stage's process failed\n{content}")
    times: StageTimes = content
    return times


def _died() -> InputError:
    return InputError(
        "a stage's process died",
        hint="too little memory (try a smaller batch)? or a script of yours that calls this"
        " without `if __name__ == '__main__':`",
    )
