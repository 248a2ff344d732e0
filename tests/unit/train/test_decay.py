"""Which keys get a row, when a row is removed, and when it becomes wide."""

from __future__ import annotations

import numpy as np
import pytest

from berth.train.tables import Admission, DecayPolicy, Initialiser, Table, sgd


def zeros(count, dim):
    return np.zeros((count, dim), np.float32)


def ones(count, dim=2):
    return np.ones((count, dim), np.float32)


def test_by_count_a_key_gets_its_row_when_asked_for_often_enough():
    table = Table(2, admission=Admission("count", 3))
    assert (table.pull([7, 7, 8]) == 0).all()
    assert len(table) == 0
    rows = table.pull([7, 8])
    assert (rows[0] == Table(2).pull([7])[0]).all()
    assert (rows[1] == 0).all()
    assert (len(table), table.counts.refused) == (1, 3)


def test_gradients_of_keys_without_a_row_are_dropped_and_counted():
    table = Table(2, admission=Admission("count", 3))
    table.push([7, 8], ones(2))
    assert (len(table), table.counts.dropped) == (0, 2)


def test_a_key_that_is_pulled_and_pushed_was_asked_for_once():
    table = Table(2, admission=Admission("count", 3))
    for step in range(3):
        assert len(table) == 0, step
        table.pull([7])
        table.push([7], ones(1))
    assert (len(table), table.counts.refused, table.counts.dropped) == (1, 2, 2)
    assert not (table.pull([7]) == Table(2).pull([7])).any()  # the third gradient was learned from


def test_by_probability_the_same_keys_are_admitted_everywhere():
    keys = np.arange(20_000)
    table, other = (
        Table(1, admission=Admission("probability", 0.25)),
        Table(1, admission=Admission("probability", 0.25)),
    )
    table.pull(keys)
    assert len(table) == pytest.approx(5000, rel=0.05)
    for _ in range(3):
        other.pull(keys[::-1])
    assert (table.save().keys == other.save().keys).all()


def test_by_score_a_key_gets_its_row_after_it_was_shown_and_clicked():
    table = Table(2, admission=Admission("score", 1.15))
    table.push([1, 2], ones(2), shows=np.array([1, 1]), clicks=np.array([1, 0]))
    table.pull([1, 2])
    assert len(table) == 0
    table.push([1, 2], ones(2), shows=np.array([2, 1]), clicks=np.array([0, 0]))
    table.pull([1, 2])
    assert table.save().keys.tolist() == [1]


def test_those_who_wait_are_forgotten_in_time():
    table = Table(2, admission=Admission("count", 100))
    table.pull([1] * 3 + [2])
    table.end_day()
    assert table.admission_filter.pending.entries()[0].tolist() == [1]
    table.end_day()
    assert table.admission_filter.pending.count == 0


def test_those_who_wait_are_saved_and_loaded():
    table, other = Table(2, admission=Admission("count", 3)), Table(2, admission=Admission("count", 3))
    table.pull([5, 5])
    other.load(table.save())
    other.pull([5])
    assert len(other) == 1


@pytest.mark.parametrize(
    ("kind", "threshold"), [("probability", 1.5), ("count", -1), ("score", float("nan"))]
)
def test_a_rule_that_makes_no_sense_is_refused(kind, threshold):
    with pytest.raises(ValueError, match=f"invalid threshold for admission by {kind}"):
        Admission(kind, threshold)


def test_the_score_weighs_clicks_above_shows():
    table = Table(2, decay=DecayPolicy())
    table.push([1, 2, 2], zeros(3, 2), shows=np.array([30, 4, 1]), clicks=np.array([0, 2, 1]))
    assert table.scores([1, 2, 3]).tolist() == pytest.approx([3.0, 3.2, 0.0])


def test_shows_and_clicks_fade_by_the_day():
    table = Table(2, decay=DecayPolicy())
    table.push([1], zeros(1, 2), shows=np.array([100]))
    for _ in range(3):
        table.end_day()
    assert table.scores([1])[0] == pytest.approx(10 * 0.98**3, rel=1e-5)
    table.push([1], zeros(1, 2), shows=np.array([10]))
    assert table.scores([1])[0] == pytest.approx(10 * 0.98**3 + 1, rel=1e-5)


def test_a_row_dies_below_the_least_score():
    table = Table(2, decay=DecayPolicy())
    table.push([1, 2], zeros(2, 2), shows=np.array([8, 9]))
    assert table.end_day().tolist() == [1]
    assert len(table) == 1
    days = 1
    while not len(table.end_day()):
        days += 1
    assert days + 1 == np.ceil(np.log(0.8 / 0.9) / np.log(0.98))


def test_a_row_dies_after_thirty_unseen_days_whatever_its_score():
    table = Table(2, decay=DecayPolicy())
    table.push([1], zeros(1, 2), shows=np.array([1e6]))
    for _ in range(30):
        assert len(table.end_day()) == 0
    assert table.end_day().tolist() == [1]


def test_a_row_that_is_only_pulled_was_never_shown_and_dies():
    table = Table(2, decay=DecayPolicy())
    table.pull([1])
    assert table.end_day().tolist() == [1]


def test_cold_rows_age_too(tmp_path):
    table = Table(16, decay=DecayPolicy(), memory_bytes=2_900_000, folder=tmp_path)
    for part in np.array_split(np.arange(20_000), 20):
        table.push(part, zeros(len(part), 16), shows=np.where(part % 2, 100, 1))
    assert table.statistics().hot_rows < 15_000
    assert (table.end_day() == np.arange(0, 20_000, 2)).all()
    assert table.scores([19_999, 1]).tolist() == pytest.approx([9.8, 9.8])


def test_shows_without_a_use_are_refused():
    with pytest.raises(ValueError, match="need a DecayPolicy"):
        Table(2).push([1], zeros(1, 2), shows=np.array([1]))
    with pytest.raises(ValueError, match="no decay policy"):
        Table(2).scores([1])


def test_what_is_shown_twice_on_a_day_adds_up_and_fades_with_the_days_between():
    table = Table(
        1, optimiser=sgd(1.0), initialiser=Initialiser(scale=0.0), decay=DecayPolicy(decay_per_day=0.5)
    )
    table.pull([1])
    table.push([2], -2 * ones(1, 1), shows=np.array([0.0]))  # a weight that is also the number of a day
    for clicks in ([1.0, 0.0], [1.0, 1.0]):
        table.push([1, 2], zeros(2, 1), shows=np.array([2.0, 2.0]), clicks=np.array(clicks))
    assert table.scores([1, 2]).tolist() == pytest.approx([0.1 * 2 + 2, 0.1 * 3 + 1])
    table.day += 2
    table.push([1], zeros(1, 1), clicks=np.array([1.0]))
    assert table.save().records[:, -3:].tolist() == [[2.0, 1.5, 2.0], [4.0, 1.0, 0.0]]
