"""The predicted admission of a key equals what is then decided."""

from __future__ import annotations

import numpy as np
import pytest

from berth.train.tables.admission import Admission, AdmissionFilter

KEY = np.array([7])


@pytest.mark.parametrize(
    ("rule", "known", "admitted"),
    [
        (Admission("count", 3), 1, False),
        (Admission("count", 3), 2, True),  # being asked for is the third time
        (Admission("score", 1.5), 1499, False),
        (Admission("score", 1.5), 1500, True),
        (Admission("score", 0.0), 0, True),
        (Admission("probability", 0.0), 0, False),
        (Admission("probability", 1.0), 0, True),
    ],
)
def test_what_is_foretold_of_a_key_is_what_it_gets(rule, known, admitted):
    admission_filter = AdmissionFilter(rule)
    admission_filter.load(KEY, np.array([known], np.int32))
    assert admission_filter.would_admit(KEY).tolist() == [admitted]
    assert admission_filter.would_admit(KEY).tolist() == [admitted]  # telling counts nothing
    assert admission_filter.admit(KEY, np.array([1])).tolist() == [admitted]


def test_thousandths_of_a_score_add_up_to_the_threshold():
    admission_filter = AdmissionFilter(Admission("score", 0.3))
    for _ in range(3):
        assert admission_filter.would_admit(KEY).tolist() == [False]
        admission_filter.record_scores(KEY, np.array([0.1], np.float32))
    assert admission_filter.admit(KEY, np.array([1])).tolist() == [True]
    assert admission_filter.would_admit(KEY).tolist() == [False]  # who got a row no longer waits


def test_what_is_known_of_a_key_stops_growing_where_its_number_ends():
    admission_filter = AdmissionFilter(Admission("score", 2e6))
    admission_filter.load(KEY, np.array([2**31 - 2], np.int32))
    for _ in range(2):
        admission_filter.record_scores(KEY, np.array([10.0], np.float32))
        assert admission_filter.would_admit(KEY).tolist() == [True]


def test_a_key_that_was_shown_for_nothing_waits_with_nothing():
    admission_filter = AdmissionFilter(Admission("score", 0.001))
    admission_filter.record_scores(KEY, np.array([0.0004], np.float32))
    assert admission_filter.pending.entries()[1].tolist() == [0]
    assert admission_filter.admit(KEY, np.array([1])).tolist() == [False]


def test_of_those_who_wait_each_keeps_half_of_its_own_and_who_has_none_left_goes():
    admission_filter, keys = AdmissionFilter(Admission("count", 1000)), np.arange(40)
    admission_filter.load(keys, (keys % 4).astype(np.int32))
    admission_filter.decay()
    left = dict(zip(*(column.tolist() for column in admission_filter.pending.entries()), strict=True))
    assert left == {key: 1 for key in range(40) if key % 4 > 1}


def test_what_is_asked_for_in_one_batch_is_counted_together_and_who_is_admitted_no_longer_waits():
    admission_filter = AdmissionFilter(Admission("count", 3))
    assert admission_filter.admit(np.array([1, 2, 3]), np.array([2, 3, 1])).tolist() == [False, True, False]
    assert sorted(admission_filter.pending.entries()[0].tolist()) == [1, 3]
    assert admission_filter.admit(np.array([1, 3]), np.array([1, 1])).tolist() == [True, False]
