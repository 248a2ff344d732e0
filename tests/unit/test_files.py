"""Output files: whole or unchanged, streams written directly, links kept."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl
import pytest

from berth.cli.output import check_output, write_text
from berth.errors import InputError
from berth.files import whole_file, write_parquet


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Limits the size of the files that this process writes, its output among them: not beyond a test's own lines."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_fifo_is_written_to_and_stays(tmp_path):
    fifo, seen = tmp_path / "fifo", []
    os.mkfifo(fifo)
    check_output(str(fifo), force=False, option="--html")
    reader = threading.Thread(target=lambda: seen.append(fifo.read_text()))
    reader.start()
    write_text(str(fifo), "page")
    reader.join()
    assert seen == ["page"]
    assert fifo.is_fifo()
    assert list(tmp_path.iterdir()) == [fifo]


def test_a_link_keeps_leading_to_its_file(tmp_path):
    (tmp_path / "folder").mkdir()
    page, link = tmp_path / "folder" / "page.html", tmp_path / "link.html"
    page.write_text("before")
    link.symlink_to("folder/page.html")
    write_text(str(link), "after")
    assert link.is_symlink()
    assert page.read_text() == "after"
    page.unlink()
    check_output(str(link), force=False, option="--html")
    write_text(str(link), "new")
    assert page.read_text() == "new"


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "page.html").symlink_to("page.html")
    with pytest.raises(InputError, match="lead to themselves"):
        check_output(str(tmp_path / "page.html"), force=True, option="--html")


def test_files_with_the_name_of_a_temporary_one_are_left_alone(tmp_path):
    foreign = tmp_path / "page.html.part"
    foreign.write_text("foreign")
    write_text(str(tmp_path / "page.html"), "text")
    assert foreign.read_text() == "foreign"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "page.html.part"]


def test_a_device_that_is_not_a_stream_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "disk"
    path.touch()
    monkeypatch.setattr("pathlib.Path.is_file", lambda _path: False)
    with pytest.raises(InputError, match="is a device or a socket, not a file"):
        check_output(str(path), force=True, option="--html")


@pytest.mark.parametrize("limit", [1, 4096, 10_000])
def test_a_full_disk_is_one_message_and_leaves_nothing(limit, tmp_path):
    frame = pl.DataFrame({"id": [os.urandom(20).hex() for _ in range(1000)]})
    path = tmp_path / "jobs"
    with full_disk(limit), pytest.raises(InputError) as refused:
        write_parquet(frame, path)
    assert str(refused.value) == f"{path}: can't be written: File too large"
    assert not list(tmp_path.iterdir())


def test_other_errors_are_not_those_of_the_file(tmp_path):
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "page.html"):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
