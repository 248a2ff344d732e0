"""Options of `berth train` about learning rates and evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from berth.cli.options import option
from berth.cli.quantities import read_positive
from berth.errors import InputError
from berth.units import amount


@dataclass(frozen=True, slots=True)
class OptimiserOptions:
    """How rows and dense weights learn."""

    optimiser: Annotated[str, option("NAME", "Optimiser of rows: adagrad, rowwise_adagrad, adam or sgd.")] = (
        "adagrad"
    )
    rows_lr: Annotated[
        float | None, option("RATE", "Learning rate of rows.", shown="that of the optimiser or layer")
    ] = None
    dense_optimiser: Annotated[
        str, option("NAME", "Optimiser of dense weights: adam, adamw, sgd or any other of torch.optim.")
    ] = "adam"
    dense_options: Annotated[
        list[str] | None,
        option("NAME=VALUE", "Option of that optimiser, e.g. weight_decay=0.01. Repeatable."),
    ] = None
    lr: Annotated[
        float | None, option("RATE", "Learning rate of dense weights.", shown="that of torch, 0.001 for adam")
    ] = None
    schedule: Annotated[
        str | None,
        option(
            "NAME",
            "Schedule of --lr: cosine, step, warmup, warmup-cosine or any other of torch.optim.lr_scheduler.",
        ),
    ] = None
    schedule_options: Annotated[
        list[str] | None, option("NAME=VALUE", "Option of that schedule, e.g. step_size=100. Repeatable.")
    ] = None

    def train_options(self) -> dict[str, Any]:
        """Return the fields of `TrainOptions`, except the optimiser of rows."""
        return {
            "rows_lr": self.rows_lr,
            "dense_optimiser": self.dense_optimiser,
            "dense_options": read_settings("--dense-options", self.dense_options or []),
            "lr": self.lr,
            "schedule": self.schedule,
            "schedule_options": read_settings("--schedule-options", self.schedule_options or []),
        }


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """Held-out data, and what follows from it."""

    eval_data: Annotated[
        str | None, option("PATH", "Held-out data to evaluate on: AUC, log loss, calibration.", "--eval")
    ] = None
    eval_examples: Annotated[
        str | None, option("N", "Held-out examples of generated data instead, e.g. 100k.")
    ] = None
    eval_every: Annotated[
        int | None, option("N", "Steps between evaluations.", min=1, shown="only at the end")
    ] = None
    best: Annotated[
        str | None, option("METRIC", "Keep the checkpoint of the best evaluation, by auc or loss.")
    ] = None
    patience: Annotated[
        int | None, option("N", "Stop after N evaluations in a row that are not the best.", min=1)
    ] = None

    @property
    def data(self) -> str | int | None:
        """Return the held-out data: a path, or a number of examples."""
        if self.eval_data is not None and self.eval_examples is not None:
            raise InputError("--eval and --eval-examples exclude each other", hint="give one of them")
        if self.eval_examples is None:
            return self.eval_data
        return max(1, round(read_positive("--eval-examples", amount, self.eval_examples)))


def read_settings(name: str, texts: list[str]) -> dict[str, Any]:
    """Parse `weight_decay=0.01`: numbers, true and false, or several numbers with commas."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise InputError(
                f"{name} {text}: expected NAME=VALUE", hint=f"for example {name} weight_decay=0.01"
            )
        parts = [_value(part) for part in value.split(",")]
        settings[key] = tuple(parts) if len(parts) > 1 else parts[0]
    return settings


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
