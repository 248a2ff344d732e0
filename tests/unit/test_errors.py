"""Every user error says what, where, and what to do."""

from __future__ import annotations

import pickle

import pytest

from berth.errors import InputError, UnknownNameError, nearest


def test_the_message_leads_with_the_place_and_ends_with_the_advice():
    error = InputError("is empty", where="a.yaml:1:1", hint="write something")
    assert str(error) == "a.yaml:1:1: is empty\n  write something"


def test_an_unknown_name_suggests_the_nearest():
    assert "did you mean 'bert-large'?" in str(
        UnknownNameError("model", "bert_large", ["bert-large", "vgg16"])
    )


def test_an_unknown_name_like_none_lists_what_there_is():
    assert "known: a, b" in str(UnknownNameError("model", "zzzzzz", ["b", "a"]))


@pytest.mark.parametrize(
    ("slip", "meant"), [("DGX-a100", "dgx-a100"), ("dgxa100", "dgx-a100"), ("qqq", None)]
)
def test_nearest_ignores_case_and_gives_up_on_the_unlike(slip, meant):
    assert nearest(slip, ["dgx-a100", "lab"]) == meant


def test_an_unknown_name_survives_the_way_between_processes():
    error = UnknownNameError("policy", "fifi", ["fifo", "srtf"], where="a.yaml:3")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.hint, again.where) == (
        type(error),
        str(error),
        error.hint,
        error.where,
    )
