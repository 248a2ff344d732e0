"""`srun berth train`: Slurm starts the ranks, berth finds the others."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path

import pytest

import berth
from preloaded import programs

pytestmark = pytest.mark.slow

TRAIN = [
    "train",
    "ctrdnn-8",
    "--batch",
    "64",
    "--steps",
    "12",
    "--servers",
    "2",
    "--checkpoint",
    "saved",
    "--json",
]
# The nodes of this Slurm are one machine, and their names do not resolve.
ON_TWO_NODES = {"MASTER_ADDR": "127.0.0.1", "BERTH_TRAIN_SECRET": secrets.token_hex(32)}


def trained(folder: Path, command: list[str], **more: str) -> dict:
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(berth.__file__).parents[1])} | more
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


@pytest.mark.parametrize(
    ("nodes", "environment"), [(1, {}), (2, ON_TWO_NODES)], ids=["one node", "two nodes"]
)
def test_ranks_that_srun_starts_learn_what_those_of_the_launcher_do(slurm, tmp_path, nodes, environment):
    program = str(programs() / "berth")
    expected = trained(tmp_path / "launcher", [program, *TRAIN, "--workers", "2"])
    srun = ["srun", "--nodes", str(nodes), "--ntasks", "2", "--kill-on-bad-exit=1", program]
    found = trained(tmp_path / "srun", [*srun, *TRAIN], **environment)
    assert (found["step"], found["loss"], found["auc"]) == (12, expected["loss"], expected["auc"])
    assert len(found["servers"]) == 2
    difference = [program, "table", "diff", "launcher/saved", "srun/saved", "--json"]
    diff = json.loads(subprocess.run(difference, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert (diff["only_first"], diff["only_second"], diff["changed"]) == (0, 0, 0)
    assert diff["same"] > 0


def test_a_step_on_the_second_node_of_a_job_does_not_meet_on_the_first(slurm, tmp_path):
    """As in batch scripts: they export the first node of the job as `MASTER_ADDR`."""
    script = """
    nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
    export MASTER_ADDR=$(echo "$nodes" | head -n 1)
    exec srun --nodes 1 --nodelist "$(echo "$nodes" | tail -n 1)" --ntasks 2 --overlap --kill-on-bad-exit=1 "$@"
    """
    program = str(programs() / "berth")
    allocated = [
        "salloc",
        "--quiet",
        "--nodes",
        "2",
        "--ntasks-per-node",
        "2",
        "sh",
        "-c",
        script,
        "sh",
        program,
    ]
    found = trained(tmp_path / "salloc", [*allocated, *TRAIN])
    assert (found["step"], len(found["servers"])) == (12, 2)
