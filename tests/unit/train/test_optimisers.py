"""Dense optimisers and schedules by name do what the same classes do in a plain torch loop."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from berth.errors import InputError, UnknownNameError
from berth.train import Trainer
from berth.train.optimisers import NamedOptimiser, NamedSchedule

STEPS = 12


def batches():
    made = torch.Generator().manual_seed(1)
    for _ in range(STEPS + 3):
        inputs = torch.randn(32, 6, generator=made)
        yield {"x": inputs}, (inputs[:, 0] + inputs[:, 1] > 0.3).long()


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, inputs):
        return self.chain(inputs["x"]).squeeze(1)


def plain(make_optimiser, make_schedule=None, steps=STEPS):
    """Losses and weights of an ordinary torch loop."""
    torch.manual_seed(0)
    model = Tower()
    optimiser = make_optimiser(model.parameters())
    schedule = make_schedule(optimiser) if make_schedule else None
    losses = []
    for (inputs, labels), _ in zip(batches(), range(steps), strict=False):
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), labels.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if schedule:
            schedule.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def trained(steps=STEPS, **options):
    trainer = Trainer(Tower, batches, batch=32, **options)
    return trainer, trainer.fit(steps=steps)


CASES = {
    "sgd": (
        {"optimiser": "sgd", "lr": 0.3, "dense_options": {"momentum": 0.9, "weight_decay": 0.01},
         "scheduler": "step", "schedule_options": {"step_size": 3, "gamma": 0.5}},
        partial(torch.optim.SGD, lr=0.3, momentum=0.9, weight_decay=0.01),
        partial(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.5),
    ),
    "adam": (
        {"optimiser": "Adam", "lr": 0.02, "scheduler": "cosine"},
        partial(torch.optim.Adam, lr=0.02),
        partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=STEPS),
    ),
    "adagrad, as a function": (
        {"optimiser": partial(torch.optim.Adagrad, lr=0.1)}, partial(torch.optim.Adagrad, lr=0.1), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_are_those_of_a_plain_torch_loop(name):
    options, make_optimiser, make_schedule = CASES[name]
    expected, weights = plain(make_optimiser, make_schedule)
    trainer, result = trained(**options)
    assert result.losses == pytest.approx(expected, rel=1e-5)
    for key, value in trainer.model.state_dict().items():
        torch.testing.assert_close(value, weights[key], rtol=1e-4, atol=1e-5)


def test_optimisers_rates_and_schedules_differ_from_each_other():
    last = {name: trained(**options)[1].losses[-1] for name, (options, *_) in CASES.items()}
    last["sgd without schedule"] = trained(optimiser="sgd", lr=0.3)[1].losses[-1]
    last["adam, another rate"] = trained(lr=0.05)[1].losses[-1]
    assert len({round(loss, 5) for loss in last.values()}) == len(last)


@pytest.mark.parametrize("schedule", ["cosine", "warmup-cosine", "plateau"])
def test_a_schedule_survives_a_resume_bit_for_bit(schedule, tmp_path):
    more = {"warmup-cosine": {"warmup_steps": 3}, "plateau": {"patience": 0, "threshold": 0.5}}.get(
        schedule, {}
    )
    if schedule != "plateau":
        more = {**more, "T_max": STEPS}
    options = {"optimiser": "adamw", "lr": 0.05, "scheduler": schedule, "schedule_options": more}
    rates = []
    watch = type("Watch", (), {"on_step": lambda self, metrics: rates.append(metrics["learning_rate"])})()
    whole = trained(**options, callbacks=watch)[1].losses
    assert len(set(rates)) > 1
    trained(5, **options, checkpoints=tmp_path)
    resumed = trained(**options, checkpoints=tmp_path)[1]
    assert resumed.losses == whole[5:]


def test_a_warmup_rises_to_the_rate_and_a_cosine_falls_from_it():
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = NamedSchedule("warmup-cosine", {"warmup_steps": 4, "start_factor": 0.2}, 10)(optimiser)
    rates = []
    for _ in range(11):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[10] == pytest.approx(0.0, abs=1e-12)


def test_another_optimiser_rate_or_schedule_can_not_resume(tmp_path):
    trained(2, optimiser="sgd", lr=0.1, checkpoints=tmp_path)
    with pytest.raises(InputError, match=r"dense optimiser: SGD\(lr=0.1\) there, Adam here"):
        trained(4, checkpoints=tmp_path)
    with pytest.raises(InputError, match=r"SGD\(lr=0.1\) there, SGD\(lr=0.2\) here"):
        trained(4, optimiser="sgd", lr=0.2, checkpoints=tmp_path)
    with pytest.raises(InputError, match=r"scheduler: None there, cosine\(T_max=4\) here"):
        trained(4, optimiser="sgd", lr=0.1, scheduler="cosine", checkpoints=tmp_path)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: NamedOptimiser("addam"), "no dense optimiser is called 'addam'"),
        (lambda: NamedOptimiser("lbfgs"), "no dense optimiser is called 'lbfgs'"),
        (lambda: NamedOptimiser("sgd", {"momentun": 1}), "no option of optimiser SGD is called 'momentun'"),
        (lambda: NamedOptimiser("sgd", {"lr": -1})([nn.Parameter(torch.zeros(1))]), "Invalid learning rate"),
        (lambda: NamedOptimiser("muon")([nn.Parameter(torch.zeros(1))]), "^muon can't be made: Muon only"),
        (lambda: NamedSchedule("cosin", {}, 5), "no schedule is called 'cosin'"),
        (lambda: NamedSchedule("cosine"), "needs the length of the run"),
        (lambda: NamedSchedule("step"), "schedule StepLR needs the option step_size"),
        (lambda: NamedSchedule("warmup"), "needs warmup_steps"),
        (lambda: trained(lr=0.0), "lr must be a number above 0"),
        (lambda: trained(lr=0.1, dense_options={"lr": 0.1}), "lr is given twice"),
        (lambda: trained(schedule_options={"T_max": 4}), "without its name"),
    ],
)
def test_mistakes_get_one_message(made, message):
    with pytest.raises((InputError, UnknownNameError), match=message):
        made()


def test_the_text_of_an_optimiser_has_only_what_differs_from_the_defaults():
    assert str(NamedOptimiser()) == "Adam"
    assert str(NamedOptimiser("adam", {"lr": 1e-3})) == "Adam"
    assert str(NamedOptimiser("adam", {"lr": 0.1, "betas": (0.9, 0.95)})) == "Adam(betas=(0.9, 0.95), lr=0.1)"
