"""Which ranks own the shards of each table: the replicas of the stage that uses it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from berth.errors import InputError
from berth.train.embedding import embeddings_of
from berth.train.stages.cut import Layout, StageCut
from berth.zoo import LayeredModel


def owners_of_tables(model: nn.Module, layout: Layout, cuts: Sequence[StageCut]) -> dict[str, list[int]]:
    """Return the ranks that own each table, by shard, for all tables in the order of the model."""
    stages = {layer.spec_name: 0 for layer in embeddings_of(model)}
    if cuts:
        assert isinstance(model, LayeredModel)
        found: dict[str, list[int]] = {}
        for stage, cut in enumerate(cuts):
            for layer in embeddings_of(model.stage(cut.first, cut.last + 1)):
                found.setdefault(layer.spec_name, []).append(stage)
        for name, users in found.items():
            if len(users) > 1:
                numbers = " and ".join(str(stage + 1) for stage in users)
                raise InputError(
                    f"table {name!r} is used by stages {numbers}, so it can't be in the memory of one of them",
                    hint="use --tables servers, or split the model elsewhere",
                )
            stages[name] = users[0]
    return {name: layout.stage_ranks(stage) for name, stage in stages.items()}
