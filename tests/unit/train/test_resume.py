"""A run that is killed at any point resumes, and its losses are those of an undisturbed run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from berth.errors import InputError
from berth.train.checkpoint import CheckpointStore
from berth.train.fault_points import FAULT_POINTS
from berth.train.interruption import Interruption, Stopped
from berth.train.local import LocalStore
from berth.train.options import TrainOptions
from berth.train.run_identity import check_same_run
from berth.train.tables import DecayPolicy, shard_of, split


def folders(tmp_path):
    return tmp_path / "saved", tmp_path / "log"


@pytest.mark.parametrize("times", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 4))])
@pytest.mark.parametrize("fault_point", [name for name in FAULT_POINTS if not name.startswith("server")])
def test_killed_at_any_moment_the_losses_are_those_of_an_uninterrupted_run(
    small, fault_point, times, tmp_path, uninterrupted, killed
):
    saved, log = folders(tmp_path)
    assert small.in_child(lambda: small.train(saved, log), f"{fault_point}@{times}") == killed
    assert small.in_child(lambda: small.train(saved, log)) == 0
    assert small.losses(log) == uninterrupted


@pytest.mark.slow
def test_killed_again_and_again_it_comes_to_the_same_end(small, tmp_path, uninterrupted, killed):
    saved, log = folders(tmp_path)
    for step in (4, 5, 4, 4):
        small.in_child(lambda: small.train(saved, log), f"step@{step}")
    assert small.in_child(lambda: small.train(saved, log)) == 0
    assert small.losses(log) == uninterrupted


@pytest.mark.slow
def test_rows_and_weights_after_a_kill_are_those_of_an_uninterrupted_run(small, tmp_path, killed):
    assert small.in_child(lambda: small.train(tmp_path / "a", every=5), "step@9") == killed
    resumed, whole = small.train(tmp_path / "a", every=5), small.train(tmp_path / "b", every=5)
    for name, weights in whole.learner.model.state_dict().items():
        assert weights.equal(resumed.learner.model.state_dict()[name])
    states = [session.store.table("rows").save() for session in (resumed, whole)]
    assert np.array_equal(states[0].keys, states[1].keys)
    assert np.array_equal(states[0].records, states[1].records)
    assert resumed.progress.auc == whole.progress.auc


@pytest.mark.slow
def test_tables_beyond_memory_resume_bit_by_bit_too(small, tmp_path, killed):
    saved, log = folders(tmp_path)

    def work():
        session = small.train(saved, log, batch=4096, memory="7MB")
        assert session.store.statistics()["tables"]["rows"]["evicted"] > 0

    assert small.in_child(work, "checkpoint: a part half written@300") == killed
    assert small.in_child(work) == 0
    assert small.in_child(lambda: small.train(tmp_path / "other", tmp_path / "all", batch=4096)) == 0
    assert small.losses(log) == small.losses(tmp_path / "all")


@pytest.mark.slow
def test_sigterm_saves_the_step_and_says_preempted(small, tmp_path, uninterrupted):
    saved, log = folders(tmp_path)

    def stopped():
        how = small.Checkpoints(saved, every=100)
        session = small.Session(small.Small(), options=TrainOptions(batch=64, checkpoints=how))

        def report(of):
            if of.progress.step == 7:
                os.kill(os.getpid(), signal.SIGTERM)

        result = session.run(12, report=report)
        assert result.preempted
        assert str(result).startswith("preempted at step 7")

    assert small.in_child(stopped) == 0
    assert CheckpointStore(saved).steps() == [7]
    assert small.in_child(lambda: small.train(saved, log)) == 0
    assert small.losses(log) == {step: loss for step, loss in uninterrupted.items() if step > 7}


@pytest.mark.slow
def test_ctrl_c_saves_the_step_too_and_is_raised_when_all_is_safe(small, tmp_path, uninterrupted, ctrl_c):
    saved, log = folders(tmp_path)

    def stopped():
        def report(of):
            if of.progress.step == 7:
                os.kill(os.getpid(), signal.SIGINT)

        session = small.Session(
            small.Small(), options=TrainOptions(batch=64, checkpoints=small.Checkpoints(saved, every=100))
        )
        with pytest.raises(Stopped, match="stopped after step 7, which is saved"):
            session.run(12, report=report)

    assert small.in_child(stopped) == 0
    assert CheckpointStore(saved).steps() == [7]
    assert small.in_child(lambda: small.train(saved, log)) == 0
    assert small.losses(log) == {step: loss for step, loss in uninterrupted.items() if step > 7}


def test_a_second_ctrl_c_waits_for_nothing(ctrl_c):
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested
        signal.raise_signal(signal.SIGTERM)  # asks for nothing new
        with pytest.raises(KeyboardInterrupt) as raised:
            signal.raise_signal(signal.SIGINT)
    assert not isinstance(raised.value, Stopped)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_days_end_after_the_same_steps_whatever_interrupts_them(small, tmp_path):
    """A day of 150 examples, batches of 64: some steps end a day, and the dead leave."""
    saved, (log, other) = tmp_path / "saved", (tmp_path / "log", tmp_path / "other")

    def work(folder, into, steps=12):
        model = small.Small()
        model.rows.decay = DecayPolicy(min_score=0.3)
        session = small.train(folder, into, model=model, steps=steps, day_every=150)
        table = session.store.table("rows")
        assert table.day == steps * 64 // 150
        assert table.counts.removed > 0

    assert small.in_child(lambda: work(saved, log, 7)) == 0
    assert small.in_child(lambda: work(saved, log)) == 0
    assert small.in_child(lambda: work(tmp_path / "whole", other)) == 0
    assert small.losses(log) == small.losses(other)
    assert small.in_child(lambda: small.train(saved)) == 1  # days of another length are another training


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["dense.bin", "table-0.bin", "manifest.json"])
@pytest.mark.parametrize("how", ["altered", "torn", "missing"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    small, part, how, tmp_path, uninterrupted, capfd
):
    saved, log = folders(tmp_path)
    assert small.in_child(lambda: small.train(saved, log, steps=9)) == 0
    path = saved / "step-000000000009" / part
    if how == "altered":
        damage(path)
    elif how == "torn":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        path.unlink()
    log.unlink()
    assert small.in_child(lambda: small.train(saved, log)) == 0
    assert small.losses(log) == {step: loss for step, loss in uninterrupted.items() if step > 6}
    if (part, how) != ("manifest.json", "missing"):
        assert "checkpoint of step 9 can't be used" in capfd.readouterr().out


@pytest.mark.slow
def test_a_delta_over_a_damaged_checkpoint_is_refused(small, tmp_path, uninterrupted, capfd):
    saved, log = folders(tmp_path)
    assert small.in_child(lambda: small.train(saved, log, steps=9)) == 0  # 3 full, 6 full, 9 over 6
    damage(saved / "step-000000000006" / "table-0.bin")
    log.unlink()
    assert small.in_child(lambda: small.train(saved, log)) == 0
    said = capfd.readouterr().out
    assert "it is based on step 6" in said
    assert "falling back to step 3" in said
    assert small.losses(log) == {step: loss for step, loss in uninterrupted.items() if step > 3}


@pytest.mark.slow
def test_only_the_newest_are_kept_with_those_they_rest_on(small, tmp_path):
    saved, _ = folders(tmp_path)
    assert small.in_child(lambda: small.train(saved, steps=18)) == 0
    # 3 full, 6 full, 9 and 12 over it, 15 full, 18 over it: keep=2 are 15 and 18, and 12 rests on another
    assert CheckpointStore(saved).steps() == [6, 9, 12, 15, 18]
    assert [manifest.kind for manifest in CheckpointStore(saved).newest()] == ["full", "delta"]


def test_a_folder_with_another_training_is_refused_by_name(small, tmp_path):
    saved, _ = folders(tmp_path)
    assert small.in_child(lambda: small.train(saved, steps=3)) == 0
    with pytest.raises(InputError, match=r"^r: holds .* \(data differs\)\n") as error:
        check_same_run({"data": {"files": ["a"] * 30}}, {"data": {"kind": "clicks"}}, "r")
    assert "--fresh" in error.value.hint
    with pytest.raises(InputError, match=r"a different run \(seed: 0 there, 5 here"):
        small.train(saved, seed=5)


def test_checkpoints_of_an_earlier_version_over_the_same_files_are_refused_with_the_cause():
    files = {"kind": "files", "files": [["day0.tsv", 100]], "window": 64}
    now = {"seed": 0, "data": {**files, "shuffled": "within an epoch"}}
    with pytest.raises(InputError, match="holds checkpoints of an earlier version of berth, which shuffled"):
        check_same_run({"seed": 0, "data": files}, now, "run")
    for other in ({"seed": 1, "data": files}, {"seed": 0, "data": {**files, "window": 32}}):
        with pytest.raises(InputError, match="a different run"):
            check_same_run(other, now, "run")
    with_columns = {"seed": 0, "data": {**now["data"], "columns": {"labels": ["click"]}}}
    with pytest.raises(InputError, match="an earlier version of berth, which did not record columns"):
        check_same_run(now, with_columns, "run")
    with pytest.raises(InputError, match="an earlier version of berth, which shuffled"):
        check_same_run({"seed": 0, "data": files}, with_columns, "run")


def test_a_checkpoint_without_the_types_of_ids_is_resumed():
    saved = {"data": {"kind": "files", "columns": {"labels": ["y"]}}}
    typed = [
        {"data": {"kind": "files", "columns": {"labels": ["y"], "number_ids": ids}}} for ids in ([], ["a"])
    ]
    check_same_run(saved, typed[0], "run")
    with pytest.raises(InputError, match="different run"):
        check_same_run(*typed, "run")


@pytest.mark.parametrize("columns", [39, ["a", "b"], "a b", None])
def test_a_source_of_ones_own_may_describe_its_columns_in_any_way(columns):
    own = {"data": {"kind": "own", "columns": columns}}
    described = {"data": {"kind": "own", "columns": {"labels": ["y"], "number_ids": []}}}
    check_same_run(own, own, "run")
    for other in (described, {"data": {"kind": "own", "columns": {"labels": ["y"]}}}):
        for saved, current in ((own, other), (other, own)):
            with pytest.raises(InputError, match="different run"):
                check_same_run(saved, current, "run")


class Sharded:
    """Tables spread over several stores by the hash of the key."""

    def __init__(self, shards):
        self.shards = [LocalStore() for _ in range(shards)]

    def open(self, tables):
        for shard in self.shards:
            shard.open(tables)

    def prefetch(self, table, keys):
        pass

    def pull(self, table, keys, out=None):
        owner = shard_of(keys.view(np.int64), len(self.shards))
        for number, shard in enumerate(self.shards):
            out[owner == number] = shard.pull(table, keys[owner == number])
        return out

    def push(self, table, keys, gradients, *, shows=None, clicks=None):
        owner = shard_of(keys.view(np.int64), len(self.shards))
        for number, shard in enumerate(self.shards):
            shard.push(table, keys[owner == number], gradients[owner == number])

    def end_step(self, step):
        pass

    def save(self, *, changed_only=False):
        for shard in self.shards:
            yield from shard.save(changed_only=changed_only)

    def load(self, table, state):
        for shard, part in zip(self.shards, split(state, len(self.shards)), strict=True):
            shard.load(table, part)

    def statistics(self):
        return {}

    def close(self):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, None), (None, 3), (3, 2)])
def test_a_run_goes_on_with_another_number_of_shards(small, tmp_path, uninterrupted, killed, before, after):
    saved, log = folders(tmp_path)

    def work(shards):
        small.train(saved, log, store=Sharded(shards) if shards else None)

    assert small.in_child(lambda: work(before), "step@8") == killed
    assert small.in_child(lambda: work(after)) == 0
    assert small.losses(log) == uninterrupted


def test_two_trainings_do_not_share_a_folder(small, tmp_path):
    session = small.train(tmp_path / "saved", steps=3)
    with pytest.raises(InputError, match="another run is writing checkpoints here"):
        small.train(tmp_path / "saved")
    session.close()
    small.train(tmp_path / "saved").close()


def test_a_disk_that_is_full_for_a_while_costs_one_checkpoint(
    small, tmp_path, monkeypatch, capsys, uninterrupted
):
    from berth.train.checkpoint import writer

    real, failed = writer.ArrayFile.finish, []

    def finish(self):
        if not failed and "step-000000000006" in str(self.path):
            failed.append(1)
            raise OSError(28, "No space left on device")
        return real(self)

    monkeypatch.setattr(writer.ArrayFile, "finish", finish)
    small.train(tmp_path / "saved", steps=9).close()
    assert "checkpoint of step 6 could not be written: No space left on device" in capsys.readouterr().out
    chain = CheckpointStore(tmp_path / "saved").newest()
    assert [(manifest.step, manifest.kind) for manifest in chain] == [(9, "full")]


def test_old_checkpoints_that_can_not_be_removed_do_no_harm(small, tmp_path, monkeypatch, capsys):
    def prune(self, keep, protected=None):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(CheckpointStore, "prune", prune)
    small.train(tmp_path / "saved", steps=9).close()
    assert "old checkpoints could not be removed: Permission denied" in capsys.readouterr().out
    assert CheckpointStore(tmp_path / "saved").steps() == [3, 6, 9]
    assert len(CheckpointStore(tmp_path / "saved").newest()) == 2


def test_a_bug_in_the_writing_thread_is_not_lost(small, tmp_path, monkeypatch):
    from berth.train.checkpoint import writer

    def publish(folder, manifest):
        raise ZeroDivisionError

    monkeypatch.setattr(writer, "publish", publish)
    with pytest.raises(ZeroDivisionError):
        small.train(tmp_path / "saved", steps=9)


@pytest.mark.slow
def test_random_kills_over_many_steps_change_nothing(small, tmp_path, uninterrupted):
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed, file=sys.stderr)
    random = np.random.default_rng(seed)
    saved, log = folders(tmp_path)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            try:
                small.train(saved, log, every=1)
            finally:
                os._exit(0)
        time.sleep(random.uniform(0.02, 0.3))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert small.in_child(lambda: small.train(saved, log, every=1)) == 0
    assert small.losses(log) == uninterrupted
