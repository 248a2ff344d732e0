"""Which run deletes the checkpoints of a folder, and which one keeps them as its own."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from berth.errors import InputError
from berth.train.checkpoint import CheckpointStore, cleared
from berth.train.checkpoint.manifest import NAME, folder_of
from berth.train.rendezvous import torchrun_name
from berth.train.started_by import StartedBy, started_by

VARIABLES = (
    *("BERTH_JOB", "BERTH_ATTEMPT", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "BERTH_TRAIN_LAUNCHER"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"),
)


class Folder:
    """A folder of checkpoints, in which processes start runs with --fresh."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(self, step: int) -> None:
        folder = folder_of(self.root, step)
        folder.mkdir(parents=True)
        (folder / NAME).write_text("{}")

    def left_by(self, *processes: list[StartedBy]) -> list[list[int]]:
        """Start the runs of each process, and save a step in each; returns what was there when each run began."""
        found = []
        for runs in processes:
            cleared._started.clear()
            for by in runs:
                store = CheckpointStore(self.root)
                store.clear_once(by)
                found.append(store.steps())
                self.save(max(store.steps(), default=0) + 1)
        return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cleared, "_started", Counter())
    (tmp_path / "run").mkdir()
    return Folder(tmp_path / "run")


def job(attempt: int, program: str, name: str = "berth job j") -> StartedBy:
    return StartedBy(name, str(attempt), attempt > 1, program)


TORCHRUN = StartedBy("", "", False, "torchrun a")


def test_every_run_of_a_process_begins_afresh_and_a_restart_keeps_only_its_own(folder):
    folder.save(9)
    assert folder.left_by([TORCHRUN, TORCHRUN]) == [[], []]
    # the first run of the script is not the one that was saved last
    assert folder.left_by([TORCHRUN, TORCHRUN]) == [[], []]
    assert folder.left_by([TORCHRUN], [TORCHRUN]) == [[], [1]]


def test_runs_in_several_folders_each_resume_after_a_restart(folder, tmp_path):
    (tmp_path / "other").mkdir()
    folders = [folder, Folder(tmp_path / "other")]
    for expected in ([], [1], [1, 2]):
        cleared._started.clear()
        for one in folders:
            CheckpointStore(one.root).clear_once(TORCHRUN)
            assert CheckpointStore(one.root).steps() == expected
            one.save(len(expected) + 1)


def test_another_torchrun_and_what_was_started_by_hand_begin_afresh(folder):
    other, hand = StartedBy("", "", False, "torchrun b"), StartedBy("", "", False, "process 1")
    assert folder.left_by([TORCHRUN], [other], [hand], [StartedBy("", "", False, "process 2")]) == [[]] * 4


def test_a_job_that_is_started_again_resumes(folder):
    folder.save(9)
    assert folder.left_by([job(1, "a")], [job(2, "b")], [job(3, "c")]) == [[], [1], [1, 2]]
    assert folder.left_by([job(4, "d", "berth job other")]) == [[]]


def test_a_first_attempt_deletes_what_another_job_of_its_name_saved(folder):
    assert folder.left_by([job(1, "a")], [job(2, "b")], [job(1, "c")]) == [[], [1], []]


def test_commands_of_one_attempt_each_begin_afresh(folder):
    assert folder.left_by([job(1, "a")], [job(1, "b")]) == [[], []]
    # the second was saved last, so the first begins again
    assert folder.left_by([job(2, "c")], [job(2, "d")]) == [[], []]
    assert folder.left_by([job(3, "e")], [job(4, "f")], [job(4, "g")]) == [[], [1], []]


def test_a_launcher_in_a_job_restarts_its_workers_which_resume(folder):
    assert folder.left_by([job(1, "a")], [job(1, "a")], [job(1, "b")], [job(1, "b")]) == [[], [1], [], [1]]
    assert folder.left_by([job(2, "c")], [job(2, "c")], [job(3, "d")]) == [[], [1], [1, 2]]


def test_the_note_of_an_earlier_version_is_read(folder):
    folder.save(9)
    (folder.root / cleared.NAME).write_text("berth job j\n")
    assert folder.left_by([job(2, "a")]) == [[9]]
    (folder.root / cleared.NAME).write_text("berth job j\n")
    assert folder.left_by([job(2, "a", "Slurm job 7")]) == [[]]


def test_the_note_is_on_disk_before_it_replaces_the_last_one(folder, monkeypatch):
    synced = []

    def fsync(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((path.name, cleared.read_note(folder.root).program))

    cleared.write_note(folder.root, cleared.ClearedFor(program="a"))
    monkeypatch.setattr(os, "fsync", fsync)
    cleared.write_note(folder.root, cleared.ClearedFor(program="b"))
    assert synced == [(".cleared-for.new", "a"), ("run", "b")]


@pytest.fixture
def environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def set_to(**variables: str) -> StartedBy:
        with monkeypatch.context() as changed:
            for name, value in variables.items():
                changed.setenv(name, value)
            return started_by()

    return set_to


def test_jobs_programs_and_attempts_are_read_from_the_environment(environment):
    by_hand = environment()
    assert (by_hand.job, by_hand.is_restart, by_hand.program) == ("", False, environment().program)
    launched = environment(SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1", BERTH_TRAIN_LAUNCHER="l")
    assert (launched.job, launched.is_restart, launched.program) == ("Slurm job 7", True, "launcher l")
    first, second = (environment(BERTH_JOB="j", SLURM_JOB_ID="7", BERTH_ATTEMPT=n) for n in "12")
    assert first.job == second.job == "berth job j"
    assert (first.is_restart, second.is_restart, first.attempt == second.attempt) == (False, True, False)
    without_store = environment(TORCHELASTIC_RUN_ID="r", TORCHELASTIC_RESTART_COUNT="1")
    assert (without_store.job, without_store.is_restart) == ("torchrun r", True)


def agent_store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))


def test_a_run_of_torchrun_has_one_name_whatever_its_id(environment):
    stores = [agent_store(), agent_store()]
    first, again, other = (
        environment(
            TORCHELASTIC_RUN_ID="none",
            TORCHELASTIC_RESTART_COUNT=restarts,
            TORCHELASTIC_USE_AGENT_STORE="True",
            RANK="0",
            WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(store.port),
        )
        for store, restarts in ((stores[0], "0"), (stores[0], "1"), (stores[1], "1"))
    )
    assert first == again
    assert (first.job, first.is_restart) == ("", False)  # only its name says whose checkpoints there are
    assert first.program.startswith("torchrun ")
    assert first.program != other.program


def test_a_store_that_does_not_answer_is_one_message(monkeypatch):
    monkeypatch.setenv("BERTH_TRAIN_SILENT_S", "0.1")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"store of torchrun at 127.0.0.1:1 can't be reached"):
        torchrun_name()
