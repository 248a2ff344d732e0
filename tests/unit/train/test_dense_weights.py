"""Dense weights on servers: updated by each worker's push, as torch would."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from berth.errors import InputError
from berth.train.dense_rules import rule_of
from berth.train.dense_weights import DenseWeights
from berth.train.optimisers import NamedOptimiser
from berth.train.servers import RemoteStore, Secret, ServerConfig, connect
from berth.train.servers.process import in_process_servers
from berth.train.sparse import DENSE_TABLE, TableSpec
from berth.train.tables import Initialiser, sgd

RULES = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "default": lambda weights: NamedOptimiser("Adam", {"lr": 0.01})(list(weights)),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.05),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.001),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.001, momentum=0.9),
    "nesterov": lambda weights: torch.optim.SGD(weights, lr=0.001, momentum=0.9, nesterov=True),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.5),
    "l2 of adam": lambda weights: torch.optim.Adam(weights, lr=0.01, weight_decay=0.5),
    "l2 of adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.05, weight_decay=0.5),
    "l2 of sgd": lambda weights: torch.optim.SGD(weights, lr=0.001, weight_decay=2.0),
    "maximize": lambda weights: torch.optim.Adam(weights, lr=0.01, maximize=True),
    "groups": lambda weights: torch.optim.AdamW(
        [
            {"params": [weight], "lr": rate, "weight_decay": rate}
            for rate, weight in zip((0.02, 0.01, 0.05, 0.001), weights, strict=True)
        ]
    ),
}


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(300, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))


def gradients(of: torch.nn.Module, step: int) -> None:
    torch.manual_seed(step)
    of(torch.randn(8, 300)).square().sum().backward()


@pytest.fixture
def stores():
    """Two workers of a run in mode async, with two servers."""
    secret = Secret.random()
    with in_process_servers(2, secret, ServerConfig(workers=2, mode="async")) as servers:
        addresses = [server.address for server in servers]
        made = [RemoteStore(addresses, secret, rank=rank, workers=2, codec="fp16") for rank in range(2)]
        yield made
        for store in made:
            store.close()


def on_servers(store, rule):
    mine = model()
    weights = DenseWeights(mine, RULES[rule](mine.parameters()), store)
    store.open([weights.spec])
    return mine, weights


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_the_pushes_of_both_workers_move_the_weights_as_torch_does(stores, rule):
    """Also while learning rates and momentum change, as schedules do."""
    (first, mine), (second, other) = (on_servers(store, rule) for store in stores)
    alone = model()
    optimiser = RULES[rule](alone.parameters())
    before = [weight.detach().clone() for weight in alone.parameters()]
    stores[0].load(DENSE_TABLE, mine.to_state())
    for step in range(6):
        trained, weights = ((first, mine), (second, other))[step % 2]
        for one in (optimiser, mine._optimiser, other._optimiser):
            for group in one.param_groups:
                group["lr"] *= 0.8
                if group.get("momentum"):
                    group["momentum"] *= 0.9
        weights.pull()
        gradients(trained, step)
        weights.push()
        stores[step % 2].end_step(step // 2)
        gradients(alone, step)
        optimiser.step()
        optimiser.zero_grad()
        stores[step % 2].statistics()  # answered after the push
    mine.from_state(stores[0].whole_table(DENSE_TABLE))
    for got, expected in zip(first.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-6)
    moved = [(weight - old).abs().max() for weight, old in zip(first.parameters(), before, strict=True)]
    assert max(moved) > 1e-3
    state = mine._optimiser.state_dict()["state"]
    for number, expected in optimiser.state_dict()["state"].items():
        for name in ("exp_avg", "exp_avg_sq", "sum", "momentum_buffer"):
            if name in expected:
                assert torch.allclose(state[number][name], expected[name], rtol=1e-4, atol=1e-6), name
        if rule in ("adam", "default"):
            assert state[number]["step"] == 6


def test_weights_without_an_optimiser_have_no_state_in_a_checkpoint(stores):
    mine = model()
    weights = DenseWeights(mine, torch.optim.Adam(mine[2].parameters(), lr=0.01), stores[0])
    weights.from_state(weights.to_state())
    assert sorted(weights._optimiser.state_dict()["state"]) == [0, 1]  # the two of the last layer


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_weights_of_more_bytes_than_a_message_may_have_travel_in_parts(mode, monkeypatch):
    monkeypatch.setattr("berth.train.servers.server_pool.MAX_PAYLOAD_BYTES", 256 << 10)
    monkeypatch.setattr("berth.train.tables.state.PART_BYTES", 128 << 10)
    monkeypatch.setattr("berth.train.servers.client.PART_BYTES", 128 << 10)
    secret = Secret.random()
    alone, mine = (torch.nn.Linear(300, 512) for _ in range(2))  # 600 KiB of weights
    mine.load_state_dict(alone.state_dict())
    optimiser = torch.optim.SGD(alone.parameters(), lr=0.001)
    with in_process_servers(1, secret, ServerConfig(mode=mode)) as servers:
        store = connect([servers[0].address], secret, every=1)
        weights = DenseWeights(mine, torch.optim.SGD(mine.parameters(), lr=0.001), store)
        store.open([weights.spec])
        store.load(DENSE_TABLE, weights.to_state())
        for step in range(3):
            weights.pull()
            weights.announce()
            for each in (mine, alone):
                gradients(each, step)
            weights.push()
            store.end_step(step)
            optimiser.step()
            optimiser.zero_grad()
        weights.peek_from(getattr(store, "remote", store))
        store.close()
    for got, expected in zip(mine.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_a_saved_state_is_restored_with_its_moments(stores):
    mine, weights = on_servers(stores[0], "adam")
    stores[0].load(DENSE_TABLE, weights.to_state())
    gradients(mine, 0)
    weights.push()
    stores[0].end_step(0)
    saved = stores[0].whole_table(DENSE_TABLE)
    weights.from_state(saved)
    assert (weights.to_state().records == saved.records).all()


def test_a_weight_without_a_gradient_stays(stores):
    mine, weights = on_servers(stores[0], "adam")
    stores[0].load(DENSE_TABLE, weights.to_state())
    before = [weight.detach().clone() for weight in mine.parameters()]
    gradients(mine, 0)
    mine[2].weight.grad = mine[2].bias.grad = None
    weights.push()
    stores[0].end_step(0)
    weights.pull()
    moved = [not weight.equal(old) for weight, old in zip(mine.parameters(), before, strict=True)]
    assert moved == [True, True, False, False]


def test_dense_weights_are_exact_and_no_table_of_rows(stores):
    mine, weights = on_servers(stores[0], "sgd")
    stores[0].open([TableSpec("rows", 4, sgd(), Initialiser())])
    stores[0].load(DENSE_TABLE, weights.to_state())
    before = [weight.detach().clone() for weight in mine.parameters()]
    weights.pull()  # rows are compressed to fp16, these are not
    assert all(weight.equal(old) for weight, old in zip(mine.parameters(), before, strict=True))
    stores[0].pull("rows", np.arange(3, dtype=np.uint64))
    assert list(stores[0].statistics()["tables"]) == ["rows"]
    assert {name for name, _ in stores[0].save()} == {"rows"}


@pytest.mark.parametrize(
    "optimiser",
    [
        torch.optim.RMSprop,
        lambda weights: torch.optim.Adam(weights, amsgrad=True),
        lambda weights: torch.optim.Adagrad(weights, lr_decay=0.1),
        lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, dampening=0.5),
        lambda weights: torch.optim.SGD(
            [{"params": [one], "momentum": 0.9, "nesterov": i > 1} for i, one in enumerate(weights)], lr=0.1
        ),
    ],
)
def test_an_optimiser_that_servers_do_not_know_is_refused(optimiser):
    with pytest.raises(InputError, match=r"can't update dense weights by .* Adam, AdamW, Adagrad and SGD"):
        rule_of(optimiser(model().parameters()))


def test_weights_that_are_not_float32_are_refused():
    double = model().double()
    with pytest.raises(InputError, match=r"0\.weight is float64"):
        DenseWeights(double, RULES["sgd"](double.parameters()), None)
