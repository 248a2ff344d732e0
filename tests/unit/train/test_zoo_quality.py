"""Models of the zoo learn what plain torch learns: the same start, the same examples, the same optimisers.

Each reference is written from the paper's formulas with nn.Embedding and shares no code with the zoo.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from berth.train import Session
from berth.train.data import Batch, ClickStream, Share
from berth.train.embedding import embeddings_of
from berth.train.metrics import auc
from berth.train.options import TrainOptions
from berth.train.recipes import make_recipe
from berth.train.tables import Initialiser, adagrad
from berth.zoo.products import VARIABLE

BATCH, HELD_OUT = 256, 8192
# AdaGrad from an accumulator of 0 moves a weight by its rate on its first gradient, however small, and so does Adam: a
# rounding error may decide the direction, and two exact implementations drift apart, by how much depends on the
# processor. These keep updates by small gradients small.
INITIAL = 1e-3  # the square of a gradient
EPS = 1e-3  # of Adam
SLOTS, DENSE, WIDTH = 26, 13, 16


def mlp(*sizes):
    layers = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class Reference(nn.Module):
    """Tables by name; `rows(name, ids)` sums the vectors of a slot."""

    def __init__(self, sizes):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(*size, sparse=True) for name, size in sizes.items()})

    def rows(self, name, ids):
        return self.tables[name](ids).sum(dim=2)


class Dlrm(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        self.bottom = mlp(DENSE, 256, 64, WIDTH)
        self.top = nn.Sequential(mlp(WIDTH + 351, 256, 128), nn.Linear(128, 1))

    def forward(self, ids, features):
        below = self.bottom(features)
        vectors = [below, *self.rows("embedding", ids["slots"]).unbind(1)]
        products = [(vectors[i] * vectors[j]).sum(1) for i in range(27) for j in range(i)]
        return self.top(torch.cat([below, torch.stack(products, 1)], 1))


class Dcn(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        joined = SLOTS * WIDTH + DENSE
        self.norm = nn.LayerNorm(joined)
        self.cross = nn.ModuleList(nn.Linear(joined, joined) for _ in range(3))
        self.top = nn.Sequential(mlp(joined, 256, 128), nn.Linear(128, 1))

    def forward(self, ids, features):
        first = self.norm(torch.cat([self.rows("embedding", ids["slots"]).flatten(1), features], 1))
        x = first
        for layer in self.cross:
            x = first * layer(x) + x
        return self.top(x)


class DeepFm(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        self.linear = nn.Linear(DENSE, 1)
        self.tower = nn.Sequential(mlp(SLOTS * WIDTH + DENSE, 256, 128), nn.Linear(128, 1))

    def forward(self, ids, features):
        vectors = self.rows("embedding", ids["slots"])
        pairs = sum((vectors[:, i] * vectors[:, j]).sum(1, keepdim=True) for i in range(26) for j in range(i))
        first_order = self.rows("first_order", ids["slots"]).sum(1) + self.linear(features)
        return first_order + pairs + self.tower(torch.cat([vectors.flatten(1), features], 1))


class WideDeep(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        self.linear = nn.Linear(DENSE, 1)
        self.tower = nn.Sequential(mlp(SLOTS * WIDTH + DENSE, 256, 128), nn.Linear(128, 1))

    def forward(self, ids, features):
        deep = torch.cat([self.rows("embedding", ids["slots"]).flatten(1), features], 1)
        return self.rows("wide", ids["wide"]).sum(1) + self.linear(features) + self.tower(deep)


class Mmoe(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        joined = SLOTS * WIDTH + DENSE
        self.norm = nn.LayerNorm(joined)
        self.experts = nn.ModuleList(mlp(joined, 128) for _ in range(4))
        self.gate = nn.Linear(joined, 8)
        self.towers = nn.ModuleList(mlp(128, 64) for _ in range(2))
        self.predict = nn.ModuleList(nn.Linear(64, 1) for _ in range(2))

    def forward(self, ids, features):
        x = self.norm(torch.cat([self.rows("embedding", ids["slots"]).flatten(1), features], 1))
        opinions = [expert(x) for expert in self.experts]
        logits = []
        for task in range(2):
            shares = self.gate(x)[:, 4 * task : 4 * task + 4].softmax(1)
            mixed = sum(shares[:, i : i + 1] * opinions[i] for i in range(4))
            logits.append(self.predict[task](self.towers[task](mixed)))
        return torch.cat(logits, 1)


class CtrDnn(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        joined = SLOTS * WIDTH + DENSE
        self.top = nn.Sequential(nn.LayerNorm(joined), mlp(joined, 512, 256), nn.Linear(256, 2))

    def forward(self, ids, features):
        scores = self.top(torch.cat([self.rows("embedding", ids["slots"]).flatten(1), features], 1))
        return scores[:, 1:] - scores[:, :1]  # a softmax of two is a sigmoid of the difference


class MatchNet(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        sides = {"user": [256, 512, 256, 128], "item": [160, 512, 256, 128]}
        self.towers = nn.ModuleList(mlp(*sizes[n : n + 2]) for n in range(3) for sizes in sides.values())
        self.norms = nn.ModuleList(nn.LayerNorm(128) for _ in sides)
        self.top = nn.Sequential(mlp(256, 128), nn.Linear(128, 2))

    def forward(self, ids, features):
        vectors = []
        for number, side in enumerate(("user", "item")):
            x = self.rows(f"{side}_embedding", ids[side]).flatten(1)
            for layer in self.towers[number::2]:
                x = layer(x)
            vectors.append(self.norms[number](x))
        user, item = vectors
        scores = self.top(torch.cat([user * item, (user - item).abs()], 1))
        return scores[:, 1:] - scores[:, :1]


class TwoEmb(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        self.top = nn.Sequential(nn.LayerNorm(640), mlp(640, 256, 64), nn.Linear(64, 2))

    def forward(self, ids, features):
        vectors = [self.rows(f"{side}_embedding", ids[side]).flatten(1) for side in ("user", "item")]
        scores = self.top(torch.cat(vectors, 1))
        return scores[:, 1:] - scores[:, :1]


class Nce(Reference):
    def __init__(self, sizes):
        super().__init__(sizes)
        self.projection = nn.Linear(64, 64)

    def forward(self, ids, features):
        context = self.projection(self.tables["context_embedding"](ids["context"]).mean(1))
        candidates = self.tables["candidate_embedding"](ids["candidates"])
        return (candidates * context[:, None]).sum(2) - np.log(16)


CASES = {
    "ctrdnn-8": CtrDnn,
    "dlrm": Dlrm,
    "dcn-v2": Dcn,
    "deepfm": DeepFm,
    "wide-deep": WideDeep,
    "mmoe": Mmoe,
    "matchnet": MatchNet,
    "2emb": TwoEmb,
    "nce": Nce,
}
TABLES = {
    "first_order": "slots",
    "wide": "wide",
    "embedding": "slots",
    "user_embedding": "user",
    "item_embedding": "item",
    "context_embedding": "context",
    "candidate_embedding": "candidates",
}
STEPS = {"2emb": 30, "matchnet": 30}  # their examples have 200 and 84 ids
SCALES = {
    "matchnet": 0.25
}  # of initial rows: its norms after the towers would magnify rounding errors of small ones
RATES = {"nce": 5.0}  # of rows: words are many, examples few
LEAST = {"2emb": 0.52, "matchnet": 0.52, "nce": 0.52}  # AUC of a model that learns


def examples(recipe, steps):
    """All examples of the run and those held out, as one batch."""
    if isinstance(recipe.data, ClickStream):
        keys, dense, _, labels = map(torch.from_numpy, recipe.data.draw(0, BATCH * steps + HELD_OUT))
        return {"slots": keys[:, :, None], "dense": dense}, labels
    return recipe.model.example_batch(BATCH * steps + HELD_OUT, 0)


class Stored:
    """The examples in order, as the source of a run."""

    def __init__(self, inputs, labels, steps):
        self.inputs, self.labels, self.steps = inputs, labels, steps

    def describe(self):
        return {}

    def batches(self, batch, step, share, seed):
        for start in range(step * batch, batch * self.steps, batch):
            rows = slice(start, start + batch)
            yield Batch({name: part[rows] for name, part in self.inputs.items()}, self.labels[rows], batch)


def crossed(slots):
    """Ids of all slots and of pairs of the first nine, numbered: equal numbers for equal ids of a slot."""
    numbers, count = [], 0
    columns = [slots[:, slot].numpy() for slot in range(SLOTS)]
    pairs = [np.stack([columns[slot], columns[slot + 1]], axis=-1) for slot in range(8)]
    for column in (*columns, *pairs):
        axis = None if column.ndim == 2 else 0
        flat = column.reshape(-1) if axis is None else column.reshape(-1, 2)
        found, inverse = np.unique(flat, return_inverse=True, axis=axis)
        numbers.append(inverse.reshape(slots[:, 0].shape) + count)
        count += len(found)
    return torch.from_numpy(np.stack(numbers, axis=1))


def numbered(ids):
    _, inverse = np.unique(ids.numpy(), return_inverse=True)
    return torch.from_numpy(inverse.reshape(ids.shape))


def started_alike(name, recipe, inputs):
    """The reference with the initial rows and weights of the zoo's model, and its ids."""
    tables, ids = TABLES, {key: numbered(part) for key, part in inputs.items() if key != "dense"}
    if "slots" in inputs:
        ids = {"slots": crossed(inputs["slots"])[:, :SLOTS], "wide": crossed(inputs["slots"])}
    model = recipe.model.eval()
    initial = {
        layer: model.chain[layer](wide_inputs(model, inputs)) for layer in model.names if layer in tables
    }
    first_rows = {
        layer: state[model.chain[layer].out].reshape(-1, model.chain[layer].rows.dim)
        for layer, state in initial.items()
    }
    sizes = {layer: (int(ids[tables[layer]].max()) + 1, rows.shape[1]) for layer, rows in first_rows.items()}
    reference = CASES[name](sizes)
    with torch.no_grad():
        for layer, rows in first_rows.items():
            reference.tables[layer].weight[ids[tables[layer]].reshape(-1)] = rows
        dense = [weight for key, weight in reference.named_parameters() if not key.startswith("tables")]
        for own, first in zip(dense, model.parameters(), strict=True):
            own.copy_(first)
    model.train()
    return reference, ids, dense


def wide_inputs(model, inputs):
    return model.chain["crosses"](inputs) if "crosses" in model.names else inputs


@torch.sparse.check_sparse_tensor_invariants()  # torch warns unless asked one way or the other
def trained(reference, dense, ids, inputs, labels, steps, rate):
    """The losses of plain training, and then the logits of the held-out examples."""
    losses = []
    adam = torch.optim.Adam(dense, lr=1e-3, eps=EPS)
    of_rows = torch.optim.Adagrad(reference.tables.parameters(), lr=rate, initial_accumulator_value=INITIAL)
    for start in range(0, BATCH * steps, BATCH):
        rows = slice(start, start + BATCH)
        logits = reference(*some(rows, ids, inputs))
        wanted = labels[rows].reshape(BATCH, -1).float()
        loss = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / BATCH
        losses.append(loss.item())
        loss.backward()
        for optimiser in (adam, of_rows):
            optimiser.step()
            optimiser.zero_grad()
    held_out = slice(BATCH * steps, None)
    with torch.no_grad():
        return losses, reference(*some(held_out, ids, inputs))


def some(rows, ids, inputs):
    """Ids and dense features of some examples."""
    return {name: part[rows] for name, part in ids.items()}, inputs["dense"][
        rows
    ] if "dense" in inputs else None


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_model_of_the_zoo_learns_what_plain_torch_does(name, monkeypatch):
    monkeypatch.setenv(VARIABLE, "torch")  # sums in the order of the reference
    steps, rate = STEPS.get(name, 100), RATES.get(name, 0.05)
    recipe = make_recipe(name, batch=BATCH, optimiser=adagrad(rate, INITIAL))
    for layer in embeddings_of(recipe.model) if name in SCALES else ():
        layer.initialiser = Initialiser("uniform", SCALES[name], 0)
    inputs, labels = examples(recipe, steps)
    reference, ids, dense = started_alike(name, recipe, inputs)
    options = TrainOptions(batch=BATCH, dense_options={"eps": EPS})
    session = Session(recipe.model, Stored(inputs, labels, steps), options)
    result = session.run(steps)
    assert result.examples == BATCH * steps
    losses, logits = trained(reference, dense, ids, inputs, labels, steps, rate)
    assert result.losses[:10] == pytest.approx(losses[:10], rel=1e-5)
    scores = held_out_scores(recipe.model, inputs)
    truth = labels[-HELD_OUT:].reshape(HELD_OUT, -1).numpy()
    logits = logits.numpy()
    if name == "nce":  # its columns are candidates, not tasks
        scores, truth, logits = (part.reshape(-1, 1) for part in (scores, truth, logits))
    for task in range(truth.shape[1]):
        ours, theirs = auc(scores[:, task], truth[:, task]), auc(logits[:, task], truth[:, task])
        print(f"{name} task {task}: {ours:.5f}, plain torch {theirs:.5f}")
        assert theirs > LEAST.get(name, 0.62)
        assert ours == pytest.approx(theirs, abs=0.001)


def held_out_scores(model, inputs):
    model.eval()
    with torch.no_grad():
        output = model({key: part[-HELD_OUT:] for key, part in inputs.items()})
    if model.name == "nce":
        return output.numpy()
    output = output.reshape(HELD_OUT, -1, 2)
    return (output[..., 1] - output[..., 0]).numpy()


@pytest.mark.parametrize("name", ["dlrm", "dcn-v2", "deepfm", "wide-deep"])
def test_a_click_model_reads_click_logs(name, tmp_path):
    line = "{}\t" + "\t".join(str(value) for value in range(DENSE)) + "\t{:08x}" * SLOTS + "\n"
    log = tmp_path / "log.tsv"
    log.write_text("".join(line.format(row % 2, *range(row, row + SLOTS)) for row in range(32)))
    recipe = make_recipe(name, data=str(log), batch=16)
    result = Session(recipe.model, recipe.data, TrainOptions(batch=16)).run()
    assert (result.step, result.examples) == (2, 32)
    assert np.isfinite(result.losses).all()


def test_every_task_has_an_auc_and_that_of_the_run_is_the_first():
    recipe = make_recipe("mmoe", batch=64)
    session = Session(recipe.model, recipe.data, TrainOptions(batch=64))
    result = session.run(2)
    batches = zip(range(2), recipe.data.batches(64, 0, Share(), 0), strict=False)
    window = session.progress.window.arrays()
    assert window["labels"].tolist() == torch.cat([batch.labels for _, batch in batches]).tolist()
    assert result.auc == auc(window["scores"][:, 0], window["labels"][:, 0])
    assert result.tasks["task 1"]["auc"] == result.auc
    assert result.tasks["task 2"]["auc"] == auc(window["scores"][:, 1], window["labels"][:, 1])
