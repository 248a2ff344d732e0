"""The processes that run stages: started when first needed, kept for the next plan, ended one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from berth.errors import InputError
from berth.plan.objective.stagework import Neighbours, Piece, PieceTimes, serve
from berth.plan.profile.workers import KEEP_MEMORY, environment

SILENCE_S = 120.0  # a run that takes longer is given up


class Crew:
    """Up to `most` processes in a chain; stage i always runs in process i."""

    def __init__(self, model: str, most: int, seed: int = 0) -> None:
        self.model, self.most, self.seed = model, most, seed
        self.workers: list[Any] = []
        self.commands: list[Any] = []
        self._ahead: list[Any] = []
        self._back: list[Any] = []

    @property
    def pids(self) -> list[int]:
        """The processes that are running."""
        return [worker.pid for worker in self.workers]

    def run(self, cuts: Sequence[tuple[int, int]], piece: Piece) -> list[PieceTimes]:
        """One stage per process: (first, last) layer of each. A failure ends all processes."""
        try:
            self._hire(len(cuts))
            for place, (first, last) in enumerate(cuts):
                mine = replace(piece, first=first, last=last, place=place, stages=len(cuts))
                _order(self.commands[place], mine)
            return self._answers(len(cuts))
        except BaseException:
            self.close()  # the others wait for tensors that never come
            raise

    def close(self) -> None:
        """Asks every process to stop, and ends those that do not."""
        for command in self.commands:
            try:
                command.send(None)
            except OSError:
                continue  # it is gone already
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

    def _hire(self, count: int) -> None:
        import torch.multiprocessing as processes

        context = processes.get_context("spawn")
        if not self._ahead:
            self._ahead = [context.SimpleQueue() for _ in range(self.most - 1)]
            self._back = [context.SimpleQueue() for _ in range(self.most - 1)]
        with environment(KEEP_MEMORY):
            for place in range(len(self.workers), count):
                ours, theirs = context.Pipe()
                near = self._near(place)
                arguments = (self.model, self.seed, theirs, near)
                worker = context.Process(target=serve, args=arguments, daemon=True)
                worker.start()
                theirs.close()
                self.workers.append(worker)
                self.commands.append(ours)

    def _near(self, place: int) -> Neighbours:
        left, right = place - 1, place
        return Neighbours(
            activations_in=self._ahead[left] if place > 0 else None,
            activations_out=self._ahead[right] if right < self.most - 1 else None,
            gradients_in=self._back[right] if right < self.most - 1 else None,
            gradients_out=self._back[left] if place > 0 else None,
        )

    def _answers(self, count: int) -> list[PieceTimes]:
        answers: dict[int, PieceTimes] = {}
        while len(answers) < count:
            waiting = [self.commands[place] for place in range(count) if place not in answers]
            ready = wait(waiting, timeout=SILENCE_S)
            if not ready:
                raise InputError(
                    f"a measured run took more than {SILENCE_S:g} s",
                    hint="try a smaller batch: measure:batch=256",
                )
            for command in ready:
                answers[self.commands.index(command)] = _answer(command)
        return [answers[place] for place in range(count)]


def _order(command: Any, piece: Piece) -> None:
    try:
        command.send(piece)
    except OSError:
        raise _died() from None


def _answer(command: Any) -> PieceTimes:
    try:
        kind, content = command.recv()
    except (EOFError, OSError):
        raise _died() from None
    if kind == "mistake":
        what, where, hint = content
        raise InputError(what, where=where, hint=hint)
    if kind == "bug":
        raise RuntimeError(f"a stage's process failed\n{content}")
    times: PieceTimes = content
    return times


def _died() -> InputError:
    return InputError(
        "a stage's process died",
        hint="too little memory (try a smaller batch)? or a script of yours that calls this"
        " without `if __name__ == '__main__':`",
    )
