"""Totals by user in a live cluster: there is one for every user, and another cluster or policy does not reset them."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.live import commands
from berth.live.spec import JobSpec

FAIR = Path(__file__).parents[3] / "examples" / "fair_share.py"


def submit(live, user, gpus, seconds):
    spec = JobSpec(run="work", gpus=gpus, duration=f"{seconds}s", env={"SECONDS": str(seconds)})
    answer = live.controller.ask(commands.submit(spec, user, None))
    live.step()
    return answer.result(0)["job"]


def used_gpu_s(live):
    users = live.state.world.users
    return (users["gpu_s"] + users["gpus"] * (live.state.now - users["updated_s"])).tolist()


@pytest.mark.slow
def test_devices_that_come_free_go_to_the_users_in_turn(crank):
    live = crank(cluster="1x1x4:V100-16", policy=f"{FAIR}:weight=1")
    first = submit(live, "me", 4, 100)
    waiting = {user: [submit(live, user, 1, 1000) for _ in range(4)] for user in ("ann", "bob")}
    live.step(50, times=5)
    assert live.state_of(first) == "finished"
    assert {user: [live.state_of(job) for job in own].count("placed") for user, own in waiting.items()} == {
        "ann": 2,
        "bob": 2,
    }
    assert live.state.world.users["gpus"][:3].tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    "change", [{"cluster": "2x4:V100-16"}, {"policy": f"{FAIR}"}], ids=["cluster", "policy"]
)
def test_what_a_user_has_used_is_kept(crank, change):
    live = crank(cluster="1x1x4:V100-16")
    submit(live, "me", 2, 1000)
    submit(live, "ann", 1, 1000)
    live.step(10, times=5)
    submit(live, "bob", 4, 10)  # which waits
    before = used_gpu_s(live)
    assert before[0] == pytest.approx(2 * before[1])
    assert before[1] > 30.0
    live.restart(**change)
    assert used_gpu_s(live)[:2] == pytest.approx(before[:2])
