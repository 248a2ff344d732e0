"""Shares of batches by ticket: the examples of mode sync, from generated data and from files."""

from __future__ import annotations

import pytest
import torch

from berth.train.data import ClickStream, Share
from berth.train.data.files import FileStream
from berth.train.data.tickets import TicketReader

ROWS, BATCH, WORKERS = 53, 8, 3


@pytest.fixture
def clicks(tmp_path):
    """Rows whose dense features are their numbers; the last batch has five rows."""
    lines = ("\t".join(["0", *[str(number)] * 13, *["a1"] * 26]) for number in range(ROWS))
    (tmp_path / "clicks.tsv").write_text("".join(f"{line}\n" for line in lines))
    return lambda: FileStream(tmp_path / "clicks.tsv", window=20)


@pytest.mark.parametrize("skipped", [(), (0, 4, 5, 6, 7, 8, 9, 15)])
def test_tickets_of_a_file_are_the_shares_of_sync_in_any_ascending_order(clicks, skipped):
    shares = [list(clicks().batches(BATCH, 0, Share(worker, WORKERS), 7)) for worker in range(WORKERS)]
    reader = TicketReader(clicks(), BATCH, WORKERS, 7)
    tickets = [ticket for ticket in range(7 * WORKERS) if ticket not in skipped]
    for ticket in tickets:
        got, expected = reader.read(ticket), shares[ticket % WORKERS][ticket // WORKERS]
        assert got.examples == expected.examples
        assert got.inputs["dense"].equal(expected.inputs["dense"])
        assert got.labels.equal(expected.labels)
        assert got.part(WORKERS) == (1.0 if got.examples else 0.0)  # a mean of its own
    assert reader.read(7 * WORKERS) is None
    assert reader.read(7 * WORKERS + 2) is None
    reader.close()


def test_all_tickets_of_a_file_are_all_its_rows_once(clicks):
    reader = TicketReader(clicks(), BATCH, WORKERS, 7)
    seen = torch.cat([reader.read(ticket).inputs["dense"][:, 0] for ticket in range(7 * WORKERS)])
    reader.close()
    assert len(seen.unique()) == len(seen) == ROWS


def test_generated_data_is_read_at_any_ticket_without_those_before():
    reader = TicketReader(ClickStream(3), BATCH, WORKERS, 0)
    whole = next(ClickStream(3).batches(BATCH, 1000, Share(), 0))
    parts = [reader.read(1000 * WORKERS + share) for share in range(WORKERS)]
    for share, part in enumerate(parts):
        assert part.inputs["slots"].equal(whole.inputs["slots"][share::WORKERS])
