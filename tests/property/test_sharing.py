"""Fair sharing against an exact model: progressive filling in fractions, with no thought of speed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.network.sharing import LinkShares

pytestmark = pytest.mark.slow

untimed = settings(deadline=None)  # the first example may wait for the compiler
LINKS = 6
CAPACITIES = st.lists(st.sampled_from([0.5, 1.0, 3.0, 7.3, 10.0]), min_size=LINKS, max_size=LINKS)
CAPS = st.one_of(st.just(float("inf")), st.floats(0.01, 20.0), st.just(0.0))
WEIGHTS = st.one_of(st.just(1.0), st.floats(0.01, 5.0))


@st.composite
def jobs(draw, most=10):
    """`{number: (links, weights, cap)}`, each over one to three links."""
    numbers = draw(st.lists(st.integers(0, 30), min_size=1, max_size=most, unique=True))
    found = {}
    for number in numbers:
        links = draw(st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=3, unique=True))
        found[number] = (links, [draw(WEIGHTS) for _ in links], draw(CAPS))
    return found


def exact_rates(capacity, present):
    """Raise all rising jobs by as much as the tightest link or cap allows; stop those it holds; again."""
    left = [Fraction(value) for value in capacity]
    rate = dict.fromkeys(present, Fraction(0))
    rising = set(present)
    while rising:
        load = [Fraction(0)] * LINKS
        for job in rising:
            for link, weight in zip(*present[job][:2], strict=True):
                load[link] += Fraction(weight)
        steps = [left[link] / load[link] for link in range(LINKS) if load[link]]
        steps += [Fraction(present[job][2]) - rate[job] for job in rising if present[job][2] != float("inf")]
        step = min(steps)
        for job in rising:
            rate[job] += step
        left = [rest - step * heavy for rest, heavy in zip(left, load, strict=True)]
        full = {link for link in range(LINKS) if load[link] and left[link] == 0}
        rising -= {job for job in rising if rate[job] == present[job][2] or full & set(present[job][0])}
    return rate


def shares_with(capacity, present, order=None):
    shares = LinkShares(capacity)
    for job in order or present:
        shares.add(job, *present[job])
    return shares


@untimed
@given(CAPACITIES, jobs())
def test_rates_are_those_of_exact_progressive_filling(capacity, present):
    shares = shares_with(capacity, present)
    for job, exact in exact_rates(capacity, present).items():
        assert abs(Fraction(float(shares.rates[job])) - exact) <= exact * Fraction(1, 10**9)


@untimed
@given(CAPACITIES, jobs())
def test_no_link_is_over_its_capacity_and_every_job_has_its_bottleneck(capacity, present):
    shares = shares_with(capacity, present)
    loads = [shares.load(link) for link in range(LINKS)]
    assert all(load <= limit * (1 + 1e-12) for load, limit in zip(loads, capacity, strict=True))
    for job, (links, _, cap) in present.items():
        rate = shares.rates[job]
        bottlenecks = [
            link
            for link in links
            if loads[link] >= capacity[link] * (1 - 1e-9)
            and all(
                shares.rates[other] <= rate * (1 + 1e-9) for other in present if link in present[other][0]
            )
        ]
        assert rate == cap or bottlenecks


@untimed
@given(CAPACITIES, jobs(), st.data())
def test_rates_after_flows_come_and_go_equal_rates_computed_from_scratch(capacity, present, data):
    shares = shares_with(capacity, present)
    gone = data.draw(st.lists(st.sampled_from(sorted(present)), unique=True))
    for job in gone:
        shares.remove(job)
    back = data.draw(st.lists(st.sampled_from(gone), unique=True)) if gone else []
    for job in back:
        shares.add(job, *present[job])
    here = {job: present[job] for job in present if job not in gone or job in back}
    again = shares_with(capacity, here, order=data.draw(st.permutations(sorted(here))))
    for job in here:
        assert shares.rates[job] == again.rates[job]
    assert all(shares.rates[job] == 0 for job in present if job not in here)


@untimed
@given(CAPACITIES, jobs(), st.data())
def test_exactly_the_jobs_whose_rates_changed_are_reported(capacity, present, data):
    shares = shares_with(capacity, present)
    for _ in range(3):
        job = data.draw(st.sampled_from(sorted(present)))
        before = shares.rates.copy()
        changed = (shares.remove(job) if job in shares else shares.add(job, *present[job])).tolist()
        differing = {int(other) for other in np.flatnonzero(shares.rates[: len(before)] != before)}
        assert changed == sorted(set(changed))
        assert differing - {job} == set(changed) - {job}
        assert (job in changed) == (job in shares)


@untimed
@given(CAPACITIES, jobs(most=5), jobs(most=5))
def test_jobs_on_other_links_are_not_touched(capacity, some, others):
    """The others' links and numbers are shifted, so that nothing joins the two."""
    apart = {job + 100: ([link + LINKS for link in links], *rest) for job, (links, *rest) in others.items()}
    shares = LinkShares([*capacity, *capacity])
    for job, asked in apart.items():
        shares.add(job, *asked)
    before = {job: shares.rates[job] for job in apart}
    for job, asked in some.items():
        assert not set(shares.add(job, *asked).tolist()) & set(apart)
    for job in some:
        assert not set(shares.remove(job).tolist()) & set(apart)
    assert {job: shares.rates[job] for job in apart} == before


@settings(max_examples=20, deadline=None)
@given(CAPACITIES, st.lists(st.tuples(st.integers(0, 20), st.integers(0, LINKS - 1)), max_size=60))
def test_a_long_life_does_not_drift(capacity, changes):
    shares, present = LinkShares(capacity), {}
    for job, link in changes:
        if job in present:
            shares.remove(job)
            del present[job]
        else:
            present[job] = ([link, (link + 1) % LINKS], [1.0, 1 / 3], 2.5)
            shares.add(job, *present[job])
    again = shares_with(capacity, present)
    assert all(shares.rates[job] == again.rates[job] for job in present)
