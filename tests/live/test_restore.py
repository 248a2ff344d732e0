"""A real controller whose state folder is set back to a backup."""

import shutil

import pytest

from berth.testing.up import until

pytestmark = pytest.mark.slow


def test_after_a_restore_new_jobs_have_new_ids_run_and_have_logs_of_their_own(up, tmp_path):
    live = up("--cluster", "1x1x4", "--policy", "fifo")
    first = live.submit("echo first")
    until(lambda: live.state_of(first) == "finished")
    live.stop()
    shutil.copytree(live.state, tmp_path / "backup")
    live.start()
    lost = [live.submit(f"echo lost {number}") for number in range(2)]
    until(lambda: all(live.state_of(job) == "finished" for job in lost))
    stray = live.submit("sleep 1000", gpus=4)
    until(lambda: live.state_of(stray) == "running")
    live.stop()
    shutil.rmtree(live.state)
    (tmp_path / "backup").rename(live.state)
    live.start()
    new = [live.submit(f"echo new {number}", gpus=4) for number in range(3)]
    assert not {first, stray, *lost} & set(new)
    until(lambda: all(live.state_of(job) == "finished" for job in new), 60)
    assert [live.client.text("jobs", job, "logs")[0] for job in new] == [f"new {n}\n" for n in range(3)]
    assert live.client.text("jobs", first, "logs")[0] == "first\n"
    assert live.berth("why", stray, check=False).returncode == 2  # the journal does not know it
    work = live.state.with_name(f"{live.state.name}-work")
    assert not list(work.glob("*/live/*"))  # its process is gone, and so are all others
