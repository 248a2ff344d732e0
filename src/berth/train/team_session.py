"""A training that several processes do together: each has its lane and its stage, all go from step to step as one.

At the end of every step they agree on the loss, on whether somebody was asked to stop, and on whether the data have
come to their end; so all stop after the same step. The lead writes checkpoints, and tells the others where to go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from berth.train.checkpoint import Manifest, Shelf
from berth.train.checkpoint.dense import dense_state, load_weights, unpacked
from berth.train.data import Source
from berth.train.data.prefetch import Ahead
from berth.train.faults import moment
from berth.train.interruption import Interruption
from berth.train.learner import Learner
from berth.train.local import LocalStore
from berth.train.metrics import auc, join_windows
from berth.train.session import Checkpoints, Report, Result, Session
from berth.train.sparse import SparseStore
from berth.train.stages.dense import joined, optimiser_of_stage, take_part, weights_of_stage
from berth.train.stages.learner import StageLearner
from berth.train.team import Team
from berth.train.watch import PULSE

_BETWEEN_S = 0.5  # collections of the scores of all


class TeamSession(Session):
    """One process's part of a training."""

    def __init__(
        self,
        model: nn.Module,
        data: Source,
        *,
        team: Team,
        store: SparseStore | None,
        learner: Callable[[SparseStore], Learner],
        checkpoints: Checkpoints | None = None,
        **options: Any,
    ) -> None:
        self.team = team
        self._others: list[dict[str, Any]] = []  # the last scores of other lanes, where they are known
        self._asked_at = 0.0
        self._resumed_dense: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._resumed_position: dict[str, Any] | None = None
        self._saves_every = checkpoints.every if checkpoints is not None else None
        mine = checkpoints if team.is_lead else None
        super().__init__(
            model, data, store=store, learner=learner, checkpoints=mine, share=team.share, **options
        )
        self._begin_together()

    def run(self, steps: int | None = None, *, report: Report | None = None) -> Result:
        """Trains until step `steps` of the whole run, the end of the data, or a SIGTERM to anybody."""
        reads = self.team.stage == 0
        share = self.team.share
        ahead = Ahead(self.data.batches(self.batch, self.progress.step, share, self.seed)) if reads else None
        losses: list[float] = []
        try:
            with Interruption() as interruption:
                batch = next(ahead, None) if ahead else None
                heard, ended, _, _ = self._agree((interruption.heard, reads and batch is None, False), 0.0)
                self.progress.begin()
                while (steps is None or self.progress.step < steps) and not heard and not ended:
                    self._seed_step()
                    following = next(ahead, None) if ahead else None
                    if following is not None:
                        self.learner.announce(following)
                    flags = (interruption.heard, reads and following is None, self._asks(report, steps))
                    self.team.flags = tuple(map(float, flags))
                    loss, scores = self._step(batch)
                    examples = batch.whole if batch is not None and batch.whole is not None else self.batch
                    batch = following
                    flags = (interruption.heard, *flags[1:])
                    heard, ended, asked, loss = self._agree(flags, loss)
                    losses.append(loss)
                    self._count(loss, examples, scores)
                    PULSE.step = self.progress.step
                    self._warn_of_keys(len(losses))
                    if asked:
                        self._gather()
                    moment("step")
                    self._end_day_if_due()
                    self._save_if_due()
                    if report is not None:
                        report(self)
                self._finish(heard)
        finally:
            if ahead is not None:
                ahead.close()
        result = self._result(heard, losses)
        self._raise_if_stopped(interruption)
        return result

    def _step(self, batch: Any) -> tuple[float, Any]:
        if self.team.stage == 0:
            return self.learner.step(self.progress.step, batch)
        assert isinstance(self.learner, StageLearner)
        self.learner.follow(self.progress.step)
        return 0.0, (None, None)

    def _agree(self, flags: tuple[bool, bool, bool], loss: float) -> tuple[bool, bool, bool, float]:
        """Whether any process was asked to stop, whether any has come to the end of its data, whether the lead asks
        for the scores of all, and the sum of their parts of the loss."""
        said, self.team.said = self.team.said, None
        if said is None:  # it did not go along with gradients
            said = self.team.agree([*map(float, flags), loss])
        return said[0] > 0, said[1] > 0, said[2] > 0, said[3]

    def _warn_of_keys(self, steps: int) -> None:
        """After the first step: keys that are not among the inputs can't be fetched ahead from servers."""
        tables = self.learner.unannounced
        if steps == 1 and tables and self.team.is_lead and not isinstance(self.store, LocalStore):
            self._say(
                f"keys of {', '.join(tables)} are computed inside the model, so rows are not fetched ahead:"
                " give them to the model as an entry of its inputs"
            )

    def _asks(self, report: Report | None, steps: int | None) -> bool:
        """Whether the lead wants the scores of all after this step, to tell the AUC of all."""
        if not self.team.is_lead or report is None or self.team.layout.lanes == 1:
            return False
        now, last = time.monotonic(), self.progress.step + 1 == steps
        if not last and now - self._asked_at < _BETWEEN_S:
            return False
        self._asked_at = now
        return True

    def _gather(self) -> None:
        """The lead gets the last scores of all lanes; they lie with the first stage of each."""
        layout, post = self.team.layout, self.team.post
        if layout.lanes == 1 or self.team.stage:
            return
        if not self.team.is_lead:
            post.send(
                0, {name: torch.from_numpy(part) for name, part in self.progress.window.arrays().items()}
            )
            post.flush()
            return
        told = [post.receive(layout.rank(lane, 0)) for lane in range(1, layout.lanes)]
        self._others = [{name: part.numpy() for name, part in one.items()} for one in told]
        together = join_windows(self._windows())
        self.progress.shared_auc = auc(together["scores"], together["labels"])

    def _windows(self) -> list[dict[str, Any]]:
        return [*super()._windows(), *self._others]

    def _take_windows(self, windows: list[dict[str, Any]]) -> None:
        super()._take_windows(windows)
        self._others = windows[1:]

    def _seed_step(self) -> None:
        """What a layer draws depends on the run's seed, the step and who draws: the same after a restart."""
        torch.manual_seed((self.seed * 1_000_003 + self.progress.step) * 4_099 + self.team.seat.rank)

    def _result(self, preempted: bool, losses: list[float]) -> Result:
        """What everybody did; the lead has it all, with the CPU time of all processes."""
        mine: dict[str, Any] = {
            "stage": self.team.stage,
            "lane": self.team.lane,
            "cpu_ms_per_1000": self.progress.cpu_ms_per_1000,
            "sent_bytes": self.team.post.sent_bytes,
        }
        if isinstance(self.learner, StageLearner):
            mine |= {
                "layers": list(self.learner.layers),
                "slow_down": self.learner.cut.slow_down,
                "busy_s": self.learner.busy_s / max(len(losses), 1),
            }
        alone = super()._result(preempted, losses)
        mine["shared_memory"] = alone.statistics.get("shared_memory")
        if not self.team.is_lead:
            self.team.post.send(0, mine)
            return alone
        others = [self.team.post.receive(rank) for rank in range(1, self.team.seat.world)]
        examples = max(len(losses), 1) * self.batch
        served = sum(one["cpu_s"] for one in alone.statistics.get("servers", ())) * 1e6 / examples
        workers = sum(one["cpu_ms_per_1000"] for one in (mine, *others))
        statistics = {**alone.statistics, "workers": [mine, *others]}
        return replace(alone, cpu_ms_per_1000=workers + served, statistics=statistics)

    def identity(self) -> dict[str, Any]:
        """The same however the model is cut: a stage without weights has no optimiser."""
        trained = any(weight.requires_grad for weight in self.model.parameters())
        return {**super().identity(), "dense optimiser": "Adam" if trained else None}

    def close(self, *, keep_rows: bool = False) -> None:
        """Leaves the other processes too."""
        super().close(keep_rows=keep_rows)
        self.team.leave()

    def _resume(self, shelf: Shelf, chain: list[Manifest]) -> None:
        super()._resume(shelf, chain)
        self._resumed_position = chain[-1].position

    def _begin_together(self) -> None:
        """If the lead has gone on from a checkpoint, all others do."""
        post = self.team.post
        if self.team.is_lead:
            told: dict[str, Any] = {"step": self.progress.step, "position": self._resumed_position}
            if self._resumed_dense is not None:
                arrays, meta = self._resumed_dense
                told |= {"meta": json.dumps(meta)}
                told |= {"arrays": {name: torch.from_numpy(array) for name, array in arrays.items()}}
            layout = self.team.layout
            for rank in range(1, self.team.seat.world):
                mine = self._others[layout.lane(rank) - 1] if self._others and layout.lane(rank) else {}
                window = {name: torch.from_numpy(part) for name, part in mine.items()}
                post.send(rank, {**told, "window": window})
            post.flush()
            self._resumed_dense = None
        else:
            told = post.receive(0)
            self.progress.step = told["step"]
            if told["window"]:
                self.progress.window.load({name: part.numpy() for name, part in told["window"].items()})
            if told["position"] is not None:
                self.data.seek(told["position"])
            if "meta" in told:
                arrays = {name: part.numpy() for name, part in told["arrays"].items()}
                self._take_dense(arrays, json.loads(told["meta"]))
        self.team.wait_for_all()

    def _save_if_due(self) -> None:
        if self._saves_every is None or self.progress.step % self._saves_every:
            return
        self._gather()
        if self.team.is_lead:
            self.save()
        else:
            self._hand_in()

    def _finish(self, preempted: bool) -> None:
        self._gather()
        writes = self._writer is not None and self._writer.last != self.progress.step
        if self.team.agree([float(writes)])[0] > 0 and not self.team.is_lead:
            self._hand_in()
        super()._finish(preempted)
        self.team.wait_for_all()  # servers are needed until the last checkpoint is safe

    def _own_part(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if isinstance(self.learner, StageLearner):
            weights = weights_of_stage(self.model, self.learner.prefixes)
        else:
            weights = dict(self.model.state_dict())
        return weights, optimiser_of_stage(self.model, self.learner.optimiser)

    def _hand_in(self) -> None:
        """A stage of the lead's lane tells the lead its weights; other lanes have the same."""
        if self.team.lane == 0 and self.team.stage > 0:
            weights, optimiser = self._own_part()
            self.team.post.send(0, {"weights": weights, **optimiser})
            self.team.post.flush()

    def _dense(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of all stages: the lead gets those of its own lane."""
        parts = [self._own_part()]
        for stage in range(1, self.team.layout.stages):
            told = self.team.post.receive(self.team.layout.rank(0, stage))
            parts.append((told.pop("weights"), told))
        return dense_state(*joined(self.model, parts))

    def _take_dense(self, arrays: Mapping[str, Any], meta: dict[str, Any]) -> None:
        """What was saved of the whole model; a stage takes its part."""
        self._resumed_dense = (dict(arrays), meta) if self.team.is_lead else None
        load_weights(self.model, arrays, meta)
        if meta["optimiser"] is not None:
            take_part(self.model, self.learner.optimiser, unpacked(meta["optimiser"], arrays))
