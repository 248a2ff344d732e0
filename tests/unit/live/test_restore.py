"""A backup of the journal is put back: what came after it is not mistaken for what comes next."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from berth.errors import InputError
from berth.live import views
from berth.live.backend import Launch, Member, Stop
from berth.live.backends.local import LocalBackend
from berth.live.folder import Folder, tokens_in
from berth.live.ids import Ids
from berth.live.server import work_folder
from berth.live.store import Store
from berth.testing.up import until


class Restored:
    """A controller over real processes whose journal can be set back."""

    def __init__(self, crank, folder):
        self.work = folder / "work"
        self.live = crank(backend=lambda cluster, clock: LocalBackend(self.work, cluster))
        self.backup = folder / "backup.sqlite"

    def save(self):
        """As `sqlite3 journal.sqlite ".backup FILE"` does while the controller is up."""
        with (
            closing(sqlite3.connect(self.live.folder / "journal.sqlite")) as journal,
            closing(sqlite3.connect(self.backup)) as copy,
        ):
            journal.backup(copy)

    def restore(self):
        self.live.controller.store.close()
        for path in self.live.folder.glob("journal.sqlite*"):
            path.unlink()
        shutil.copy(self.backup, self.live.folder / "journal.sqlite")
        self.live.controller = self.live.open()

    def until(self, condition):
        def stepped():
            self.live.step(0.01)
            return condition()

        return until(stepped)

    def finish(self, job):
        self.until(lambda: self.live.state_of(job) == "finished" and not tokens_in(self.work))

    def log(self, job):
        (token,) = self.live.controller.store.tokens_of(job)
        return Folder(self.work, token).log(0).read_text()


@pytest.fixture
def restored(crank, tmp_path):
    return Restored(crank, tmp_path)


def test_an_attempt_that_ended_after_the_backup_has_ended_after_the_restore(restored):
    job = restored.live.submit(run="echo once")
    assert restored.live.state.attempts[restored.live.state.jobs[job].token].state == "launching"
    restored.save()
    restored.finish(job)
    restored.restore()
    assert restored.live.state_of(job) == "placed"
    restored.finish(job)
    assert restored.live.controller.store.ended_job(job)["attempts"] == 1
    assert restored.log(job) == "once\n"


def test_the_end_of_an_attempt_that_ran_at_the_backup_is_not_lost(restored, tmp_path):
    enough = tmp_path / "enough"
    job = restored.live.submit(run=f"until [ -e {enough} ]; do sleep 0.05; done; exit 7", restarts=0)
    restored.until(
        lambda: restored.live.state.attempts[restored.live.state.jobs[job].token].state == "running"
    )
    restored.save()
    enough.touch()
    restored.until(lambda: restored.live.state_of(job) == "failed" and not tokens_in(restored.work))
    restored.restore()
    restored.until(lambda: restored.live.state_of(job) == "failed")
    over = restored.live.controller.store.ended_job(job)
    assert (over["code"], over["attempts"]) == (7, 1)


@pytest.mark.slow
def test_an_attempt_that_was_stopped_before_it_was_launched_is_tried_again(restored):
    job = restored.live.submit(run="true")
    token = restored.live.state.jobs[job].token
    restored.save()
    restored.until(lambda: not tokens_in(restored.work))
    shutil.rmtree(restored.work / "ended" / token)
    Folder(restored.work, token).stop()  # the order that the lost part of the journal had for it
    restored.restore()
    restored.until(lambda: token not in restored.live.state.attempts)
    restored.live.clock.advance(10)  # the pause before it is tried again
    restored.finish(job)
    assert restored.live.controller.store.ended_job(job)["attempts"] == 2


@pytest.mark.slow
def test_a_new_job_runs_though_its_id_was_in_use_after_the_backup(restored):
    restored.save()
    before = restored.live.submit(run="echo before")
    restored.finish(before)
    restored.restore()
    after = restored.live.submit(run="echo after", job=before)
    restored.finish(after)
    assert restored.log(after) == "after\n"


@pytest.mark.slow
def test_a_process_of_after_the_backup_is_stopped_and_no_job_takes_it_for_its_own(restored):
    restored.save()
    before = restored.live.submit(run="sleep 10000")
    restored.until(lambda: restored.live.state.attempts[restored.live.state.jobs[before].token].began)
    restored.restore()
    after = restored.live.submit(run="echo after", job=before)
    restored.finish(after)
    assert restored.log(after) == "after\n"


def test_ids_after_a_restore_go_on_where_they_were(crank, tmp_path):
    live, work = crank(), tmp_path / "work"
    work.mkdir()
    live.controller.store.keep_ids_in(work)
    assert [live.submit(), live.submit()] == ["j1", "j2"]
    live.controller.store.close()
    backup = tmp_path / "backup"
    shutil.copytree(live.folder, backup)
    live.controller = live.open()
    live.controller.store.keep_ids_in(work)
    assert live.submit() == "j3"
    live.controller.store.close()
    shutil.rmtree(live.folder)
    backup.rename(live.folder)
    live.controller = live.open()
    live.controller.store.keep_ids_in(work)
    assert live.submit() == "j4"


def test_nothing_is_launched_on_devices_that_an_unknown_attempt_still_holds(crank, tmp_path):
    live = crank()  # its engine refuses to run two processes on one device
    live.controller.store.close()
    backup = tmp_path / "backup"
    shutil.copytree(live.folder, backup)
    live.controller = live.open()
    before = live.submit(gpus=16, seconds=1000, job="before")
    live.step(1)
    (token,) = live.backend.alive()
    live.controller.store.close()
    shutil.rmtree(live.folder)
    backup.rename(live.folder)
    live.backend._do(Stop(token, 30.0))  # it takes its time to leave
    live.controller = live.open()
    after = live.submit(gpus=16, seconds=10, job="after")
    assert (set(live.backend.alive()), set(live.state.jobs)) == ({token}, {after})
    assert live.state.jobs[after].state == "queued"
    (blocker,) = live.controller.blockers()
    assert blocker.cause == "unknown-attempts"
    assert token in blocker.sentence
    live.step(30, times=3)
    assert live.state_of(after) == "finished"
    assert not live.controller.blockers()
    assert live.backend.work[before].finished == 0


def restored_without(live, tmp_path, **job):
    """Set the journal back to before a job that runs on; return the token of its attempt, which can't be stopped."""
    live.controller.store.close()
    backup = tmp_path / "backup"
    shutil.copytree(live.folder, backup)
    live.controller = live.open()
    live.submit(seconds=1e6, job="before", **job)
    live.step(1)
    (token,) = live.backend.alive()
    live.controller.store.close()
    shutil.rmtree(live.folder)
    backup.rename(live.folder)
    live.backend._lives[token].kill_at = float("inf")  # its node does not answer
    live.controller = live.open()
    return token


def test_an_unknown_attempt_that_can_not_be_stopped_blocks_only_its_devices(crank, tmp_path):
    live = crank()
    token = restored_without(live, tmp_path, gpus=2)
    (machine,) = live.backend.devices_of(token)
    live.step(1)
    (blocker,) = live.controller.blockers()
    assert blocker.sentence == (
        f"1 attempt running that the journal does not know ({token}): "
        f"2 devices of {machine} can't be used until they have been stopped"
    )
    jobs = [live.submit(gpus=1, seconds=10) for _ in range(14)]
    late = live.submit(gpus=16, seconds=10)
    live.restart()
    live.step(30, times=3)
    assert [live.state_of(job) for job in jobs] == ["finished"] * 14
    assert live.state_of(late) == "queued"
    reason = views.launch_blocker(
        live.state, live.state.jobs[late], live.controller.observer.observation, [blocker]
    )
    assert (reason.code, reason.sentence) == ("unknown-attempts", blocker.sentence)
    (shown,) = [one for one in views.machines(live.state) if one["external"]]
    assert (shown["name"], shown["external"], shown["free"]) == (machine, 2, 2)
    live.backend._lives[token].kill_at = live.clock.monotonic()
    live.step(30, times=3)
    assert live.state_of(late) == "finished"
    assert not live.controller.blockers()


MIXED = "machines: [{devices: {V100-16: 2, cpu-core: 4}}]\n"


def test_devices_of_an_unknown_attempt_are_out_of_service_by_their_type(crank, tmp_path):
    (cluster := tmp_path / "mixed.yaml").write_text(MIXED)
    live = crank(cluster=str(cluster))
    token = restored_without(live, tmp_path, gpus=3, kind="cpu-core")
    live.step(1)
    names = [one.name for one in live.cluster.device_types]
    free = {names[host["device_type"]]: int(host["free"]) for host in live.state.world.hosts}
    assert free == {"V100-16": 2, "cpu-core": 1}
    gpus = live.submit(gpus=2, seconds=10, kind="V100-16")
    cores = live.submit(gpus=2, seconds=10, kind="cpu-core")
    live.step(30, times=3)
    assert (live.state_of(gpus), live.state_of(cores)) == ("finished", "queued")
    live.backend._lives[token].kill_at = live.clock.monotonic()
    live.step(30, times=3)
    assert live.state_of(cores) == "finished"


def test_a_job_that_waits_for_other_devices_does_not_name_an_unknown_attempt(crank, tmp_path):
    live = crank()
    restored_without(live, tmp_path, gpus=2)
    live.step(1)
    live.submit(gpus=14, seconds=100)
    job = live.submit(gpus=4, seconds=10)
    (blocker,) = live.controller.blockers()
    assert (
        views.launch_blocker(
            live.state, live.state.jobs[job], live.controller.observer.observation, [blocker]
        )
        is None
    )


@pytest.mark.parametrize("known", [True, False], ids=["its machine is known", "nothing is known"])
def test_an_unknown_attempt_blocks_all_devices_that_it_may_hold(crank, tmp_path, known):
    live = crank()
    token = restored_without(live, tmp_path, gpus=2)
    (machine,) = live.backend.devices_of(token)
    live.backend.devices_of = lambda _: {machine: ()} if known else None
    live.step(1)
    (blocker,) = live.controller.blockers()
    assert (f"4 devices of {machine} can't be used" if known else "no job is launched") in blocker.sentence
    job = live.submit(gpus=12, seconds=10)
    live.step(30, times=3)
    assert live.state_of(job) == ("finished" if known else "placed")


def test_a_damaged_file_of_the_last_id_is_replaced(crank, tmp_path):
    live = crank()
    (tmp_path / "last-id").write_bytes(b"\xff\n12345")
    live.controller.store.keep_ids_in(tmp_path)
    assert live.submit() == "j1"
    assert (tmp_path / "last-id").read_text() == "1\n"


def test_a_file_of_the_last_id_that_can_not_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "last-id").mkdir()
    with pytest.raises(InputError, match="can't be written: Is a directory") as error:
        Ids(tmp_path)
    assert str(tmp_path / "last-id") in str(error.value)


def test_a_work_folder_in_use_is_refused_even_to_the_same_state(tmp_path):
    first = Store(tmp_path / "state")
    work = work_folder(first, None)
    first.keep_ids_in(work)
    (tmp_path / "state").rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "state")
    second = Store(tmp_path / "state")
    assert work_folder(second, None) == work
    with pytest.raises(InputError, match="another controller uses this work folder") as error:
        second.keep_ids_in(work)
    assert str(work) in str(error.value)
    second.close()
    first.close()


def test_a_folder_with_nothing_but_a_stop_has_ended(tmp_path):
    folder = Folder(tmp_path, "s-j1.1")
    folder.stop()
    seen = folder.seen()
    assert (seen.state, seen.stopped, seen.lost, seen.codes) == ("ended", True, True, ())
    folder.archive()
    launch = Launch("s-j1.1", "j1", 1, "job", "me", ("true",), (Member(0, 0, "m", (0,)),))
    assert not folder.prepare(launch)
    assert folder.seen() == seen
