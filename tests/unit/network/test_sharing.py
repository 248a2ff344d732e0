"""Fair shares in cases small enough to work out by hand."""

from __future__ import annotations

import math

import pytest

from berth.errors import InputError
from berth.network.sharing import LinkShares


def rates(shares, *jobs):
    return [float(shares.rates[job]) for job in jobs]


def test_a_job_alone_has_its_link_or_its_cap():
    shares = LinkShares([10.0])
    assert shares.add(0, [0], [1.0], cap=4.0).tolist() == [0]
    assert rates(shares, 0) == [4.0]
    shares.remove(0)
    shares.add(0, [0], [1.0])
    assert rates(shares, 0) == [10.0]


def test_what_a_capped_job_leaves_goes_to_the_others():
    shares = LinkShares([10.0])
    for job, cap in enumerate([2.0, 100.0, 100.0]):
        shares.add(job, [0], [1.0], cap)
    assert rates(shares, 0, 1, 2) == [2.0, 4.0, 4.0]


def test_the_long_way_gets_the_share_of_its_narrowest_link():
    # The textbook's chain: job 0 crosses both links, 1 and 2 one each.
    shares = LinkShares([10.0, 4.0])
    shares.add(0, [0, 1], [1.0, 1.0])
    shares.add(1, [0], [1.0])
    changed = shares.add(2, [1], [1.0])
    assert rates(shares, 0, 1, 2) == [2.0, 8.0, 2.0]
    assert changed.tolist() == [0, 1, 2]


def test_a_job_that_loads_a_link_twice_counts_twice():
    shares = LinkShares([9.0])
    shares.add(0, [0], [2.0])
    shares.add(1, [0], [1.0])
    assert rates(shares, 0, 1) == [3.0, 3.0]
    assert shares.load(0) == 9.0


def test_only_jobs_whose_rates_changed_are_reported():
    shares = LinkShares([10.0, 10.0])
    shares.add(0, [0], [1.0], cap=1.0)
    shares.add(1, [1], [1.0])
    assert shares.add(2, [0], [1.0], cap=9.0).tolist() == [2]  # all caps fit: none is held back
    assert shares.add(3, [0], [1.0], cap=5.0).tolist() == [2, 3]  # job 0 is below its share still
    assert rates(shares, 0, 1, 2, 3) == [1.0, 10.0, 4.5, 4.5]
    assert shares.remove(3).tolist() == [2]
    assert rates(shares, 2, 3) == [9.0, 0.0]
    assert not shares.state.binding[0]  # so it no longer limits any job


def test_numbers_and_links_are_used_again_after_a_removal():
    shares = LinkShares([10.0], jobs=1, edges=1)
    for _ in range(3):
        for job in range(5):
            shares.add(job, [0], [1.0])
        assert rates(shares, *range(5)) == [2.0] * 5
        for job in range(5):
            shares.remove(job)
    assert 3 not in shares
    assert shares.load(0) == 0


def test_a_job_without_links_runs_at_its_cap():
    shares = LinkShares([])
    assert shares.add(7, [], [], cap=3.0).tolist() == [7]
    assert rates(shares, 7) == [3.0]


def test_a_dead_link_stops_its_jobs():
    shares = LinkShares([0.0, 5.0])
    shares.add(0, [0, 1], [1.0, 1.0])
    shares.add(1, [1], [1.0])
    assert rates(shares, 0, 1) == [0.0, 5.0]


@pytest.mark.parametrize(
    ("job", "links", "weights", "cap", "message"),
    [
        (-1, [0], [1.0], 1.0, "no job is numbered -1"),
        (0, [0], [1.0], 1.0, "already"),
        (1, [0, 0], [1.0, 1.0], 1.0, "named once"),
        (1, [0], [1.0, 1.0], 1.0, "one weight"),
        (1, [1], [1.0], 1.0, "0 to 0"),
        (1, [-1], [1.0], 1.0, "0 to 0"),
        (1, [0], [0.0], 1.0, "weight must be above 0"),
        (1, [0], [math.inf], 1.0, "weight must be above 0"),
        (1, [0], [1.0], -1.0, "cap must be"),
        (1, [0], [1.0], math.nan, "cap must be"),
        (1, [], [], math.inf, "finite if it crosses no link"),
    ],
)
def test_a_job_that_can_t_be_meant_is_refused_and_changes_nothing(job, links, weights, cap, message):
    shares = LinkShares([10.0])
    shares.add(0, [0], [1.0])
    with pytest.raises(InputError, match=message):
        shares.add(job, links, weights, cap)
    assert rates(shares, 0) == [10.0]
    assert 1 not in shares


def test_removing_a_job_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="job 3 is not on the links"):
        LinkShares([10.0]).remove(3)


@pytest.mark.parametrize("capacity", [[-1.0], [math.nan], [math.inf]])
def test_an_invalid_capacity_is_refused(capacity):
    with pytest.raises(InputError, match="capacity"):
        LinkShares(capacity)
