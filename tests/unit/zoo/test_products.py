"""Products of linear layers by oneDNN: equal to those of torch but for the last digits, where they are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from berth.errors import InputError
from berth.zoo import products
from berth.zoo.products import VARIABLE, onednn_layers, onednn_products

CPU = torch.device("cpu")
EXAMPLES, WIDTH, HIDDEN = 512, 429, 80  # 512 x 429 x 80 products are above the least


@pytest.fixture(autouse=True)
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "onednn")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The shapes of the products that oneDNN computes."""
    seen: list[tuple[Any, ...]] = []
    multiply = products._multiply

    def counted(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append((*rows.shape, weight.shape[0]))
        return multiply(rows, weight, bias)

    monkeypatch.setattr(products, "_multiply", counted)
    return seen


def tower() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def gradients(model: nn.Module, given: Tensor) -> list[Tensor]:
    model.zero_grad()
    inputs = given.detach().requires_grad_()
    model(inputs).square().mean().backward()
    assert inputs.grad is not None
    return [inputs.grad, *(weight.grad for weight in model.parameters() if weight.grad is not None)]


def test_output_and_gradients_equal_those_of_torch_but_for_the_order_of_sums(
    calls: list[tuple[Any, ...]],
) -> None:
    model, given = tower(), torch.randn(EXAMPLES, WIDTH)
    expected, output = gradients(model, given), model(given)
    with onednn_products(onednn_layers(model, CPU)):
        found = gradients(model, given)
        assert torch.allclose(model(given), output, rtol=1e-5, atol=1e-6)
    assert len(found) == 5
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-7)
    forward, backward = (EXAMPLES, WIDTH, HIDDEN), [(EXAMPLES, HIDDEN, WIDTH), (HIDDEN, EXAMPLES, WIDTH)]
    assert calls == [forward, *backward, forward]  # the last is `model(given)`


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_pass_a_relu_as_in_torch(value: float) -> None:
    model, given = tower(), torch.randn(EXAMPLES, WIDTH)
    given[3, 5] = value
    expected = model[0:2](given), *gradients(model, given)
    with onednn_products(onednn_layers(model, CPU)):
        found = model[0:2](given), *gradients(model, given)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.isinf(), other.isinf())


def test_a_relu_that_a_program_looks_at_is_applied_apart(calls: list[tuple[Any, ...]]) -> None:
    model, given, seen = tower(), torch.randn(EXAMPLES, WIDTH), []
    model[0].register_forward_hook(lambda *called: seen.append(called[2].min().item()))
    with onednn_products(onednn_layers(model, CPU)):
        found = model(given)
    assert calls == [(EXAMPLES, WIDTH, HIDDEN)]
    assert seen[0] < 0.0  # before the ReLU
    assert torch.allclose(found, model(given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changed", [0, 1])
def test_a_layer_with_a_forward_pass_of_its_own_keeps_it(changed: int) -> None:
    model, given = tower(), torch.randn(EXAMPLES, WIDTH)
    plain = model[changed].forward
    model[changed].forward = lambda passed: plain(passed) + 1.0
    expected = model(given)
    with onednn_products(onednn_layers(model, CPU)):
        assert torch.allclose(model(given), expected, rtol=1e-5, atol=1e-6)


def test_layers_of_a_chain_that_are_called_alone_have_their_own_output() -> None:
    model, given = tower(), torch.randn(EXAMPLES, WIDTH)
    with onednn_products(onednn_layers(model, CPU)):
        assert model[0](given).min() < 0.0
        assert model[0:2](given).min() == 0.0


def test_more_dimensions_and_no_bias() -> None:
    layer, given = nn.Linear(WIDTH, HIDDEN, bias=False), torch.randn(4, EXAMPLES // 4, WIDTH)
    expected = layer(given)
    with onednn_products([layer]):
        found = layer(given)
    assert found.shape == (4, EXAMPLES // 4, HIDDEN)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_small_products_and_forward_passes_without_gradients_are_those_of_torch(
    calls: list[tuple[Any, ...]],
) -> None:
    model = tower()
    few, many = torch.randn(8, WIDTH), torch.randn(EXAMPLES, WIDTH)
    expected = model(few)
    with onednn_products(onednn_layers(model, CPU)):
        assert torch.equal(model(few), expected)
        with torch.no_grad():
            model(many)
        with torch.autocast("cpu", torch.bfloat16):
            model(many)
        model.double()(many.double())
    assert calls == []


def test_a_model_is_as_before_after_a_step() -> None:
    model = tower()
    with pytest.raises(RuntimeError, match="shapes"), onednn_products(onednn_layers(model, CPU)):
        model(torch.randn(EXAMPLES, WIDTH + 1))
    assert [type(layer) for layer in (model, *model)] == [nn.Sequential, nn.Linear, nn.ReLU, nn.Linear]


def test_gradients_of_gradients() -> None:
    model, given = tower(), torch.randn(EXAMPLES, WIDTH)

    def penalty() -> Tensor:
        inputs = given.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        (of_weight,) = torch.autograd.grad(slope.square().sum(), model[0].weight)
        return of_weight

    expected = penalty()
    with onednn_products(onednn_layers(model, CPU)):
        assert torch.allclose(penalty(), expected, rtol=1e-4, atol=1e-7)


def test_own_layers_and_other_devices_are_left_alone() -> None:
    class OwnLinear(nn.Linear):
        pass

    own = OwnLinear(WIDTH, HIDDEN)
    assert onednn_layers(own, CPU) == []
    assert onednn_layers(tower(), torch.device("cuda")) == []


@pytest.mark.parametrize(
    ("chosen", "vendor", "vectors", "uses"),
    [
        ("torch", "AuthenticAMD", "AVX512", False),
        ("onednn", "GenuineIntel", "AVX2", True),
        ("auto", "AuthenticAMD", "AVX512", True),
        ("", "AuthenticAMD", "AVX512", True),
        ("auto", "AuthenticAMD", "AVX2", False),
        ("auto", "GenuineIntel", "AVX512", False),
    ],
)
def test_the_library_follows_from_the_choice_and_the_processor(
    chosen: str, vendor: str, vectors: str, uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, chosen)
    monkeypatch.setattr(products.Path, "read_text", lambda _: f"vendor_id : {vendor}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    assert products.uses_onednn() is uses


def test_an_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "mkl")
    with pytest.raises(InputError, match="BERTH_MATMUL: expected auto, torch or onednn, got 'mkl'"):
        onednn_layers(tower(), CPU)


def test_a_torch_without_onednn_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(InputError, match="has no oneDNN"):
        onednn_layers(tower(), CPU)
    monkeypatch.setenv(VARIABLE, "auto")
    assert onednn_layers(tower(), CPU) == []
