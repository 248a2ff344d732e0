"""Every model of the zoo is a real chain: it learns, repeats itself, and can be cut anywhere."""

from __future__ import annotations

import pytest
import torch

from berth.errors import InputError
from berth.zoo import make_model, zoo
from berth.zoo.layered import detached, tensors

SMALL_TABLES = {"rows": 2**12}
SMALL = dict.fromkeys(zoo(), SMALL_TABLES) | {"transformer": {"width": 32}, "cnn": {"width": 8}}
DEEPER = ("ctrdnn-12", "ctrdnn-20")  # the same code as ctrdnn-8 and ctrdnn, only longer
SOME_SLOW = [pytest.param(name, marks=pytest.mark.slow) if name in DEEPER else name for name in zoo()]
KINDS = {
    *("embedding", "pooling", "concat", "norm", "fully_connected"),
    *("match", "attention", "convolution", "loss"),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(name, seed=0):
    return make_model(name, seed, **SMALL[name])


@pytest.mark.parametrize("name", zoo())
def test_a_model_has_the_layers_that_its_entry_states(name):
    model, entry = small(name), zoo()[name]
    assert (model.name, len(model), model.batch) == (name, entry.layers, entry.batch)
    assert len(set(model.names)) == len(model.kinds) == entry.layers
    assert set(model.kinds) <= KINDS
    assert model.kinds[-1] == "loss"


def test_the_names_of_the_deepest_and_the_flattest():
    assert make_model("ctrdnn-8", rows=64).names == (
        *("embedding", "pooling", "concat", "norm", "fc1", "fc2", "predict", "loss"),
    )
    assert make_model("nce", rows=64).names == (
        *("context_embedding", "pooling", "projection", "candidate_embedding", "loss"),
    )
    assert make_model("matchnet", rows=64).names[:6] == (
        *("user_embedding", "item_embedding", "user_pooling", "item_pooling", "user_fc1", "item_fc1"),
    )


@pytest.mark.parametrize("name", zoo())
def test_equal_seeds_give_equal_weights_and_batches_and_others_do_not(name):
    first, again, other = small(name, 1), small(name, 1), small(name, 2)
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(one, two) for one, two in pairs)
    assert any(
        not torch.equal(one, two) for one, two in zip(first.parameters(), other.parameters(), strict=True)
    )
    inputs = [list(tensors(model.example_batch(4, 7))) for model in (first, again)]
    assert all(torch.equal(one, two) for one, two in zip(*inputs, strict=True))
    assert any(
        not torch.equal(one, two)
        for one, two in zip(inputs[0], tensors(first.example_batch(4, 8)), strict=True)
    )


def test_making_a_model_leaves_other_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    small("ctrdnn-8")
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_SLOW)
def test_cutting_the_chain_anywhere_changes_nothing(name):
    model = small(name)
    inputs, labels = model.example_batch(4, 0)
    whole = model(inputs)
    model.loss(whole, labels).backward()
    expected = {key: _dense(weight.grad) for key, weight in model.named_parameters()}
    for cut in range(1, len(model)):
        model.zero_grad(set_to_none=True)
        before = model.run(inputs, 0, cut)
        handed_over = detached(before)
        after = model.stage(cut)(handed_over)
        assert torch.equal(after, whole)
        model.loss(after, labels).backward()
        _send_back(before, handed_over)
        for key, weight in model.named_parameters():
            assert torch.allclose(_dense(weight.grad), expected[key], atol=1e-6), (cut, key)


def _send_back(before, handed_over):
    pairs = zip(tensors(before), tensors(handed_over), strict=True)
    crossing = [(left, right.grad) for left, right in pairs if left.requires_grad]
    if crossing:  # a layer may only prepare ids
        torch.autograd.backward(*zip(*crossing, strict=True))


def _dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient.clone()


@pytest.mark.parametrize("name", zoo())
def test_every_weight_gets_a_gradient(name):
    model = small(name)
    inputs, labels = model.example_batch(16, 0)
    model.loss(model(inputs), labels).backward()
    assert all(_dense(weight.grad).abs().sum() > 0 for weight in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_SLOW)
def test_a_model_learns(name):
    model = small(name)
    tables = {
        id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding) and part.sparse
    }
    rows = [weight for weight in model.parameters() if id(weight) in tables]
    dense = [weight for weight in model.parameters() if id(weight) not in tables]
    optimisers = [torch.optim.Adam(dense, lr=3e-3)]
    rate = 0.5 if name == "deepfm" else 5.0  # the gradient of its rows grows with the rows
    optimisers += [torch.optim.SGD(rows, lr=rate)] if rows else []
    size = 4 if name in ("transformer", "cnn") else 32
    batches = [model.example_batch(size, seed) for seed in range(2)]
    losses = []
    for step in range(30):
        inputs, labels = batches[step % 2]
        loss = model.loss(model(inputs), labels)
        model.zero_grad(set_to_none=True)
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-2:]) < 0.75 * sum(losses[:2])


@pytest.mark.parametrize("name", ["ctrdnn", "mmoe", "matchnet", "2emb", "nce"])
def test_ids_are_63_bit_hashes_of_which_few_are_frequent(name):
    inputs, _ = make_model(name, rows=64).example_batch(256, 0)
    for ids in (tensor for tensor in tensors(inputs) if not tensor.is_floating_point()):
        assert 2**61 < ids.max().item() < 2**63
        assert ids.min().item() >= 0
        assert 1 < ids.unique().numel() < 0.9 * ids.numel()


def test_an_unknown_model_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="did you mean 'matchnet'"):
        make_model("machnet")


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("berth.extras.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"berth-ml\[train\]"):
        make_model("nce")
