"""Controllers and nodes are killed while jobs run; every job finishes once, by its own record."""

from __future__ import annotations

import json
import re
from random import Random

import pytest

pytestmark = pytest.mark.slow

JOBS, LOSSES = 16, 3
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_job_finishes_once_whatever_is_killed(seed, desk, apart, slurm, small, tmp_path):
    random = Random(seed)
    folders = [tmp_path / f"job{number}" for number in range(JOBS)]
    store = tmp_path / "store0"
    controller = apart(store, *(spec_from_dict(folder, small, random) for folder in folders))
    for _ in range(LOSSES):
        until_further(small, folders)
        node = random.choice(nodes_at_work(slurm, folders))
        slurm.lose(node)
        controller.kill()
        controller.wait()
        controller = apart(store)
        until_further(small, folders)
        slurm.start_node(node)
    for folder in folders:
        (folder / "go").touch()
    small.until(lambda: all(small.record(folder, "finish") for folder in folders), "all have finished")
    controller.kill()
    controller.wait()
    one = desk()
    one.until(lambda: not one.controller.state.jobs, "all are over")
    over = [one.over(f"j{number + 1}") for number in range(JOBS)]
    assert {job["state"] for job in over} == {"finished"}
    assert sum(job["attempts"] for job in over) > JOBS
    for folder in folders:
        assert len(small.record(folder, "finish")) == 1
        assert small.record(folder, "overlap") == []
        counts = [int(count) for attempt, machine, count in small.record(folder, "start")]
        assert counts == sorted(counts)


def spec_from_dict(folder, small, random) -> str:
    """Some finish by themselves, some only when they are let go."""
    size, steps, go = random.choice((4, 8, 16)), random.randint(5, 30), random.random() < 0.5
    return json.dumps(small.counting(folder, steps, go=go, gpus=size, per="machine", grace="1s"))


def nodes_at_work(slurm, folders) -> list[str]:
    """Nodes with a job that can't have finished: it is not let go yet."""
    running = [job for job in slurm.jobs() if job["job_state"] == "RUNNING"]
    numbers = [int(re.search(r"-j(\d+)\.", job["name"])[1]) for job in running]
    return [
        job["nodes"]
        for job, number in zip(running, numbers, strict=True)
        if not (folders[number - 1] / "go").exists()
    ]


def until_further(small, folders) -> None:
    """Until a job that is not let go yet has counted further."""
    held = [folder for folder in folders if not (folder / "go").exists()]
    before = [count_in(folder) for folder in held]
    small.until(
        lambda: any(count_in(folder) > was + 5 for folder, was in zip(held, before, strict=True)), "it counts"
    )


def count_in(folder) -> int:
    return int((folder / "count").read_text()) if (folder / "count").exists() else 0
