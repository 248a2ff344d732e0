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
