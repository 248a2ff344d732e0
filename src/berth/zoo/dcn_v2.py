"""DCN-v2: cross layers multiply the input with itself, under a tower (Wang et al. 2020, stacked).

embedding -> pooling -> concat -> norm -> cross1 .. cross3 -> fc1 -> fc2 -> predict -> loss
"""

from __future__ import annotations

from torch import Tensor, nn

from berth.zoo.ctrdnn import DENSE, SLOTS, examples
from berth.zoo.layered import Layer, LayeredModel, seeded
from berth.zoo.slots import ClickLogProbabilities, Concat, Lookup, Pool, nll, tower

CROSSES = 3
TOWER = (256, 128)

Crossed = tuple[Tensor, Tensor]  # the input of the first cross layer, and the output of the last one


class Cross(nn.Module):
    """x -> first * (W x + b) + x; the last one of a chain passes on x alone."""

    def __init__(self, width: int, *, last: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.last = last

    def forward(self, state: Tensor | Crossed) -> Tensor | Crossed:
        """Return tensors of the same shape."""
        first, x = (state, state) if isinstance(state, Tensor) else state
        crossed: Tensor = first * self.linear(x) + x
        return crossed if self.last else (first, crossed)


def make_model(
    seed: int = 0, *, rows: int = 2**20, width: int = 16, slots: int = SLOTS, features: int = DENSE
) -> LayeredModel:
    """Return eleven layers over one table of `rows` rows."""
    joined = slots * width + features
    sizes = [joined, *TOWER]
    with seeded(seed):
        chain = [
            Layer("embedding", "embedding", Lookup("slots", rows, width)),
            Layer("pooling", "pooling", Pool("slots")),
            Layer("concat", "concat", Concat()),
            Layer("norm", "norm", nn.LayerNorm(joined)),
            *(
                Layer(f"cross{number}", "fully_connected", Cross(joined, last=number == CROSSES))
                for number in range(1, CROSSES + 1)
            ),
            *tower("fc", sizes),
            Layer("predict", "fully_connected", nn.Sequential(nn.Linear(sizes[-1], 1), nn.Flatten(0))),
            Layer("loss", "loss", ClickLogProbabilities()),
        ]
    return LayeredModel("dcn-v2", chain, examples(slots, features), nll, batch=4096, sample="impression")
