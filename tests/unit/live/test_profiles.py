"""Profiles of submitted jobs: by name or inline, never a file of the controller's; in the journal as numbers."""

import json
import os
import sqlite3

import pytest
from pydantic import ValidationError

from berth.errors import UnknownNameError
from berth.live import commands
from berth.live.profiles import inline_of, numbers_of, profile_of
from berth.live.snapshot import same
from berth.live.spec import JobSpec
from berth.workload.profiles import all_profiles, load_profile

INLINE = {"parameter_bytes": 4.4e8, "compute_s": {"V100": 0.12}}


@pytest.mark.parametrize("path", ["secret.yaml", "./secret", "/dev/zero", "../secret.yml"])
def test_the_path_of_a_file_is_an_unknown_name(crank, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.yaml").write_text("bytes: hunter2secret\n")
    with pytest.raises(UnknownNameError) as refused:
        commands.submit(JobSpec(run="work", model=path), "me")
    assert "hunter2" not in str(refused.value)
    assert "no model is called" in str(refused.value)


def test_a_pipe_as_a_model_blocks_nothing(crank, tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UnknownNameError):
        commands.submit(JobSpec(run="work", model=str(tmp_path / "pipe.yaml")), "me")


def test_a_profile_inline_places_a_job_as_the_same_numbers_by_name_do(crank):
    live = crank()
    named = live.submit(gpus=8, model="vgg16", seconds=500)
    inline = live.submit(gpus=8, model=inline_of(load_profile("vgg16")).model_dump(), seconds=500)
    plain = live.submit(gpus=8, seconds=500)
    slow = [
        live.state.world.jobs[live.state.jobs[job].row]["slowdown"].tolist() for job in (named, inline, plain)
    ]
    assert slow[0] == slow[1] != slow[2]


def test_numbers_are_in_the_journal_and_survive_a_restart_without_any_catalogue(crank, monkeypatch):
    live = crank()
    job = live.submit(gpus=8, seconds=500, model=INLINE)
    other = live.submit(gpus=8, seconds=500, model="vgg16")
    numbers = {name: dict(live.state.jobs[name].profile) for name in (job, other)}
    assert numbers[job]["compute_s"] == {"V100": 0.12}
    assert numbers[other] == numbers_of("vgg16")
    before = live.state
    monkeypatch.setattr("berth.workload.profiles._by_lowered_name", dict)  # as if the names were gone
    live.restart()
    before.epoch = live.state.epoch
    assert same(before, live.state)
    assert {name: live.state.jobs[name].profile for name in (job, other)} == numbers


def test_a_journal_that_names_a_file_now_missing_opens_with_a_warning(crank, caplog):
    live = crank()
    job = live.submit(gpus=2, seconds=500)
    with sqlite3.connect(live.folder / "journal.sqlite") as db:  # as an older berth wrote it
        (line,) = db.execute("SELECT body FROM journal WHERE kind = 'submitted'").fetchone()
        body = json.loads(line)
        old = {"spec": body["spec"] | {"model": "/nowhere/mine.yaml"}, "user": body["user"]}
        db.execute("UPDATE journal SET sum = NULL, body = ? WHERE kind = 'submitted'", (json.dumps(old),))
    db.close()
    live.restart()
    assert live.state.jobs[job].profile == numbers_of(None)
    assert f"job {job}: its profile '/nowhere/mine.yaml' is not in the catalogue" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"compute_s": {}},
        {"parameter_bytes": 0},
        {"overlap": 0.5},
        {"skew": 2},
        {"compute_s": {"V100": 0}},
    ],
)
def test_an_inline_profile_is_checked(wrong):
    facts = INLINE | wrong if wrong else {"parameter_bytes": 1.0}
    with pytest.raises(ValidationError):
        JobSpec(run="work", model=facts)


def test_times_on_unknown_devices_only_still_place_a_job(crank):
    live = crank()
    job = live.submit(gpus=8, model=INLINE | {"compute_s": {"my own chip": 0.2}})
    assert live.state_of(job) == "placed"


def test_the_catalogues_profiles_come_back_from_their_numbers():
    for profile in all_profiles():
        again = profile_of(numbers_of(profile.name))
        assert again.skew == pytest.approx(profile.skew)
        for device in ("V100", "A100", "T4"):
            assert again.traffic(device).compute_s == pytest.approx(profile.traffic(device).compute_s)
            assert again.traffic(device).bytes == pytest.approx(profile.traffic(device).bytes)
