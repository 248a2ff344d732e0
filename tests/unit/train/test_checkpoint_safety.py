"""One damaged file never costs a run: two full chains are kept, and nothing newer is deleted on going back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import torch

from berth.errors import InputError
from berth.train import Checkpoints, Session
from berth.train.checkpoint import CheckpointStore
from berth.train.checkpoint.inspect import open_checkpoint
from berth.train.checkpoint.manifest import FORMAT
from berth.train.options import TrainOptions


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No power is cut here: what is written need not be on the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def trained(small, folder, steps, keep=3, full_every=8, **options):
    """A checkpoint after every step."""
    how = Checkpoints(folder, every=1, keep=keep, full_every=full_every)
    session = Session(small.Small(), options=TrainOptions(batch=2, checkpoints=how), **options)
    session.run(steps)
    session.close()
    return session


def chains(folder):
    """Steps of every chain that is kept, by its full base."""
    checkpoint_store, found = CheckpointStore(folder), {}
    for step in checkpoint_store.steps():
        chain = checkpoint_store.chain(step)
        found[chain[0].step] = [one.step for one in chain]
    return found


def flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 2, 3, 9])
@pytest.mark.parametrize("full_every", [1, 3, 8, 100])
def test_from_the_second_checkpoint_on_two_full_chains_are_kept(small, tmp_path, keep, full_every):
    how = Checkpoints(tmp_path, every=1, keep=keep, full_every=full_every)
    session = Session(small.Small(), options=TrainOptions(batch=2, checkpoints=how))
    for _ in session.steps(12):
        session._writer.wait()
        kept, step = chains(tmp_path), session.progress.step
        assert len(kept) >= min(step, 2)
        assert len(CheckpointStore(tmp_path).steps()) <= max(keep, full_every) + full_every
        assert kept[max(kept)][-1] == step
        assert len(kept[max(kept)]) <= full_every
    session.close()


@pytest.mark.slow
def test_any_flipped_byte_of_the_newest_chain_leaves_the_other_to_go_on_from(small, tmp_path):
    trained(small, tmp_path / "run", 12)
    kept = chains(tmp_path / "run")
    assert kept == {2: list(range(2, 10)), 10: [10, 11, 12]}
    newest, other = sorted(kept)[-1], sorted(kept)[-2]
    for step in kept[newest]:
        for file in sorted((tmp_path / "run" / f"step-{step:012d}").iterdir()):
            copy = tmp_path / f"{step}-{file.name}"
            shutil.copytree(tmp_path / "run", copy)
            flip(copy / file.parent.name / file.name)
            said = []
            session = trained(small, copy, 13, notify=said.append)
            expected = step - 1 if step > newest else kept[other][-1]
            assert session.resumed_from == expected
            assert any(f"checkpoint of step {step} can't be used" in text for text in said)
            assert f"falling back to step {expected}" in "".join(said)


@pytest.mark.slow
def test_the_oldest_chain_goes_once_two_others_are_there(small, tmp_path):
    trained(small, tmp_path, 19)
    assert sorted(chains(tmp_path)) == [10, 18]


@pytest.mark.slow
def test_after_going_back_the_next_checkpoint_is_full_so_that_two_bases_are_there_again(small, tmp_path):
    trained(small, tmp_path, 12)
    for step in (10, 11, 12):
        flip(tmp_path / f"step-{step:012d}" / "table-0.bin")
    session = trained(small, tmp_path, 10)
    assert session.resumed_from == 9
    assert sorted(chains(tmp_path)) == [2, 10]


def test_what_is_newer_than_the_checkpoint_a_run_goes_back_to_is_renamed_not_deleted(small, tmp_path):
    trained(small, tmp_path, 4)
    whole = {file.name: file.read_bytes() for file in (tmp_path / "step-000000000004").iterdir()}
    flip(tmp_path / "step-000000000003" / "dense.bin")
    said = []
    session = trained(small, tmp_path, 3, notify=said.append)
    assert session.resumed_from == 2
    aside = tmp_path / "set-aside-step-000000000004"
    assert {file.name: file.read_bytes() for file in aside.iterdir()} == whole
    assert (tmp_path / "set-aside-step-000000000003" / "manifest.json").exists()
    assert any("set-aside-step-000000000004" in text for text in said)
    flip(tmp_path / "step-000000000003" / "dense.bin")
    trained(small, tmp_path, 3)
    assert (tmp_path / "set-aside-step-000000000003-2" / "manifest.json").exists()


def test_a_file_that_can_not_be_read_for_a_moment_costs_no_checkpoint(small, tmp_path, monkeypatch):
    trained(small, tmp_path, 3)
    real = hashlib.file_digest

    def stale(file, kind):
        if "step-000000000003" in str(file.name):
            raise OSError(116, "Stale file handle")
        return real(file, kind)

    said = []
    monkeypatch.setattr(hashlib, "file_digest", stale)
    session = trained(small, tmp_path, 2, notify=said.append)
    assert session.resumed_from == 2
    assert any("Stale file handle" in text for text in said)
    monkeypatch.undo()
    (tmp_path / "set-aside-step-000000000003").rename(tmp_path / "step-000000000003")
    assert CheckpointStore(tmp_path).newest()[-1].step == 3


def test_old_ones_are_not_removed_by_mistake_when_a_manifest_can_not_be_read(small, tmp_path):
    trained(small, tmp_path, 6)
    flip(tmp_path / "step-000000000005" / "manifest.json")
    CheckpointStore(tmp_path).prune(1)
    assert set(CheckpointStore(tmp_path).steps()) >= {2, 3, 4, 6}


def as_of_format(folder, number) -> None:
    path = folder / "manifest.json"
    reported = json.loads(path.read_text())["manifest"]
    reported["format"] = number
    text = json.dumps(reported, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "manifest": reported}))


def test_a_newer_format_is_refused_by_name_and_left_alone(small, tmp_path):
    trained(small, tmp_path, 3)
    as_of_format(tmp_path / "step-000000000003", FORMAT + 1)
    names = sorted(path.name for path in tmp_path.iterdir())
    what = rf"step 3 was written by a newer version of berth \(format {FORMAT + 1}\); this one reads up to {FORMAT}"
    for ask in (
        lambda: trained(small, tmp_path, 4),
        lambda: open_checkpoint(tmp_path),
        lambda: open_checkpoint(tmp_path, 3),
    ):
        with pytest.raises(InputError, match=what):
            ask()
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_an_older_format_is_still_read(small, tmp_path):
    trained(small, tmp_path, 3)
    as_of_format(tmp_path / "step-000000000003", 1)
    assert trained(small, tmp_path, 4).resumed_from == 3


def test_save_is_honoured_for_a_step_that_is_saved_already(small, tmp_path):
    how = Checkpoints(tmp_path, every=1)
    session = Session(small.Small(), options=TrainOptions(batch=16, checkpoints=how))
    session.run(3)
    with torch.no_grad():
        session.model.top[0].weight.fill_(0.25)
    session.store.push("rows", np.arange(5, dtype=np.uint64), np.ones((5, 4), np.float32))
    session.save()
    rows = session.store.table("rows").save()
    session.close()
    again = Session(small.Small(), options=TrainOptions(batch=16, checkpoints=how))
    assert again.resumed_from == 3
    assert bool((again.model.top[0].weight == 0.25).all())
    assert np.array_equal(again.store.table("rows").save().records, rows.records)
    again.run(4)
    again.close()
    assert CheckpointStore(tmp_path).newest()[-1].step == 4
    names = {path.name for path in (tmp_path / "step-000000000003").iterdir()}
    assert names == {"manifest.json", *CheckpointStore(tmp_path).chain(3)[-1].parts}


def test_a_second_save_of_a_step_that_fails_leaves_the_first(small, tmp_path, monkeypatch):
    said = []
    session = Session(
        small.Small(),
        options=TrainOptions(batch=16, checkpoints=Checkpoints(tmp_path, every=1)),
        notify=said.append,
    )
    session.run(2)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("berth.train.checkpoint.writer.sync_folder", full)
    session.save()
    session._writer.wait()
    monkeypatch.undo()
    session.close()
    assert "could not be written" in said[-1]
    assert CheckpointStore(tmp_path).newest()[-1].step == 2


def test_a_killed_second_save_of_a_step_leaves_the_first(small, tmp_path, killed):
    def twice():
        session = Session(
            small.Small(), options=TrainOptions(batch=16, checkpoints=Checkpoints(tmp_path, every=1))
        )
        session.run(2)
        session.save()
        session.close()

    assert small.in_child(twice, "checkpoint: parts written@3") == killed
    assert CheckpointStore(tmp_path).newest()[-1].step == 2


SCHEDULES = {
    "step": lambda optimiser: torch.optim.lr_scheduler.StepLR(optimiser, 2, 0.5),
    "milestones": lambda optimiser: torch.optim.lr_scheduler.MultiStepLR(optimiser, [2, 5], 0.1),
    "cycle": lambda optimiser: torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=20),
    "plateau": lambda optimiser: torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, patience=0),
    "sequence": lambda optimiser: torch.optim.lr_scheduler.SequentialLR(
        optimiser,
        [
            torch.optim.lr_scheduler.LinearLR(optimiser, 0.1, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 8),
        ],
        [3],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SCHEDULES))
def test_a_schedule_of_the_learning_rate_goes_on_where_it_was(small, tmp_path, kind):
    def rates(folder, *ends):
        seen = []
        for end in ends:
            model = small.Small()
            optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            options = TrainOptions(batch=16, checkpoints=Checkpoints(folder, every=100))
            session = Session(
                model, options=options, optimiser=optimiser, scheduler=SCHEDULES[kind](optimiser)
            )
            seen += [(loss, optimiser.param_groups[0]["lr"]) for loss in session.steps(end)]
            session.save()
            session.close()
        return seen

    whole = rates(tmp_path / "whole", 8)
    assert len({rate for _, rate in whole}) > 1
    assert rates(tmp_path / "parts", 3, 4, 8) == whole


def test_a_run_with_another_schedule_is_another_training(small, tmp_path):
    def begun(make):
        model = small.Small()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        return Session(
            model,
            options=TrainOptions(batch=16, checkpoints=str(tmp_path)),
            optimiser=optimiser,
            scheduler=make(optimiser),
        )

    session = begun(SCHEDULES["step"])
    session.run(1)
    session.close()
    with pytest.raises(InputError, match="scheduler: StepLR there, OneCycleLR here"):
        begun(SCHEDULES["cycle"])


def test_a_folder_of_damaged_checkpoints_gives_one_line_for_each_cause(small, tmp_path):
    trained(small, tmp_path, 12)
    flip(tmp_path / "step-000000000002" / "table-0.bin")
    flip(tmp_path / "step-000000000010" / "manifest.json")
    with pytest.raises(InputError) as error:
        open_checkpoint(tmp_path)
    lines = str(error.value).splitlines()
    assert "none of the checkpoints here can be used" in lines[0]
    assert any("steps 2 to 9" in line and "table-0.bin of step 2" in line for line in lines)
    assert any("steps 10 to 12" in line and "manifest.json of step 10" in line for line in lines)
    assert len(lines) <= 4
