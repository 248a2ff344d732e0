"""Policies are found by name, in the user's own files, and with the constants that stand behind the name."""

from __future__ import annotations

import math

import pytest

from berth.errors import InputError
from berth.schedule.policies.dally import Order
from berth.schedule.policies.registry import describe, load_policy, policy_names

MINE = """
from dataclasses import dataclass
from berth.schedule import Policy, PreemptByOrder, Rules

@dataclass(frozen=True)
class Largest(Policy):
    "The largest job goes first."
    weight: float = 1.0

    @staticmethod
    def order(job, now, params):
        return -params.weight * job.gpus
"""


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_loads_with_its_defaults_and_says_what_it_does(name):
    reported = describe(name)
    assert reported.summary.endswith(".")
    assert all(constant.help for constant in reported.constants)
    given = ",".join(f"{constant.name}={constant.default}" for constant in reported.constants)
    assert load_policy(f"{name}:{given}") == load_policy(name)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("dally:machine=2h", "machine", 7200.0),
        ("dally:machine=never", "machine", math.inf),
        ("dally:mode=full,order=las", "order_by", Order.LAS),
        ("tiresias:first=100,starvation=2", "starvation", 2.0),
        ("switches:wait=0", "wait", 0.0),
        (" gandiva:slice=2m ", "slice", 120.0),
    ],
)
def test_constants_are_read_with_their_units(text, field, value):
    assert getattr(load_policy(text), field) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fito", ["'fito'", "fifo"]),
        ("dally:machin=2h", ["machin", "machine"]),
        ("dally:mode=manuel", ["mode", "manuel", "manual"]),
        ("dally:machine=12", ["machine", "12", "unit"]),
        ("dally:machine=-1h", ["machine", "-1h"]),
        ("dally:machine=1h,machine=2h", ["twice"]),
        ("dally:machine", ["'machine'", "name=value"]),
        ("tiresias:first=lots", ["first", "lots"]),
        ("tiresias:first=3h", ["first", "3h", "without a unit"]),  # it counts GPU-seconds
        ("fifo:k=1", ["no constants", "'k'"]),
        ("nowhere/mine.py:Largest", ["nowhere/mine.py"]),
    ],
)
def test_what_cannot_be_loaded_is_named_in_one_message(text, words):
    with pytest.raises(InputError) as caught:
        load_policy(text)
    assert all(part in str(caught.value) for part in words), str(caught.value)


def test_a_policy_of_ones_own_is_loaded_from_its_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    assert load_policy(f"{file}:Largest:weight=2").weight == 2.0
    assert load_policy(f"{file}").weight == 1.0
    assert load_policy(f"{file}:weight=2").weight == 2.0
    assert describe(f"{file}:Largest").summary == "The largest job goes first."


@pytest.mark.slow
def test_a_folder_whose_name_looks_like_a_file_is_passed(tmp_path):
    folder = tmp_path / ".pyenv" / "own.py"
    folder.mkdir(parents=True)
    file = folder / "mine.py"
    file.write_text(MINE)
    assert load_policy(f"{file}:Largest:weight=2").weight == 2.0
    assert load_policy(f"{file}").weight == 1.0


def test_an_edited_file_is_loaded_again(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    load_policy(f"{file}:Largest")
    file.write_text(MINE.replace("weight: float = 1.0", "weight: float = 3.0"))
    assert load_policy(f"{file}:Largest").weight == 3.0


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (MINE, "Larges", [f"mine.py:{MINE.splitlines().index('@dataclass(frozen=True)') + 1}", "'Largest'?"]),
        (
            MINE.replace("job, now, params", "job, now"),
            "Largest",
            ["mine.py:", "write def order(job, now, params):"],
        ),
        (
            MINE + MINE.replace("class Largest", "class Smallest"),
            "",
            ["mine.py:Largest or", "mine.py:Smallest"],
        ),
        (MINE, "Rules", ["not a subclass"]),
        ("import nothing_like_it", "Any", ["mine.py:1", "nothing_like_it"]),
        ("x = 1\ny = (", "Any", ["mine.py:2", "SyntaxError"]),
        ("x = 1\n\ny = 1 / 0\n", "Any", ["mine.py:3", "ZeroDivisionError"]),
        (MINE.replace("@dataclass(frozen=True)", ""), "Largest", ["not a dataclass"]),
        (MINE.replace("    @staticmethod\n", ""), "Largest", ["Largest.order", "@staticmethod"]),
        ("x = 1", "", ["does not say which", "derive a class from berth.schedule.Policy"]),
    ],
)
def test_an_error_in_a_policy_file_is_reported_with_its_line(tmp_path, source, name, words):
    file = tmp_path / "mine.py"
    file.write_text(source)
    with pytest.raises(InputError) as caught:
        load_policy(f"{file}:{name}")
    assert all(part in str(caught.value) for part in words), str(caught.value)


@pytest.mark.parametrize(
    "text", ["tiresias:first=9000", "gittins:second=5", "dally:first=9000", "berth:second=10"]
)
def test_a_second_queue_that_ends_before_the_first_is_refused(text):
    with pytest.raises(InputError, match="a job leaves the first queue before the second"):
        load_policy(text)
