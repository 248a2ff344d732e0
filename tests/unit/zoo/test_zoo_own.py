"""A user's own model: read as a chain, fed from its file, and every slip reported at its line."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

import pytest
import torch
from torch import nn

from berth.errors import InputError
from berth.zoo import LayeredModel, load_model
from berth.zoo.layered import detached, map_tensors, tensors
from berth.zoo.load import load_module
from berth.zoo.user_model import default_loss, kind_of

HEAD = "import torch\nfrom torch import nn\n"


def own(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(HEAD + textwrap.dedent(text))
    return str(path)


def test_a_sequential_becomes_a_chain_with_names_and_kinds(tmp_path):
    path = own(
        tmp_path,
        """
        BATCH = 12
        SAMPLE = "digit"
        def make_model():
            return nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
        def example_batch(batch):
            return torch.randn(batch, 2, 4), torch.arange(batch) % 3
        """,
    )
    model = load_model(path)
    assert (model.name, model.batch, model.sample) == ("mine", 12, "digit")
    assert model.names == ("flatten0", "linear1", "relu2", "linear3")
    assert model.kinds == ("other", "fully_connected", "other", "fully_connected")
    inputs, labels = model.example_batch(5, 0)
    assert model.loss(model(inputs), labels).item() > 0
    assert torch.equal(inputs, model.example_batch(5, 0)[0])


def test_equal_seeds_give_equal_weights(tmp_path):
    path = own(tmp_path, "def build(): return nn.Sequential(nn.Linear(2, 2))")
    one, two, three = (load_model(f"{path}:build", seed, input_shape=(2,)) for seed in (4, 4, 5))
    assert torch.equal(one.layer(0).weight, two.layer(0).weight)
    assert not torch.equal(one.layer(0).weight, three.layer(0).weight)


def test_the_shape_of_one_input_replaces_an_example_batch(tmp_path):
    path = own(tmp_path, "def make_model(): return nn.Sequential(nn.Linear(6, 2))")
    model = load_model(path, input_shape=(6,))
    inputs, labels = model.example_batch(3, 0)
    assert (inputs.shape, labels) == ((3, 6), None)
    assert model.loss(model(inputs), labels).requires_grad


def test_a_layered_model_of_ones_own_is_taken_as_it_is(tmp_path):
    path = own(
        tmp_path,
        """
        from berth.zoo import make_model as from_zoo
        def make_model(seed):
            return from_zoo("nce", seed, rows=64)
        """,
    )
    model = load_model(path, 3)
    assert isinstance(model, LayeredModel)
    assert len(model) == 5


CHAIN = "def make_model(): return nn.Sequential(nn.Linear(6, 1))"
EXAMPLE = "\ndef example_batch(batch): return torch.ones(batch, 6), torch.arange(batch) % 2"
OTHER_WAY = """
class Twice(nn.Sequential):
    def forward(self, x): return super().forward(x) + super().forward(x)
def make_model(): return Twice(nn.Linear(6, 1))"""


@pytest.mark.parametrize(
    ("text", "is_chain"), [(CHAIN + EXAMPLE, True), (CHAIN, False), (OTHER_WAY + EXAMPLE, False)]
)
def test_a_training_can_cut_a_plain_sequential_with_an_example_batch(tmp_path, text, is_chain):
    assert isinstance(load_module(own(tmp_path, text)), LayeredModel) is is_chain


def test_one_number_for_each_whole_number_label_is_a_logit(tmp_path):
    model = load_model(own(tmp_path, CHAIN + EXAMPLE))
    logits, labels = torch.tensor([[0.0], [3.0]]), torch.tensor([0, 1])
    expected = (torch.log(torch.tensor(2.0)) + torch.log1p(torch.exp(torch.tensor(-3.0)))) / 2
    assert model.loss(logits, labels).item() == pytest.approx(expected.item())


def test_a_loss_of_ones_own_is_used(tmp_path):
    path = own(
        tmp_path,
        """
        def make_model(): return nn.Sequential(nn.Linear(2, 1))
        def loss(output, labels): return output.sum() * 0 + 42
        """,
    )
    model = load_model(path, input_shape=(2,))
    assert model.loss(model(torch.ones(1, 2)), None).item() == 42


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Conv2d(1, 1, 3), "convolution"),
        (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), "fully_connected"),
        (nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 1)), "norm"),
        (nn.TransformerEncoderLayer(8, 2, batch_first=True), "attention"),
        (nn.LSTM(2, 2), "recurrent"),
        (nn.EmbeddingBag(5, 2), "embedding"),
        (nn.MaxPool2d(2), "pooling"),
        (nn.ReLU(), "other"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_layer_is_of_the_kind_of_its_largest_part(module, kind):
    assert kind_of(module) == kind


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("def make(): pass", None, "has no function 'make_model'"),
        ("make_model = 3", None, "'make_model' is a int, not a function"),
        ("def make_model(): return 7", 3, "returns a int, not a torch nn.Module"),
        ("def make_model(): return nn.Sequential()", 3, "returns a model without layers"),
        ("def make_model():\n    return nn.Linear('x', 2)", 4, "make_model fails"),
        ("x = (", 3, "is not valid Python"),
        ("y = 1\nx = y / 0", 4, "can't be imported: ZeroDivisionError"),
        ("def make_model(): return nn.Sequential(nn.ReLU())", 3, "no example batch"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)
def test_an_error_is_reported_with_its_line(tmp_path, text, line, message):
    path = own(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert message in str(caught.value)
    assert caught.value.where == (f"{path}:{line}" if line else path)


def test_a_file_or_name_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_model(str(tmp_path / "none.py"))
    with pytest.raises(InputError, match=r"did you mean 'ctrdnn'[\s\S]*path\.py:make_model"):
        load_model("ctrdn")


def test_a_failing_example_batch_is_an_input_error(tmp_path):
    path = own(
        tmp_path,
        """
        def make_model(): return nn.Sequential(nn.ReLU())
        def example_batch(batch): raise OSError("no data")
        """,
    )
    with pytest.raises(InputError, match="example_batch fails: OSError: no data"):
        load_model(path).example_batch(1, 0)


class _Two(NamedTuple):
    left: torch.Tensor
    rest: list[torch.Tensor]


def test_what_passes_between_layers_keeps_its_shape():
    state = _Two(torch.ones(2, requires_grad=True), [torch.zeros(3)])
    twice = map_tensors(state, lambda tensor: tensor * 2)
    assert isinstance(twice, _Two)
    assert twice.left.tolist() == [2.0, 2.0]
    assert isinstance(twice.rest, list)
    assert [tensor.requires_grad for tensor in tensors(detached(state))] == [True, False]
    assert map_tensors("a label", torch.neg) == "a label"


@pytest.mark.slow
def test_the_first_tensor_of_an_output_is_what_a_default_loss_is_of():
    output = (torch.tensor([3.0, 4.0]), torch.zeros(2))
    assert default_loss(output, None) == 12.5
    assert default_loss({"first": output[0]}, torch.tensor([1.0, 2.0])) == 4.0
