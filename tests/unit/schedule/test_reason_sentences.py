"""Reasons in words: true for every policy, and no numbers that say nothing."""

from __future__ import annotations

import math

import pytest

from berth.schedule.reasons import CODES, QuotaUse, ReasonCode, explain

TIERS = ("machine", "rack", "network")


def sentence(code: int, gpus: int = 8, until: float = math.inf, saves: float = 0.0, **more: object) -> str:
    job = {"reason": code, "waits_for_tier": 1, "until_s": until, "saves_s": saves, "gpus": gpus}
    return explain(job, 100.0, TIERS, **more).sentence


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_sentence(code):
    assert sentence(code)
    assert "None" not in sentence(code)


def test_one_device_is_not_spoken_of_as_several():
    assert sentence(ReasonCode.NO_ROOM, gpus=1) == "no device is free"
    assert sentence(ReasonCode.NO_ROOM, gpus=2) == "fewer than 2 devices are free"


def test_a_gain_of_less_than_a_second_is_not_mentioned():
    assert "saves" not in sentence(ReasonCode.TOO_SPREAD, saves=9.41e-9)
    assert sentence(ReasonCode.TOO_SPREAD, saves=60.0).endswith("; that saves it 1m")


def test_who_is_spread_is_not_said_to_have_held_out():
    assert "time" not in sentence(ReasonCode.SPREAD)
    assert "one rack" in sentence(ReasonCode.SPREAD)


def test_a_wait_for_a_tier_says_how_long_it_goes_on():
    assert "for up to 1m more" in sentence(ReasonCode.TOO_SPREAD, until=160.0)
    assert "for up to 8s more" in sentence(ReasonCode.TOO_SPREAD, until=107.63)


def test_a_quota_is_explained_with_its_numbers():
    assert sentence(ReasonCode.OVER_QUOTA, quota=QuotaUse(6, 8)) == (
        "its virtual cluster holds 6 of its 8 devices, and it asks for 8"
    )


def of_shapes(code: int, **facts: object) -> str:
    job = {"reason": code, "waits_for_tier": 0, "until_s": math.inf, "saves_s": 0.0, "gpus": 8}
    job |= {"first_shape": 1, "shape_count": 3, "shape": 2, "other_shape": -1} | facts
    shapes = ("of another job", "4 T4", "8 T4", "2 H100")
    return explain(job, 100.0, TIERS, shapes=shapes, lacks_all=bool(facts.get("lacks_all"))).sentence


def test_of_a_job_with_shapes_the_sentence_names_them():
    assert of_shapes(ReasonCode.NO_ROOM) == "too few devices are free for 8 T4, which it waits for"
    assert (
        of_shapes(ReasonCode.NO_ROOM, lacks_all=True) == "too few devices are free for 4 T4, 8 T4 or 2 H100"
    )
    assert of_shapes(ReasonCode.NO_ROOM, shape_count=1, first_shape=2) == "too few devices are free for 8 T4"
    assert "free for 8 T4, but not within one machine" in of_shapes(ReasonCode.TOO_SPREAD)
    assert of_shapes(ReasonCode.HELD_FOR_OTHER) == "the devices for 8 T4 are reserved for another job"
    assert of_shapes(ReasonCode.OVER_QUOTA) == "its virtual cluster has used up its quota"
    assert of_shapes(ReasonCode.BEHIND) == sentence(ReasonCode.BEHIND)


def test_a_wait_that_should_be_over_says_since_when_and_promises_nothing():
    assert sentence(ReasonCode.LOOKS_AHEAD, until=60.0, saves=500.0) == (
        "one rack should have been free 40s ago, and it still waits for it"
    )
    waits = {"until_s": 60.0, "saves_s": 2300.0, "other_shape": 3}
    assert of_shapes(ReasonCode.WAITS_FOR_SHAPE, **waits) == (
        "it could start now on 2 H100; it waits for 8 T4 within one machine, expected 40s ago"
    )
    assert of_shapes(ReasonCode.WAITS_FOR_SHAPE, **waits | {"until_s": 160.0}) == (
        "it could start now on 2 H100, and would finish 38m20s later than by waiting 1m for 8 T4 within one machine"
    )
