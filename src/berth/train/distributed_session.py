"""A training run in several processes; each is one replica of one stage, in lock-step.

At the end of every step the ranks agree on the loss, on whether to stop, and on whether the data has ended, so all stop
after the same step. Rank 0 writes checkpoints and sends the others the state to resume from.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from berth.train.checkpoint import CheckpointStore, Manifest
from berth.train.checkpoint.dense import dense_state, load_weights, unpacked
from berth.train.data import BatchSource
from berth.train.data.prefetch import Prefetcher
from berth.train.embedding import embeddings_of
from berth.train.evaluate import Evaluations, ScoredExamples
from berth.train.heartbeat import HEARTBEAT
from berth.train.learner import Learner, Scores
from berth.train.local import LocalStore
from berth.train.metrics import join_windows
from berth.train.optimisers import optimiser_for
from berth.train.options import TrainOptions
from berth.train.process_group import ProcessGroup
from berth.train.resident.statistics import add_up_shards
from berth.train.result import Result
from berth.train.session import Session
from berth.train.sparse import SparseStore
from berth.train.stages.dense import load_stage_optimiser, merge_stages, stage_optimiser_state, stage_weights
from berth.train.stages.learner import StageLearner

if TYPE_CHECKING:
    from berth.train.planned import PlannedRun

GATHER_INTERVAL_S = 0.5  # between two gatherings of scores
_TIMED_STEPS = 1000  # the last ones


class DistributedSession(Session):
    """One rank of a run."""

    def __init__(
        self,
        model: nn.Module,
        data: BatchSource,
        options: TrainOptions,
        *,
        process_group: ProcessGroup,
        store: SparseStore | None,
        learner: Callable[[SparseStore], Learner],
        planned: PlannedRun | None = None,
        notify: Callable[[str], None] = print,
        **more: Any,  # as of `Session`
    ) -> None:
        self.process_group = process_group
        self._other_windows: list[
            dict[str, Any]
        ] = []  # last scores of the other first-stage replicas, on rank 0
        self._other_shards: list[dict[str, Any]] = []  # statistics of the other ranks' rows, on rank 0
        self._gathered_at = 0.0
        self._step_s: deque[float] = deque(maxlen=_TIMED_STEPS)
        self._stop_agreed = False
        self._wants_gathering = False
        self._exhausted = False
        self._resumed_dense: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._resumed_position: dict[str, Any] | None = None
        checkpoints = options.checkpointing
        self._saves_every = checkpoints.every if checkpoints is not None else None
        if not process_group.is_main:
            options = replace(options, checkpoints=None, best=None)
            more["callbacks"] = ()
        super().__init__(
            model,
            data,
            options,
            store=store,
            learner=learner,
            share=process_group.share,
            notify=notify,
            **more,
        )
        self.rank_info = process_group.rank_info
        self.planned = planned
        self.store.attend_checkpoint()
        self._synchronise_start()

    def steps(self, until: int | None = None) -> Generator[float, None, None]:
        """Yield the loss of every step; all ranks stop after the same one."""
        reads = self.process_group.stage == 0
        batches = self.data.batches(self.batch, self.progress.step, self.process_group.share, self.seed)
        ahead = Prefetcher(batches) if reads else None
        first = True
        try:
            batch = next(ahead, None) if ahead else None
            self._stop_agreed, ended, _, _ = self._agree(
                (self._stop_requested(), reads and batch is None, False), 0.0
            )
            self.progress.begin()
            step_began = time.perf_counter()
            while (until is None or self.progress.step < until) and not (
                self._stop_agreed or ended or self._exhausted
            ):
                self._seed_step()
                following = next(ahead, None) if ahead else None
                if following is not None:
                    self.learner.prefetch(following)
                flags = (self._stop_requested(), reads and following is None, self._wants_scores(until))
                self.process_group.flags = tuple(map(float, flags))
                loss, scores = self._step(batch)
                examples = batch.whole if batch is not None and batch.whole is not None else self.batch
                batch = following
                flags = (self._stop_requested(), *flags[1:])
                self._stop_agreed, ended, gather, loss = self._agree(flags, loss)
                self._wants_gathering = gather
                self._end_step(loss, examples, scores)
                if first:
                    self._warn_about_prefetch()
                first = False
                step_began, began = time.perf_counter(), step_began
                self._step_s.append(step_began - began)
                yield loss
        finally:
            if ahead is not None:
                ahead.close()

    @property
    def _stopping(self) -> bool:
        return self._stop_agreed

    def _stop_requested(self) -> bool:
        return self._interruption is not None and self._interruption.requested

    def _step(self, batch: Any) -> tuple[float, Any]:
        if self.process_group.stage == 0:
            return self.learner.step(self.progress.step, batch)
        assert isinstance(self.learner, StageLearner)
        self.learner.follow(self.progress.step)
        return 0.0, (None, None)

    def _agree(self, flags: tuple[bool, bool, bool], loss: float) -> tuple[bool, bool, bool, float]:
        """Return whether any rank was asked to stop, whether any reached the end of the data, whether rank 0 wants the
        scores of all, and the sum of the losses."""
        sums, self.process_group.step_sums = self.process_group.step_sums, None
        if sums is None:  # not sent along with the gradients
            sums = self.process_group.agree([*map(float, flags), loss])
        return sums[0] > 0, sums[1] > 0, sums[2] > 0, sums[3]

    def _warn_about_prefetch(self) -> None:
        """Warn about tables whose keys are not among the model inputs, so they can't be prefetched from servers."""
        tables = self.learner.tables_without_prefetch
        if tables and self.process_group.is_main and not isinstance(self.store, LocalStore):
            self._notify(
                f"keys of {', '.join(tables)} are computed inside the model, so rows are not prefetched:"
                " pass the keys to the model as an entry of its inputs"
            )

    def _wants_scores(self, until: int | None) -> bool:
        """Return whether rank 0 gathers scores and statistics of all replicas after this step, to report them."""
        if not self.process_group.is_main or not self._reports:
            return False
        if self.process_group.layout.readers == 1 and not self._has_other_shards:
            return False
        now, last = time.monotonic(), self.progress.step + 1 == until
        if not last and now - self._gathered_at < GATHER_INTERVAL_S:
            return False
        self._gathered_at = now
        return True

    def _gather_windows(self) -> None:
        """Send the last scores, which the replicas of the first stage hold, to rank 0."""
        layout, channel = self.process_group.layout, self.process_group.channel
        if layout.readers == 1 or self.process_group.stage:
            return
        if not self.process_group.is_main:
            channel.send(
                0, {name: torch.from_numpy(part) for name, part in self.progress.window.arrays().items()}
            )
            channel.flush()
            return
        received = [channel.receive(rank) for rank in layout.stage_ranks(0)[1:]]
        self._other_windows = [{name: part.numpy() for name, part in one.items()} for one in received]
        together = join_windows(self._windows())
        self.progress.add_global(together["scores"], together["labels"])

    @property
    def _has_other_shards(self) -> bool:
        return self.store.is_shard and self.process_group.rank_info.world_size > 1

    def _gather_shards(self) -> None:
        """Send the statistics of this rank's rows to rank 0."""
        channel = self.process_group.channel
        if not self.process_group.is_main:
            channel.send(0, self._own_shard())
            channel.flush()
            return
        others = range(1, self.process_group.rank_info.world_size)
        self._other_shards = [channel.receive(rank) for rank in others]

    def _own_shard(self) -> dict[str, Any]:
        return {"stage": self.process_group.stage, "shards": self.store.statistics()}

    def statistics(self) -> Mapping[str, Any]:
        """Return those of all ranks, as last gathered."""
        if not self.store.is_shard:
            return super().statistics()
        return add_up_shards([self._own_shard(), *self._other_shards])

    def _windows(self) -> list[dict[str, Any]]:
        return [*super()._windows(), *self._other_windows]

    def _load_windows(self, windows: list[dict[str, Any]]) -> None:
        super()._load_windows(windows)
        self._other_windows = windows[1:]

    def _scheduler(self) -> LRScheduler | None:
        """Return the scheduler of this stage; one without weights has one too, since rank 0 saves its own."""
        made = self._make_scheduler
        if made is None or isinstance(made, LRScheduler):
            return made
        placeholder = optimiser_for(nn.Linear(1, 1), self._optimiser)
        optimiser = self.learner.optimiser or placeholder
        return made(optimiser) if optimiser is not None else None

    def _count(self, loss: float, examples: int, scores: Scores) -> None:
        super()._count(loss, examples, scores)
        HEARTBEAT.step = self.progress.step
        if self._wants_gathering:
            self._gather_windows()
            if self._has_other_shards:
                self._gather_shards()

    def _check_finite(self, loss: float) -> None:
        """Raise on rank 0; the others wait until it has reported the error."""
        if not math.isfinite(loss) and not self.process_group.is_main:
            self.process_group.wait_for_all()
        super()._check_finite(loss)

    def _evaluate(self, evaluations: Evaluations) -> None:
        """Score in all workers, or on rank 0 where they have a part of the layers; all learn the outcome."""
        group = self.process_group
        if group.layout.stages > 1:
            if group.is_main:
                self._load_stages()
                with self.store.evaluation():
                    scored = self._score(evaluations.data)
                self._record(evaluations, scored)
            else:
                self._send_weights()
                with self.store.evaluation():
                    pass
        else:
            with self.store.evaluation():
                scored = self._score(evaluations.data, group.share)
            if group.is_main:
                for rank in range(1, group.rank_info.world_size):
                    scored.join(ScoredExamples.from_message(group.channel.receive(rank)))
                self._record(evaluations, scored)
            else:
                group.channel.send(0, scored.message())
                group.channel.flush()
        best, self._exhausted = (
            total > 0 for total in group.agree([self._saves_best, super()._is_exhausted])
        )
        self._saves_best = best

    def _load_stages(self) -> None:
        """Load the weights of later stages, which rank 0 does not train, to score the whole model on its device."""
        assert isinstance(self.learner, StageLearner)
        for name, layer in self.learner.whole.chain.items():
            if name not in self.learner.layers:
                layer.to(self.device)
        for stage in range(1, self.process_group.layout.stages):
            message = self.process_group.channel.receive(self.process_group.layout.rank(stage, 0))
            self.model.load_state_dict(message["weights"], strict=False)
        for layer in embeddings_of(self.model):
            if not layer.is_connected:
                layer.connect(self.store)

    @property
    def _is_exhausted(self) -> bool:
        return self._exhausted

    def _seed_step(self) -> None:
        """Seed the generator from run seed, step and rank, so that a resumed run draws the same numbers."""
        torch.manual_seed(
            (self.seed * 1_000_003 + self.progress.step) * 4_099 + self.process_group.rank_info.rank
        )

    def _result(self, preempted: bool, losses: list[float]) -> Result:
        """Return the result; rank 0 adds the statistics and CPU time of all processes."""
        own: dict[str, Any] = {
            "stage": self.process_group.stage,
            "replica": self.process_group.replica,
            "pid": os.getpid(),
            "device": str(self.learner.device),
            "cpu_ms_per_1000": self.progress.cpu_ms_per_1000,
            "sent_bytes": self.process_group.channel.sent_bytes,
            "micro_batches": self.learner.micro_batches_done,
            "examples": self.learner.examples_done,
            "work_s": median(self.learner.work_s) if self.learner.work_s else None,
        }
        if isinstance(self.learner, StageLearner):
            own |= {
                "layers": list(self.learner.layers),
                "slowdown": self.learner.cut.slowdown,
                "boundary_copies": self.learner.boundary_copies,
                "busy_s": self.learner.busy_s / max(len(losses), 1),
            }
        result = super()._result(preempted, losses)
        own["shared_memory"] = result.statistics.get("shared_memory")
        if self.store.is_shard:
            own["shards"] = result.statistics
        if not self.process_group.is_main:
            self.process_group.channel.send(0, own)
            return result
        others = [
            self.process_group.channel.receive(rank)
            for rank in range(1, self.process_group.rank_info.world_size)
        ]
        examples = max(self.progress.examples_here, 1)
        served = sum(one["cpu_s"] for one in result.statistics.get("servers", ())) * 1e6 / examples
        workers = sum(one["cpu_ms_per_1000"] for one in (own, *others))
        statistics = {
            **result.statistics,
            **(add_up_shards([own, *others]) if "shards" in own else {}),
            "workers": [own, *others],
            "step_s": median(self._step_s) if self._step_s else None,
        }
        return replace(result, cpu_ms_per_1000=workers + served, statistics=statistics)

    def close(self, *, keep_rows: bool = False) -> None:
        """Close the session and leave the process group."""
        super().close(keep_rows=keep_rows)
        self.process_group.leave()

    def _resume(self, checkpoint_store: CheckpointStore, chain: list[Manifest]) -> None:
        super()._resume(checkpoint_store, chain)
        self._resumed_position = chain[-1].position

    def _synchronise_start(self) -> None:
        """Bring all ranks to the step, weights and data position that rank 0 resumed from."""
        channel = self.process_group.channel
        if self.process_group.is_main:
            self._exhausted = super()._is_exhausted
            message: dict[str, Any] = {
                "step": self.progress.step,
                "examples": self.progress.examples,
                "position": self._resumed_position,
                "exhausted": self._exhausted,
            }
            if self._resumed_dense is not None:
                arrays, meta = self._resumed_dense
                message |= {"meta": json.dumps(meta)}
                message |= {"arrays": {name: torch.from_numpy(array) for name, array in arrays.items()}}
            layout = self.process_group.layout
            for rank in range(1, self.process_group.rank_info.world_size):
                reads = layout.stage(rank) == 0
                saved = self._other_windows[rank - 1] if self._other_windows and reads else {}
                window = {name: torch.from_numpy(part) for name, part in saved.items()}
                channel.send(rank, {**message, "window": window})
            channel.flush()
            self._resumed_dense = None
        else:
            message = channel.receive(0)
            self.progress.step, self.progress.examples = message["step"], message["examples"]
            self._exhausted = message["exhausted"]
            if message["window"]:
                self.progress.window.load({name: part.numpy() for name, part in message["window"].items()})
            if message["position"] is not None:
                self.data.seek(message["position"])
            if "meta" in message:
                arrays = {name: part.numpy() for name, part in message["arrays"].items()}
                self._load_dense(arrays, json.loads(message["meta"]))
        self.process_group.wait_for_all()

    def _save_if_due(self) -> None:
        if self._saves_every is None or (self.progress.step % self._saves_every and not self._saves_best):
            return
        self._gather_windows()
        self._saves_best = False
        if self.process_group.is_main:
            self.save()
        else:
            self._follow_save()

    def save(self) -> None:
        """Checkpoint this step on rank 0; the others follow."""
        try:
            super().save()
        finally:
            self.store.attend_checkpoint()

    def _follow_save(self) -> None:
        """Send weights of this stage, and write this rank's shards of resident tables."""
        self._send_weights()
        self.store.attend_checkpoint()

    def _evaluate_end(self, preempted: bool) -> None:
        due = self.process_group.is_main and self._is_end_due(preempted)
        if self.evaluations is not None and self.process_group.agree([float(due)])[0] > 0:
            self._evaluate(self.evaluations)

    def _finish(self, preempted: bool) -> None:
        self._gather_windows()
        self._evaluate_end(preempted)
        writes = self._writer is not None and (self._writer.last != self.progress.step or self._saves_best)
        if self.process_group.agree([float(writes)])[0] > 0 and not self.process_group.is_main:
            self._follow_save()
        self._save_end(preempted)
        self.process_group.wait_for_all()  # servers are needed until the last checkpoint is complete

    def _stage_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        assert isinstance(self.learner, StageLearner)
        weights = stage_weights(self.model, self.learner.prefixes)
        return weights, stage_optimiser_state(self.model, self.learner.optimiser)

    def _send_weights(self) -> None:
        """Send this stage's weights to rank 0, from one replica only: the others hold the same."""
        if self.process_group.replica == 0 and self.process_group.stage > 0:
            weights, optimiser = self._stage_state()
            self.process_group.channel.send(0, {"weights": weights, **optimiser})
            self.process_group.channel.flush()

    def _dense(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of all stages; their schedules are equal."""
        if self.process_group.layout.stages == 1:
            return super()._dense()
        parts = [self._stage_state()]
        for stage in range(1, self.process_group.layout.stages):
            message = self.process_group.channel.receive(self.process_group.layout.rank(stage, 0))
            parts.append((message.pop("weights"), message))
        return dense_state(*merge_stages(self.model, parts), self.scheduler)

    def _load_dense(self, arrays: Mapping[str, Any], meta: dict[str, Any]) -> None:
        """Load this stage's part of the state of the whole model."""
        self._resumed_dense = (dict(arrays), meta) if self.process_group.is_main else None
        load_weights(self.model, arrays, meta)
        if meta["optimiser"] is not None and self.learner.optimiser is not None:
            state = unpacked(meta["optimiser"], arrays)
            if self.process_group.layout.stages == 1:
                self.learner.optimiser.load_state_dict(state)
            else:
                load_stage_optimiser(self.model, self.learner.optimiser, state)
        if self.scheduler is not None and meta.get("scheduler") is not None:
            self.scheduler.load_state_dict(unpacked(meta["scheduler"], arrays))
