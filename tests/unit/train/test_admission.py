"""Who would get a row is told just as it is then decided."""

from __future__ import annotations

import numpy as np
import pytest

from berth.train.tables.admit import Admission, Gate

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
    gate = Gate(rule)
    gate.load(KEY, np.array([known], np.int32))
    assert gate.would_admit(KEY).tolist() == [admitted]
    assert gate.would_admit(KEY).tolist() == [admitted]  # telling counts nothing
    assert gate.ask(KEY, np.array([1])).tolist() == [admitted]


def test_thousandths_of_a_score_add_up_to_the_threshold():
    gate = Gate(Admission("score", 0.3))
    for _ in range(3):
        assert gate.would_admit(KEY).tolist() == [False]
        gate.see(KEY, np.array([0.1], np.float32))
    assert gate.ask(KEY, np.array([1])).tolist() == [True]
    assert gate.would_admit(KEY).tolist() == [False]  # who got a row no longer waits


def test_what_is_known_of_a_key_stops_growing_where_its_number_ends():
    gate = Gate(Admission("score", 2e6))
    gate.load(KEY, np.array([2**31 - 2], np.int32))
    for _ in range(2):
        gate.see(KEY, np.array([10.0], np.float32))
        assert gate.would_admit(KEY).tolist() == [True]
