"""A policy's functions run compiled or interpreted, with the same results, and their errors are heard."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, make_dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule import Policy, PreemptByOrder, Rules, StaticOrder
from berth.schedule import hooks as compiling
from berth.schedule.hooks import compiled_notes, hooks
from berth.schedule.policies.dally import Censored, Dally, Mode, Order
from berth.schedule.policies.registry import load_policy
from berth.schedule.policies.tiresias import Gittins, Tiresias
from berth.schedule.policy import names_of
from berth.simulate.run import Setting, simulate
from berth.workload.trace import Trace


def crowd(jobs=40):
    dice = np.random.default_rng(3)
    columns = {
        "job_id": [str(i) for i in range(jobs)],
        "submit_s": np.sort(dice.uniform(0, 100 * jobs, jobs)),
        "num_gpu": dice.choice([1, 2, 3, 4, 6], jobs),
        "duration_s": dice.uniform(300, 20_000, jobs),
    }
    return Trace.from_columns(columns, source="test")


def run(policy, jobs=40):
    return simulate(
        crowd(jobs), load_cluster("2x2x4"), policy, Setting(network="static", congestion=20.0)
    ).records


def interpreted_twin(kind, monkeypatch):
    """The same policy under another name, which numba refuses."""

    def refuse(*_):
        raise TypeError("refused")

    monkeypatch.setattr(compiling, "_compiled", refuse)
    own = [(field.name, field.type, field) for field in fields(kind)]
    return make_dataclass(f"{kind.__name__}Twin", own, bases=(kind,), frozen=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "constants", "jobs"),
    [
        (Tiresias, {"starvation": 2.0}, 12),
        (Gittins, {}, 6),
        (Dally, {"mode": Mode.TUNED, "censored": Censored.KAPLAN_MEIER}, 40),
        (Dally, {"order_by": Order.LAS, "machine": 600.0, "rack": 600.0}, 40),
    ],
)
def test_interpreted_and_compiled_policies_decide_alike(kind, constants, jobs, monkeypatch):
    compiled = run(kind(**constants), jobs)
    assert compiled["evictions"].any() or kind is Dally, "no job was preempted: this would show little"
    monkeypatch.setattr(compiling, "_ready", {})
    monkeypatch.setattr(compiling, "_notes", {})
    twin = interpreted_twin(kind, monkeypatch)(**constants)
    assert np.array_equal(run(twin, jobs)["end_s"], compiled["end_s"])
    assert any("interpreted" in note for note in compiled_notes(twin))


@dataclass(frozen=True)
class Spelled(Policy):
    """Uses what numba does not know: a dictionary made by a class of its own."""

    ranks: ClassVar[dict[int, float]] = {1: 5.0}

    def rules(self):
        return Rules(order=StaticOrder(), preempt=PreemptByOrder())

    @staticmethod
    def order(job, now, params):
        return Spelled.ranks.get(int(job.gpus), float(job.estimated_remaining_s))


@pytest.mark.slow
def test_what_cannot_be_compiled_runs_and_says_so_once():
    (note,) = compiled_notes(Spelled())
    assert note.startswith("Spelled.order can't be compiled")
    assert (run(Spelled())["end_s"] > 0).all()


@pytest.mark.slow
def test_policies_that_come_with_berth_are_all_compiled():
    for text in (
        "tiresias",
        "gittins",
        "gandiva",
        "dally:mode=tuned",
        "dally:order=las",
        "themis",
        "switches",
    ):
        assert compiled_notes(load_policy(text)) == []


@dataclass(frozen=True)
class Faulty(Policy):
    @staticmethod
    def order(job, now, params):
        if job.gpus == 6:
            raise RuntimeError(f"no rank for {[job.gpus]!s} at {now}")
        return {}.get("never", float(job.arrival_s))


@pytest.mark.slow
def test_an_error_in_an_interpreted_function_stops_the_run():
    with pytest.raises(RuntimeError, match=r"no rank for \[.*6.*\] at"):
        run(Faulty())
    assert (run(Spelled())["end_s"] > 0).all()  # and does not haunt the next one


def half(value):
    return value / 2


@dataclass(frozen=True)
class WithHelper(Policy):
    weight: float = 2.0

    @staticmethod
    def order(job, now, params):
        return half(job.arrival_s) * params.weight


@pytest.mark.slow
def test_helpers_are_compiled_with_the_function_that_calls_them():
    assert compiled_notes(WithHelper()) == []
    assert np.array_equal(run(WithHelper())["end_s"], run(load_policy("fit-first"))["end_s"])


@pytest.mark.slow
def test_compiled_functions_are_kept_and_a_changed_one_is_not_mistaken(tmp_path, monkeypatch):
    monkeypatch.setattr("berth.native.functions.cache_folder", lambda: tmp_path)
    names, signature = names_of(WithHelper), "order"
    compiling._compiled(WithHelper.order, names, signature)
    (kept,) = (tmp_path / "policies").iterdir()
    before = kept.read_bytes()
    compiling._compiled(WithHelper.order, names, signature)
    assert kept.read_bytes() == before
    monkeypatch.setitem(globals(), "half", lambda value: value / 3)
    compiling._compiled(WithHelper.order, names, signature)
    assert len(list((tmp_path / "policies").iterdir())) == 2


TABLE = np.array([0.1234567891])


class Level(IntEnum):
    TOP = 0


@dataclass(frozen=True)
class WithConstants(Policy):
    @staticmethod
    def order(job, now, params):
        return TABLE[0] + Level.TOP


@pytest.mark.parametrize(
    ("name", "other"),
    [("TABLE", np.array([0.1234567892])), ("TABLE", TABLE[None]), ("Level", IntEnum("Level", {"TOP": 7}))],
    ids=["a digit that is not printed", "another shape", "a member's value"],
)
def test_a_constant_of_the_module_that_differs_in_anything_makes_another_function(name, other, monkeypatch):
    def fingerprint():
        return compiling._fingerprint(WithConstants.order, names_of(WithConstants), "order")

    before = fingerprint()
    assert fingerprint() == before
    monkeypatch.setitem(globals(), name, other)
    assert fingerprint() != before


@pytest.mark.slow
def test_a_damaged_cached_function_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setattr("berth.native.functions.cache_folder", lambda: tmp_path)
    compiling._compiled(WithHelper.order, names_of(WithHelper), "order")
    (kept,) = (tmp_path / "policies").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert compiling._compiled(WithHelper.order, names_of(WithHelper), "order").__wrapper_address__()


def test_functions_that_the_rules_never_ask_are_not_compiled():
    tuned, fixed = hooks(load_policy("dally:mode=tuned")), hooks(load_policy("dally"))
    assert fixed.observe is hooks(load_policy("fifo")).observe
    assert tuned.observe is not fixed.observe
    assert math.isfinite(tuned.observe.__wrapper_address__())
