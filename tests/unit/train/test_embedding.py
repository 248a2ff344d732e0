"""Rows of a table as a layer: what torch's own embedding would do, without its limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from berth.errors import InputError
from berth.train.data.batch import Batch
from berth.train.embedding import Embedding, SparseLookup, embeddings_of, slot_keys, with_sparse_tables
from berth.train.learner import Learner
from berth.train.local import LocalStore
from berth.train.tables import DecayPolicy, Initialiser, Optimiser, adagrad, sgd
from berth.zoo import make_model


def keys(*shape: int, most: int = 50) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, most, shape))


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (2, 3, 4), (0, 3)])
def test_rows_have_the_shape_of_the_keys_and_one_dimension_more(shape):
    rows = Embedding(6)(keys(*shape))
    assert rows.shape == (*shape, 6)
    assert rows.is_leaf
    assert rows.requires_grad


def test_equal_keys_have_equal_rows_whatever_their_64_bits():
    layer = Embedding(4)
    rows = layer(torch.tensor([-1, 2**62, -1, -(2**63), 2**62]))
    assert torch.equal(rows[0], rows[2])
    assert torch.equal(rows[1], rows[4])
    assert not torch.equal(rows[0], rows[3])


def test_it_learns_as_torch_embedding_with_adagrad_does():
    layer = Embedding(8, optimiser=adagrad(0.05))
    other = torch.nn.Embedding(50, 8, sparse=True)
    with torch.no_grad():
        other.weight.copy_(layer(torch.arange(50)))
    rule = torch.optim.Adagrad(other.parameters(), lr=0.05)
    target = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    for _ in range(5):
        for module in (layer, other):
            ((module(keys(20)) - target) ** 2).sum().backward()
        layer.push()
        with torch.sparse.check_sparse_tensor_invariants(False):
            rule.step()
            rule.zero_grad()
    with torch.no_grad():
        torch.testing.assert_close(layer(torch.arange(50)), other.weight)


def test_a_layer_used_twice_in_a_step_sums_its_gradients():
    layer = Embedding(2, optimiser=adagrad(0.5), initialiser=Initialiser(scale=0.0))
    once = Embedding(2, optimiser=adagrad(0.5), initialiser=Initialiser(scale=0.0))
    (layer(torch.tensor([1])).sum() + 3 * layer(torch.tensor([1, 2])).sum()).backward()
    (4 * once(torch.tensor([1])).sum() + 3 * once(torch.tensor([2])).sum()).backward()
    layer.push()
    once.push()
    with torch.no_grad():
        assert torch.equal(layer(torch.tensor([1, 2])), once(torch.tensor([1, 2])))


@pytest.mark.parametrize("looks", ["eval", "no_grad"])
def test_a_model_that_is_only_evaluated_makes_no_rows(looks):
    layer, store = Embedding(4), LocalStore()
    store.open([layer.spec])
    layer.connect(store)
    layer(torch.arange(5))
    layer.train(looks != "eval")
    with torch.set_grad_enabled(looks != "no_grad"):
        seen = layer(torch.arange(10))
    assert len(store.table("embedding")) == 5
    assert torch.equal(seen, layer.train()(torch.arange(10)).detach())


def test_rows_without_a_gradient_are_not_pushed():
    layer = Embedding(2)
    before = layer(torch.tensor([1])).detach().clone()
    layer.push()
    layer.eval()
    assert not layer(torch.tensor([1])).requires_grad
    assert torch.equal(layer(torch.tensor([1])), before)


@pytest.mark.parametrize("kind", ["momentum", "nesterov"])
def test_optimisers_of_dense_weights_are_refused_for_rows(kind):
    with pytest.raises(InputError, match=f"optimiser '{kind}' is for dense weights"):
        Embedding(2, optimiser=Optimiser(kind))


def test_keys_that_are_not_whole_numbers_are_refused():
    with pytest.raises(InputError, match="keys of an Embedding must be int64, got"):
        Embedding(2)(torch.ones(3))


def test_rows_of_a_slice_that_is_not_contiguous_are_right():
    layer, wide = Embedding(3), keys(6, 4)
    with torch.no_grad():
        assert torch.equal(layer(wide[:, 1]), layer(wide[:, 1].contiguous()))


def test_every_embedding_of_a_model_is_found_once_and_named_after_its_place():
    shared = Embedding(2)
    model = torch.nn.ModuleDict(
        {"a": shared, "b": torch.nn.Sequential(shared, Embedding(3)), "c": Embedding(2, name="x")}
    )
    assert [layer.name for layer in embeddings_of(model)] == ["a", "b.1", "x"]


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("ctrdnn-8", ["embedding"]),
        ("2emb", ["user_embedding", "item_embedding"]),
        ("nce", ["context_embedding", "candidate_embedding"]),
    ],
)
def test_look_ups_of_the_zoo_become_sparse_tables(name, tables):
    model = with_sparse_tables(make_model(name, rows=1), optimiser=sgd(0.1))
    assert [layer.name for layer in embeddings_of(model)] == tables
    assert not any(isinstance(module, torch.nn.Embedding) for module in model.modules())
    assert sum(isinstance(module, SparseLookup) for module in model.modules()) == len(tables)
    inputs, labels = model.example_batch(8)
    loss = model.loss(model(inputs), labels)
    loss.backward()


def test_a_life_cycle_counts_what_was_shown_and_clicked():
    layer = Embedding(2, decay=DecayPolicy())
    layer(torch.tensor([[1, 2], [1, 3]])).sum().backward()
    layer.push(torch.tensor([1, 0]))
    decay = layer._backing_store().table("embedding").save()
    assert decay.keys.tolist() == [1, 2, 3]
    assert decay.records[:, -3:-1].tolist() == [[2, 1], [1, 1], [1, 0]]  # shows, clicks
    layer(torch.tensor([1, 2, 3])).sum().backward()
    with pytest.raises(InputError, match="first dimension"):
        layer.push(torch.tensor([1, 0]))


def test_ids_of_different_slots_never_meet():
    ids = torch.tensor([[0, 0, 0], [2**40, -1, 7], [-5, -1, 0]])
    made = slot_keys(ids)
    assert len(set(made[:2].flatten().tolist())) == 6
    assert made[1, 1] == made[2, 1]
    assert made[0, 2] == made[2, 2]
    assert made[2, 0] not in made[:2, 0]


class TestLocalStore:
    def test_one_name_is_one_table(self):
        store = LocalStore()
        one, same, other = Embedding(4, name="t"), Embedding(4, name="t"), Embedding(5, name="t")
        store.open([one.spec])
        store.open([same.spec])
        with pytest.raises(InputError, match="two different tables are named 't'"):
            store.open([other.spec])

    def test_an_unknown_table_is_named(self):
        with pytest.raises(InputError, match="no table is called 'x'"):
            LocalStore().pull("x", np.zeros(1, np.uint64))

    def test_memory_is_divided_by_the_size_of_a_record(self, tmp_path):
        store = LocalStore(memory_bytes=64 << 20, folder=tmp_path)
        store.open(
            [
                Embedding(30, name="wide", optimiser=sgd()).spec,
                Embedding(10, name="slim", optimiser=sgd()).spec,
            ]
        )
        budgets = [store.table(name).store.memory_bytes for name in ("wide", "slim")]
        assert budgets == [48 << 20, 16 << 20]

    def test_what_was_saved_can_be_loaded_elsewhere(self):
        spec = Embedding(4, name="t").spec
        first, second = LocalStore(), LocalStore()
        for store in (first, second):
            store.open([spec])
        asked = np.arange(100, dtype=np.uint64)
        first.pull("t", asked)
        first.push("t", asked, np.ones((100, 4), np.float32))
        for table, state in first.save():
            second.load(table, state)
        assert np.array_equal(first.pull("t", asked), second.pull("t", asked))
        assert first.statistics()["tables"]["t"]["rows"] == second.statistics()["tables"]["t"]["rows"] == 100


@pytest.mark.parametrize("examples", [0, 2])
def test_clicks_of_a_batch_are_those_of_its_examples_of_which_there_may_be_none(examples):
    layer = Embedding(2, decay=DecayPolicy())
    layer(keys(examples, 3)).sum().backward()
    layer.push(torch.ones(examples))
    assert layer._backing_store().table("embedding").save().records[:, -2].sum() == 3 * examples


def test_keys_that_do_not_belong_to_examples_are_refused():
    layer = Embedding(2, decay=DecayPolicy())
    layer(keys(3)).sum().backward()
    with pytest.raises(InputError, match="must be that of the labels"):
        layer.push(torch.ones(2))


def test_a_layer_that_was_not_learned_from_pushes_nothing():
    layer = Embedding(2, optimiser=sgd(1.0))
    before = layer(keys(4)).detach().clone()
    layer.push()  # no backward pass
    layer(keys(4)).sum().backward()
    layer.discard_pulls()
    layer.push()
    assert torch.equal(layer(keys(4)), before)
    assert layer.pulled_keys().tolist() == keys(4).tolist()
    assert "2, name='embedding'" in repr(layer)


def test_a_store_needs_a_folder_for_its_budget_and_divides_it_once(tmp_path):
    with pytest.raises(InputError, match="needs a folder"):
        LocalStore(memory_bytes=1 << 20)
    store = LocalStore(memory_bytes=64 << 20, folder=tmp_path)
    store.open([Embedding(2).spec])
    store.open([Embedding(2).spec])  # the same one
    with pytest.raises(InputError, match="the memory budget is already divided"):
        store.open([Embedding(2, name="other").spec])
    with pytest.raises(InputError, match="two different tables are named 'embedding'"):
        store.open([Embedding(3).spec])
    with pytest.raises(InputError, match="did you mean 'embedding'"):
        store.table("embeding")
    store.close()


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_keys_are_found_among_the_inputs_also_where_the_model_makes_them_long(kind):
    class Model(torch.nn.Module):
        def __init__(self, computed):
            super().__init__()
            self.rows, self.computed = Embedding(2), computed

        def forward(self, inputs):
            keys = inputs["ids"].long()
            return self.rows(keys * 7 if self.computed else keys).sum((1, 2))

    inputs = {"ids": torch.tensor([[3, 1], [4, 1]], dtype=kind), "dense": torch.ones(2, 2)}
    batch = Batch(inputs, torch.tensor([0, 1]), 2)
    for computed in (False, True):
        announced = []
        learner = Learner(Model(computed), LocalStore())
        learner.store.prefetch = lambda table, keys, into=announced: into.append((table, keys.tolist()))
        learner.step(0, batch)
        learner.prefetch(batch)
        assert announced == ([] if computed else [("rows", [3, 1, 4, 1])])
        assert learner.tables_without_prefetch == (["rows"] if computed else [])
