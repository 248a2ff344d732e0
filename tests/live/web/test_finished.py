"""A finished simulation in the words of the journal: every device once, and the same counts as the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browsing import make_log
from fastapi.testclient import TestClient

from berth.errors import InputError
from berth.live.api.viewer import SingleToken, make_viewer
from berth.live.simulation_view import Finished, read_simulation, state_at_busiest
from berth.simulate.events import read_events


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_log(tmp_path_factory.mktemp("log") / "events.parquet")


@pytest.fixture(scope="module")
def finished(log: Path) -> Finished:
    return read_simulation(log)


@pytest.mark.slow
def test_no_device_is_ever_held_twice_and_all_are_given_back(finished: Finished) -> None:
    holder: dict[tuple[int, int], str] = {}
    sizes = finished.cluster.sizes
    for record in finished.records:
        kind, job = record["kind"], record["job"]
        if kind in ("evict", "exited", "move"):
            holder = {device: one for device, one in holder.items() if one != job}
        if kind in ("start", "move"):
            for machine, _, numbers in record["seats"]:
                for number in numbers:
                    assert 0 <= number < sizes[machine]
                    assert (machine, number) not in holder
                    holder[machine, number] = job
    assert holder == {}


def test_every_event_of_the_log_becomes_one_record(log: Path, finished: Finished) -> None:
    events = read_events(log)
    named = {
        "arrived": "submitted",
        "started": "start",
        "moved": "move",
        "evicted": "evict",
        "finished": "exited",
    }
    assert [named.get(event, "machine") for event in events["event"]] == [
        one["kind"] for one in finished.records
    ]
    assert [one["time"] for one in finished.records] == events["time_s"].to_list()
    assert [one["seq"] for one in finished.records] == list(range(1, len(events) + 1))
    assert {"evict", "machine"} <= {one["kind"] for one in finished.records}, "the log exercises too little"


def test_samples_count_what_the_log_counts(log: Path, finished: Finished) -> None:
    events = read_events(log).filter(pl.col("job").is_not_null())
    for sample in finished.samples[:: len(finished.samples) // 10]:
        before = events.filter(pl.col("time_s") <= sample.time)
        last = before.group_by("job").last()
        held = last.filter(pl.col("event").is_in(["started", "moved"]))
        waiting = last.filter(pl.col("event").is_in(["arrived", "evicted"]))
        assert (sample.busy, sample.running, sample.queued) == (held["gpus"].sum(), len(held), len(waiting))
        longest = sample.time - waiting["time_s"].min() if len(waiting) else 0.0
        assert sample.longest_wait_s == pytest.approx(longest)


def test_the_page_begins_where_most_devices_are_held(finished: Finished) -> None:
    reported = state_at_busiest(finished)
    held = sum(len(numbers) for one in reported["attempts"] for _, _, numbers in one["seats"])
    assert held >= max(sample.busy for sample in finished.samples)
    assert reported["time"] == finished.records[finished.busiest - 1]["time"]
    placed = {one["job"] for one in reported["attempts"]}
    states = dict(zip(reported["jobs"]["id"], reported["jobs"]["state"], strict=True))
    assert {job for job, state in states.items() if state == "running"} == placed


def test_users_come_from_the_file(finished: Finished) -> None:
    users = {one["user"] for one in finished.records if one["kind"] == "submitted"}
    assert "" not in users
    assert len(users) > 1


def test_a_log_without_its_cluster_needs_one_named(log: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.parquet"
    read_events(log).write_parquet(bare)
    with pytest.raises(InputError, match="does not name its cluster"):
        read_simulation(bare)
    assert read_simulation(bare, "2x4x4").records[0]["kind"] == "submitted"
    with pytest.raises(InputError, match="is not in"):
        read_simulation(bare, "1x1x4")


def _asked(client: TestClient, token: str, path: str) -> Any:
    answer = client.get(f"/api/v1/{path}", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_job_has_the_history_of_the_log(log: Path, finished: Finished) -> None:
    tokens = SingleToken()
    client = TestClient(make_viewer(finished, tokens))
    evicted = next(one["job"] for one in finished.records if one["kind"] == "evict")
    events = read_events(log).filter(pl.col("job") == evicted)
    job = _asked(client, tokens.token, f"jobs/{evicted}")
    history = _asked(client, tokens.token, f"jobs/{evicted}/history")
    assert job["evictions"] == (events["event"] == "evicted").sum()
    assert job["attempts"] == len(history["attempts"]) == events["event"].is_in(["started", "moved"]).sum()
    assert [one["time"] for one in history["events"]] == events["time_s"].to_list()
    assert history["attempts"][-1]["ended"] == events["time_s"].to_list()[-1]
    assert "left_for" in history["attempts"][0]


def test_pages_of_records_join_without_holes(finished: Finished) -> None:
    tokens = SingleToken()
    client = TestClient(make_viewer(finished, tokens))
    found: list[Any] = []
    after, whole = 0, False
    while not whole:
        page = _asked(client, tokens.token, f"journal?after={after}&limit=97")
        found += page["records"]
        after, whole = page["last"], page["whole"]
    assert found == finished.records


@pytest.mark.parametrize(
    "path", ["me", "now", "journal", "series", "queue", "reasons", "jobs/j0", "jobs/j0/history"]
)
def test_nothing_is_read_without_the_token(finished: Finished, path: str) -> None:
    client = TestClient(make_viewer(finished, SingleToken()))
    assert client.get(f"/api/v1/{path}").status_code == 401
    wrong = {"Authorization": "Bearer wrong"}
    assert client.get(f"/api/v1/{path}", headers=wrong).status_code == 401


def test_a_job_that_never_was_is_missing(finished: Finished) -> None:
    tokens = SingleToken()
    answer = TestClient(make_viewer(finished, tokens)).get(
        "/api/v1/jobs/nobody", headers={"Authorization": f"Bearer {tokens.token}"}
    )
    assert answer.status_code == 404
