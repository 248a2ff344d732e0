"""Which ranks own the shards of each table: the replicas of the stage that uses it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from berth.errors import InputError
from berth.train.embedding import embeddings_of
from berth.train.stages.cut import Layout, StageCut
from berth.zoo import LayeredModel


def owners_of_tables(
    model: nn.Module, layout: Layout, cuts: Sequence[StageCut], resident: Collection[int]
) -> dict[str, list[int]]:
    """Return the ranks that own each table of the `resident` stages, by shard, in the order of the model."""
    owners = {}
    for name, stages in stages_of_tables(model, cuts).items():
        if not set(stages) & set(resident):
            continue
        if len(stages) > 1:
            numbers = " and ".join(str(stage + 1) for stage in stages)
            raise InputError(
                f"table {name!r} is used by stages {numbers}, so it can't be in the memory of one of them",
                hint="use --tables servers, or split the model elsewhere",
            )
        owners[name] = layout.stage_ranks(stages[0])
    return owners


def stages_of_tables(model: nn.Module, cuts: Sequence[StageCut]) -> dict[str, list[int]]:
    """Return the stages that use each table, in the order of the model; without cuts there is one stage."""
    if not cuts:
        return {layer.spec_name: [0] for layer in embeddings_of(model)}
    assert isinstance(model, LayeredModel)
    found: dict[str, list[int]] = {layer.spec_name: [] for layer in embeddings_of(model)}
    for stage, cut in enumerate(cuts):
        for layer in embeddings_of(model.stage(cut.first, cut.last + 1)):
            found[layer.spec_name].append(stage)
    return found
