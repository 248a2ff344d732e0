"""Optimisers of dense weights and learning-rate schedules, by the names of torch.

Both are functions that can be pickled: of the weights, and of the optimiser. Every worker, and every stage of a
pipeline, makes its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from berth.errors import InputError, UnknownNameError

MakeOptimiser = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], LRScheduler]
_UNUSABLE = ("LBFGS", "SparseAdam")  # needs to evaluate the model again; needs sparse gradients
_LENGTH = {"CosineAnnealingLR": "T_max", "PolynomialLR": "total_iters", "OneCycleLR": "total_steps"}
_ALIASES = {
    "cosine": "CosineAnnealingLR",
    "step": "StepLR",
    "multi-step": "MultiStepLR",
    "exponential": "ExponentialLR",
    "linear": "LinearLR",
    "polynomial": "PolynomialLR",
    "one-cycle": "OneCycleLR",
    "plateau": "ReduceLROnPlateau",
    "warmup": "LinearLR",
}
_WARMUP, _WARMUP_STEPS = "warmup-cosine", "warmup_steps"


class Adam(torch.optim.Adam):
    """torch's Adam without its hooks for torch.compile: they import the compiler, a second of CPU time per process."""

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)


@dataclass(frozen=True, slots=True)
class NamedOptimiser:
    """A class of `torch.optim` by name, in any case, with its options."""

    name: str = "Adam"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_options("optimiser", self.kind, self.options, without=("params",))

    @property
    def kind(self) -> type[torch.optim.Optimizer]:
        """Return the class."""
        known = {
            name.lower(): made
            for name, made in vars(torch.optim).items()
            if inspect.isclass(made) and issubclass(made, torch.optim.Optimizer) and name not in _UNUSABLE
        }
        del known["optimizer"]
        return cast("type[torch.optim.Optimizer]", _find("dense optimiser", self.name.lower(), known))

    def __call__(self, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimiser of these weights; Adam is the fused one."""
        kind, options = self.kind, self.options
        if kind is torch.optim.Adam:
            kind, options = Adam, {"fused": True, **options}
        return cast("torch.optim.Optimizer", _made(kind, self.name, weights, options))

    def __str__(self) -> str:
        """Return the class with the options that differ from torch's defaults."""
        defaults = inspect.signature(self.kind).parameters
        other = {name: value for name, value in self.options.items() if value != defaults[name].default}
        return _text(self.kind.__name__, other)


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A class of `torch.optim.lr_scheduler` or a short name of one, with its options; stepped after every batch.

    `warmup` is a linear warm-up, `warmup-cosine` one that is followed by a cosine; both need `warmup_steps`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None  # of the whole run: where a schedule that has a length ends

    def __post_init__(self) -> None:
        if self.name == _WARMUP:
            _check_names(
                "schedule", _WARMUP, self.options, {_WARMUP_STEPS, "T_max", "eta_min", "start_factor"}
            )
        elif self.name == "warmup":
            _check_names("schedule", "warmup", self.options, {_WARMUP_STEPS, "start_factor"})
        else:
            _check_options("schedule", self.kind, self._resolved(), without=("optimizer",))
        if self.name in ("warmup", _WARMUP) and _WARMUP_STEPS not in self.options:
            raise InputError(f"schedule {self.name} needs {_WARMUP_STEPS}", hint=f"add {_WARMUP_STEPS}=100")

    @property
    def kind(self) -> type[LRScheduler]:
        """Return the class."""
        known = {
            **{name.lower(): name for name in lr_scheduler.__all__[:-1]},
            **_ALIASES,
            _WARMUP: "SequentialLR",
        }
        return cast("type[LRScheduler]", getattr(lr_scheduler, _find("schedule", self.name.lower(), known)))

    def __call__(self, optimiser: torch.optim.Optimizer) -> LRScheduler:
        """Return the scheduler of this optimiser."""
        options = self._resolved()
        if self.name in ("warmup", _WARMUP):
            return self._warmup(optimiser, options)
        if self.kind is lr_scheduler.OneCycleLR:
            options = {"max_lr": [group["lr"] for group in optimiser.param_groups], **options}
        return cast("LRScheduler", _made(self.kind, self.name, optimiser, options))

    def __str__(self) -> str:
        return _text(self.name, self._resolved())

    def _warmup(self, optimiser: torch.optim.Optimizer, options: dict[str, Any]) -> LRScheduler:
        length = options[_WARMUP_STEPS]
        first = _made(
            lr_scheduler.LinearLR,
            self.name,
            optimiser,
            {"start_factor": options.get("start_factor", 0.01), "total_iters": length},
        )
        if self.name == "warmup":
            return cast("LRScheduler", first)
        cosine: dict[str, Any] = {name: options[name] for name in ("T_max", "eta_min") if name in options}
        cosine["T_max"] = max(1, cosine["T_max"] - length)
        then = _made(lr_scheduler.CosineAnnealingLR, self.name, optimiser, cosine)
        return lr_scheduler.SequentialLR(optimiser, [first, then], [length])

    def _resolved(self) -> dict[str, Any]:
        """Return the options, with the length of the run for a schedule that has one."""
        length = "T_max" if self.name == _WARMUP else _LENGTH.get(self.kind.__name__)
        if length is None or length in self.options:
            return dict(self.options)
        if self.steps is None:
            raise InputError(
                f"schedule {self.name} needs the length of the run",
                hint=f"give steps, or the option {length}=1000",
            )
        return {**self.options, length: self.steps}


def optimiser_for(
    model: nn.Module, given: torch.optim.Optimizer | MakeOptimiser | None
) -> torch.optim.Optimizer | None:
    """Return the optimiser of a model's dense weights, or None if it has none; the default is Adam (0.001)."""
    if isinstance(given, torch.optim.Optimizer):
        check_same_weights(model, given)
        return given
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return (given or NamedOptimiser())(weights) if weights else None


def optimiser_text(given: torch.optim.Optimizer | MakeOptimiser | None) -> str:
    """Return what identifies an optimiser: a checkpoint is resumed with the same one only."""
    if given is None or isinstance(given, NamedOptimiser):
        return str(given or NamedOptimiser())
    made = given if isinstance(given, torch.optim.Optimizer) else given([nn.Parameter(torch.zeros(1, 1))])
    return type(made).__name__


def scheduler_text(given: LRScheduler | MakeScheduler | None) -> str | None:
    """Return what identifies a learning-rate schedule."""
    if given is None or isinstance(given, NamedSchedule):
        return None if given is None else str(given)
    if isinstance(given, LRScheduler):
        return type(given).__name__
    return type(given(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))).__name__


def step_scheduler(scheduler: LRScheduler | None, loss: float) -> None:
    """Step the learning-rate scheduler after a batch."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(loss)
    elif scheduler is not None:
        scheduler.step()


def check_same_weights(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Raise for an optimiser of weights that the model does not have: moving a model to a device may replace them."""
    own = {id(weight) for weight in model.parameters()}
    if any(id(weight) not in own for group in optimiser.param_groups for weight in group["params"]):
        raise InputError(
            "the optimiser updates weights that are not those of the model",
            hint="move the model to its device first: model.to(device), then make the optimiser",
        )


def _find(what: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UnknownNameError(what, name, known)
    return known[name]


def _check_options(what: str, kind: type, options: Mapping[str, Any], without: tuple[str, ...]) -> None:
    """Raise for options that the class does not have, or lacks."""
    parameters = inspect.signature(kind).parameters
    _check_names(what, kind.__name__, options, set(parameters) - set(without))
    for name, parameter in parameters.items():
        needed = parameter.default is inspect.Parameter.empty and name not in (*without, "max_lr")
        if needed and name not in options:
            raise InputError(f"{what} {kind.__name__} needs the option {name}", hint=f"add {name}=VALUE")


def _check_names(what: str, name: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of {what} {name}", option, known)


def _made(kind: type, name: str, of: Any, options: Mapping[str, Any]) -> Any:
    try:
        return kind(of, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{_text(name, options)} can't be made: {error}") from None


def _text(name: str, options: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{key}={options[key]!r}" for key in sorted(options))
    return f"{name}({shown})" if shown else name
