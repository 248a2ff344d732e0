"""A disk that really is full: a small tmpfs, mounted in a namespace of a child process."""

from __future__ import annotations

import ctypes
import os

import pytest

from berth.errors import InputError
from berth.train.checkpoint import CheckpointStore
from berth.train.options import Checkpoints, TrainOptions

_NEW_MOUNTS, _PRIVATE, _REMOUNT = 0x20000, 0x44000, 32
_NOT_PERMITTED = 77
STEPS = 30


def mount(folder, size: str, flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, f"size={size}".encode()):
        os._exit(_NOT_PERMITTED)


def own_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, _PRIVATE, None):
        os._exit(_NOT_PERMITTED)


@pytest.mark.slow
def test_the_last_good_checkpoint_is_named_and_resumed_once_there_is_space(small, tmp_path):
    said = []

    def session():
        options = TrainOptions(batch=64, checkpoints=Checkpoints(tmp_path, every=2))
        return small.Session(small.Small(), options=options, notify=said.append)

    def work() -> None:
        own_mounts()
        mount(tmp_path, "400k")
        first = session()
        with pytest.raises(InputError, match="the last checkpoint could not be written: No space") as error:
            first.run(STEPS)
        first.close()
        last = CheckpointStore(tmp_path).newest(print)[-1].step
        assert 2 <= last < STEPS
        assert f"the last good checkpoint is that of step {last}; free space" in error.value.hint
        assert any(
            f"could not be written: No space left on device; the latest is that of step {last}" in one
            for one in said
        )
        mount(tmp_path, "64m", _REMOUNT)
        again = session()
        assert again.resumed_from == last
        assert again.run(STEPS).step == STEPS
        again.close()

    code = small.in_child(work)
    if code == _NOT_PERMITTED:
        pytest.skip("needs permission to mount")
    assert code == 0
