"""A training run whose workers do not wait for each other: modes async, half-async and geo.

Rows and dense weights are on servers. Every worker takes tickets (shares of batches) from the first server until none
is left. Rank 0 reports and saves the whole run; it learns about the others from the first server, never by collective
calls. Only the start and the end of a run wait for all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from berth.train.checkpoint import CheckpointStore, Manifest
from berth.train.data import Batch
from berth.train.data.tickets import TicketReader
from berth.train.distributed_session import GATHER_INTERVAL_S, DistributedSession
from berth.train.evaluate import Evaluations
from berth.train.fault_points import fault_point
from berth.train.heartbeat import HEARTBEAT
from berth.train.learner import Scores
from berth.train.metrics import join_windows
from berth.train.servers import GeoStore, RemoteStore
from berth.train.servers.coordinator import Coordinator, RunPosition, Taken
from berth.train.session import Session
from berth.train.sparse import DENSE_TABLE


class AsyncSession(DistributedSession):
    """One rank of a run without a common step."""

    _coordinator: Coordinator
    _saved_tickets: dict[str, Any] | None = None  # of the checkpoint that the run resumes from
    _position: RunPosition | None = None  # of the last checkpoint
    _own_steps = 0
    _evaluated_step = 0
    _last_step: int | None = None  # of the run, if it is known; evaluated when all workers have finished
    _stopping_run = False  # a worker was asked to stop; the tickets that were taken are still trained
    _days = 0
    _scheduled_step = 0  # of the learning-rate schedule

    @property
    def workers(self) -> int:
        """Return the number of workers."""
        return self.process_group.layout.world_size

    @property
    def remote(self) -> RemoteStore:
        """Return the store of the servers."""
        return self.store.remote if isinstance(self.store, GeoStore) else cast(RemoteStore, self.store)

    def steps(self, until: int | None = None) -> Generator[float, None, None]:
        """Yield the loss of every step of this worker, until the run has no more tickets."""
        goal = None if until is None else until * self.workers
        self._last_step = until
        if self._exhausted:
            goal = 0  # the run that is resumed had stopped early
        reader = TicketReader(self.data, self.batch, self.workers, self.seed)
        self.progress.begin()
        step_began = time.perf_counter()
        try:
            current = self._next(reader, goal)
            while current is not None:
                ticket, batch = current
                current = self._next(reader, goal)
                if current is not None:
                    self.learner.prefetch(current[1])
                self._follow_schedule()
                torch.manual_seed(self.seed * 1_000_003 + ticket)
                loss, scores = self.learner.step(self._own_steps, batch)
                self._coordinator.complete(ticket, batch.examples)
                self._end_step(loss, batch.examples, scores)
                if self._own_steps == 1:
                    self._warn_about_prefetch()
                step_began, began = time.perf_counter(), step_began
                self._step_s.append(step_began - began)
                yield loss
            self._retire()
            self._stop_agreed = self._stopping_run and not self._exhausted
        finally:
            reader.close()

    def _follow_schedule(self) -> None:
        """Step the learning-rate schedule for every batch that the run has completed."""
        while self.scheduler is not None and self._scheduled_step < self.progress.step:
            self.scheduler.step()
            self._scheduled_step += 1

    def _next(self, reader: TicketReader, goal: int | None) -> tuple[int, Batch] | None:
        """Take a ticket and read its examples; None if there are no more."""
        while True:
            is_merged = not isinstance(self.store, GeoStore) or self.store.is_merged
            stop = self._stop_requested() or self._exhausted
            taken = self._coordinator.take(goal, stop=stop, report=is_merged)
            self._note(taken)
            if taken.ticket is None:
                self._stopping_run = taken.stopping
                return None
            batch = reader.read(taken.ticket)
            if batch is None:
                self._coordinator.end_data(taken.ticket, report=is_merged)
                return None
            if batch.examples:
                return taken.ticket, batch
            self._coordinator.complete(taken.ticket, 0)  # the last batch has no example for this share

    def _end_step(self, loss: float, examples: int, scores: Scores) -> None:
        """Do what follows a step of this worker; rank 0 also evaluates and saves the run where that is due."""
        Session._check_finite(self, loss)
        self.progress.add(loss, 0, *scores)
        self.progress.step -= 1  # counted by tickets
        self._own_steps += 1
        HEARTBEAT.step = self._own_steps
        fault_point("step")
        if time.monotonic() - self._gathered_at >= GATHER_INTERVAL_S:
            self._gather_windows()
        if self.process_group.is_main:
            if self.callbacks:
                self._report_step(loss)
            self._evaluate_if_due()
            self._save_if_due()
            self._report_checkpoints()

    def _evaluate_if_due(self) -> None:
        """Evaluate the weights that this worker has; the others go on."""
        step, evaluations = self.progress.step, self.evaluations
        if evaluations is None or evaluations.every is None or step == self._last_step:
            return
        if step // evaluations.every > self._evaluated_step // evaluations.every:
            self._evaluated_step = step
            self._evaluate(evaluations)
            if not evaluations.due(step) and evaluations.best is not evaluations.last:
                evaluations.worse += 1
            self._exhausted = evaluations.is_exhausted

    def _evaluate(self, evaluations: Evaluations) -> None:
        Session._evaluate(self, evaluations)

    def _evaluate_end(self, preempted: bool) -> None:
        """Evaluate what all workers have learned, if the last step is to be evaluated."""
        if isinstance(self.store, GeoStore) and self.evaluations is not None and self._is_end_due(preempted):
            self.store.drop_copies()
        Session._evaluate_end(self, preempted)

    def _note(self, state: Taken | RunPosition) -> None:
        """Note the progress of the whole run, and end the days that are over."""
        self.progress.first_pass = getattr(self.data, "first_pass", None)
        self.progress.step = (state.completed + self._coordinator.unreported) // self.workers
        self.progress.examples = state.examples
        day = self.options.day_every
        while day is not None and self._days < state.examples // day:
            self._days += 1
            self.store.end_day()

    def _retire(self) -> None:
        """Publish what this worker has done; the others no longer wait for it."""
        if isinstance(self.store, GeoStore):
            self.store.exchange()
        self._coordinator.retire()  # acknowledges the last pushes
        self._note(self._coordinator.report())

    def _gather_windows(self) -> None:
        """Publish the last scores and losses; rank 0 reads those of all."""
        self._gathered_at = time.monotonic()
        window = self.progress.window.arrays()
        losses = np.array(self.progress.losses, np.float32)
        self._coordinator.post([window["scores"], window["labels"], losses])
        if not self.process_group.is_main:
            return
        posted = self._coordinator.collect()
        self._other_windows = [{"scores": scores, "labels": labels} for scores, labels, _ in posted[1:]]
        together = join_windows(self._windows())
        self.progress.add_global(together["scores"], together["labels"])
        pooled = np.concatenate([losses for *_, losses in posted])
        if len(pooled):
            self.progress.loss = self.progress.global_loss = float(pooled.mean())

    def save(self) -> None:
        """Checkpoint the run as it is; other workers wait while the tables are copied."""
        self._gather_windows()
        if isinstance(self.store, GeoStore):
            self.store.exchange()
        self._coordinator.report()  # own pushes arrive before the lock
        if self._writer is not None:
            self._writer.wait()  # for the last checkpoint, before the others have to wait
        with self.remote.locked():
            self._position = self._coordinator.position()
            self._note_saved(self._position)
            self._follow_schedule()
            if self.learner.dense_weights is not None:
                assert isinstance(self.store, GeoStore | RemoteStore)
                self.learner.dense_weights.from_state(self.store.whole_table(DENSE_TABLE))
            super().save()

    def _note_saved(self, position: RunPosition) -> None:
        """Note the position that is saved; the best evaluation is that of the checkpoint that keeps it."""
        self.progress.step = position.completed // self.workers
        self.progress.examples = position.examples
        evaluations = self.evaluations
        if self._saves_best and evaluations is not None and evaluations.best is not None:
            evaluations.best = evaluations.last = replace(evaluations.best, step=self.progress.step)
        self._saves_best = False

    def _save_if_due(self) -> None:
        if self._writer is None or self._saves_every is None:
            return
        last = self._position.completed // self.workers if self._position is not None else self.resumed_from
        due = self.progress.step // self._saves_every > (last or 0) // self._saves_every
        if due or self._saves_best:
            self.save()

    def _saved_progress(self) -> dict[str, Any]:
        assert self._position is not None
        tickets = {
            "workers": self.workers,
            "first_untaken": self._position.first_untaken,
            "undone": self._position.undone,
        }
        return {**super()._saved_progress(), "tickets": tickets}

    def _first_unfinished_step(self) -> int:
        assert self._position is not None
        return min([self._position.first_untaken, *self._position.undone]) // self.workers

    def _finish(self, preempted: bool) -> None:
        """Wait for all ranks, and save the end of the run."""
        self._gather_windows()
        self.process_group.wait_for_all()
        position = self._coordinator.position()
        self._note(position)
        if self.learner.dense_weights is not None:
            self.learner.dense_weights.peek_from(self.remote)
        if self.process_group.is_main:
            self._gather_windows()
            self._finish_main(position, preempted)
        self.process_group.wait_for_all()  # servers are needed until the last checkpoint is complete

    def _finish_main(self, position: RunPosition, preempted: bool) -> None:
        """Evaluate and save the end of the run: also if a checkpoint of this step was taken with tickets in flight."""
        self._evaluate_end(preempted)
        if self._writer is not None and self._position not in (None, position):
            self.save()
        Session._finish(self, preempted)

    def _resume(self, checkpoint_store: CheckpointStore, chain: list[Manifest]) -> None:
        super()._resume(checkpoint_store, chain)
        self._saved_tickets = chain[-1].progress.get("tickets")

    def _synchronise_start(self) -> None:
        """Load dense weights and tickets on the servers, then bring all ranks to the same position."""
        self._coordinator = Coordinator(self.remote.pool)
        dense = self.learner.dense_weights
        if self.process_group.is_main:
            if dense is not None:
                self.store.load(DENSE_TABLE, dense.to_state())
            self._begin_tickets()
        super()._synchronise_start()
        self._evaluated_step = self._scheduled_step = self.progress.step
        if dense is not None and isinstance(self.store, GeoStore):
            self.store.load_local(DENSE_TABLE, dense.to_state())
        if self.options.day_every is not None:
            self._days = self.progress.examples // self.options.day_every

    def _begin_tickets(self) -> None:
        """Set the ticket book: to that of the checkpoint, if it is one of as many workers."""
        saved = self._saved_tickets
        if saved is not None and saved["workers"] == self.workers:
            self._coordinator.begin(saved["first_untaken"], self.progress.examples, saved["undone"])
            return
        if saved is not None and saved["undone"]:
            self._notify(
                f"{len(saved['undone'])} shares of batches were in flight when {saved['workers']} workers saved this"
                " checkpoint: with another number of workers they are skipped, and as many repeated"
            )
        self._coordinator.begin(self.progress.step * self.workers, self.progress.examples, [])
