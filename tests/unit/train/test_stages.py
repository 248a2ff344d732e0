"""Cuts, the order of micro-batches, and state that does not know how a model was cut."""

from __future__ import annotations

import pytest
import torch

from berth.errors import InputError
from berth.plan.objective.order import one_forward_one_backward
from berth.train.checkpoint.dense import dense_state
from berth.train.stages.cut import Layout, even_cuts
from berth.train.stages.dense import load_stage_optimiser, merge_stages, stage_optimiser_state, stage_weights
from berth.zoo import make_model


@pytest.mark.parametrize(
    ("micro_batches", "stage", "stages", "order"),
    [
        (3, 0, 1, "FBFBFB"),
        (3, 1, 2, "FBFBFB"),
        (4, 0, 2, "FFBFBFBB"),
        (4, 0, 3, "FFFBFBBB"),
        (4, 1, 3, "FFBFBFBB"),
        (4, 2, 3, "FBFBFBFB"),
        (2, 0, 4, "FFBB"),
    ],
)
def test_a_stage_holds_no_more_micro_batches_than_stages_follow_it(micro_batches, stage, stages, order):
    made = "".join("F" if ahead else "B" for ahead in one_forward_one_backward(micro_batches, stage, stages))
    assert made == order
    held = [made[: at + 1].count("F") - made[: at + 1].count("B") for at in range(len(made))]
    assert max(held) <= stages - stage
    assert held[-1] == 0


def test_even_cuts_cover_every_layer_once():
    for stages in range(1, 17):
        cuts = even_cuts(16, stages)
        assert [layer for cut in cuts for layer in range(cut.first, cut.last + 1)] == list(range(16))
    with pytest.raises(InputError, match="1 to 16 stages"):
        even_cuts(16, 17)


def test_ranks_of_a_stage_follow_each_other():
    layout = Layout((2, 3, 1))
    places = [(layout.stage(rank), layout.replica(rank)) for rank in range(layout.world_size)]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert [layout.rank(*place) for place in places] == list(range(6))
    assert layout.stage_ranks(1) == [2, 3, 4]
    assert (layout.stages, layout.readers, str(layout)) == (3, 2, "2 + 3 + 1")


def test_the_parts_of_stages_join_to_what_one_process_saves():
    def learned(model, weights):
        optimiser = torch.optim.Adam(weights, lr=0.01)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimiser.step()
        return optimiser

    whole = make_model("ctrdnn-8", rows=4)
    alone = dense_state(whole, learned(whole, list(whole.parameters())))
    cut = make_model("ctrdnn-8", rows=4)
    parts = []
    for one in even_cuts(len(cut), 3):
        prefixes = [f"chain.{name}." for name in cut.names[one.first : one.last + 1]]
        weights = list(cut.stage(one.first, one.last + 1).parameters())
        optimiser = learned(cut, weights) if weights else None
        parts.append((stage_weights(cut, prefixes), stage_optimiser_state(cut, optimiser)))
    merged = dense_state(*merge_stages(cut, parts))
    assert merged[1] == alone[1]
    for name, array in alone[0].items():
        if not name.startswith("random"):
            assert (merged[0][name] == array).all(), name


def test_a_stage_takes_its_part_of_a_whole_optimiser():
    whole = make_model("ctrdnn-8", rows=4)
    everything = torch.optim.Adam(whole.parameters(), lr=0.01)
    for number, weight in enumerate(whole.parameters()):
        weight.grad = torch.full_like(weight, float(number + 1))
    everything.step()
    last = list(whole.stage(5, 8).parameters())
    mine = torch.optim.Adam(last, lr=0.5)
    load_stage_optimiser(whole, mine, everything.state_dict())
    assert mine.param_groups[0]["lr"] == 0.01
    for weight in last:
        assert torch.equal(mine.state[weight]["exp_avg"], everything.state[weight]["exp_avg"])
