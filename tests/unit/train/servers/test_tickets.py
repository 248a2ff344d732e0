"""Which worker trains on which share of which batch."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from berth.train.servers.coordinator import NONE, TicketBook


def test_tickets_are_taken_in_order_up_to_the_goal():
    book = TicketBook(2)
    assert [book.take(3) for _ in range(5)] == [0, 1, 2, NONE, NONE]
    assert book.take(None) == 3


def test_a_ticket_counts_once_and_only_if_it_was_taken():
    book = TicketBook(2)
    book.take(None)
    for ticket in (0, 0, 5):
        book.complete(ticket, 16)
    assert (book.completed, book.examples, book.undone) == (1, 16, [])


def test_a_run_that_is_asked_to_stop_finishes_its_batch():
    book = TicketBook(3)
    for _ in range(4):
        book.take(None)
    book.stop()
    assert [book.take(None) for _ in range(3)] == [4, 5, NONE]


def test_a_run_that_stops_between_two_batches_takes_no_more():
    book = TicketBook(2)
    for _ in range(2):
        book.take(None)
    book.stop()
    assert book.take(None) == NONE


def test_the_end_of_the_data_returns_the_tickets_beyond_it():
    book = TicketBook(2)
    for _ in range(6):
        book.take(None)
    book.end_data(5)  # batch 2 does not exist
    assert book.take(None) == NONE
    assert (book.first_untaken, book.undone) == (4, [0, 1, 2, 3])
    book.end_data(3)  # nor does batch 1
    assert (book.first_untaken, book.undone) == (2, [0, 1])


@settings(max_examples=50)
@given(st.integers(0, 1 << 32))
def test_whatever_workers_do_every_ticket_is_completed_once_also_after_a_resume(seed):
    random, goal, completed = Random(seed), 30, []
    book = TicketBook(random.randint(1, 4))
    held: list[int] = []
    while True:
        if held and random.random() < 0.5:
            ticket = held.pop(random.randrange(len(held)))
            book.complete(ticket, 8)
            completed.append(ticket)
        elif (ticket := book.take(goal)) != NONE:
            held.append(ticket)
        elif not held:
            break
        if random.random() < 0.1:  # killed, and resumed from a checkpoint of this moment
            first, examples, undone = book.first_untaken, book.examples, book.undone
            book, held = TicketBook(book.workers), []
            book.begin(first, examples, undone)
            assert book.completed == len(completed)
    assert sorted(completed) == list(range(goal))
    assert (book.completed, book.examples) == (goal, 8 * goal)
