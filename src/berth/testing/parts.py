"""A job of unlike parts for tests on real engines: every process writes down what it was started as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from berth.live.offer import digest_of
from berth.live.spec import SentJob

PLAN = "model: of a test\n"
_SHOWN = ("RANK", "WORLD_SIZE", "BERTH_PART", "BERTH_MACHINE", "BERTH_DEVICES")


def job_of_parts(folder: Path, device_type: str, stages: tuple[int, int], servers: int) -> SentJob:
    """Return a job with the parts of a plan of two stages; its servers and a reader come with the machines."""
    lines = "".join(f"{name}=${name};" for name in _SHOWN)
    run = f'grep -q "of a test" "$BERTH_PLAN" && echo "{lines}" > {folder}/rank-$RANK'
    digest = digest_of(PLAN)
    first, second = stages
    shape = {
        "name": "planned",
        "parts": [
            {"name": "stage-1", "devices": {device_type: first}},
            {"name": "servers-1", "devices": {"cpu-core": servers}},
            {"name": "stage-2", "devices": {device_type: second}},
            {"name": "readers", "devices": {"cpu-core": 1}},
        ],
        "step": {"every": "10ms"},
        "plan": "plan.yaml",
        "plan_digest": digest,
    }
    facts = {"run": run, "work": "100 steps", "grace": "1s", "alternatives": [shape], "plans": {digest: PLAN}}
    spec = SentJob.model_validate(facts)
    spec.check_together()
    return spec


def written(folder: Path) -> list[dict[str, Any]]:
    """Return what each process wrote, in rank order."""
    files = sorted(folder.glob("rank-*"), key=lambda file: int(file.name.partition("-")[2]))
    return [
        dict(one.partition("=")[::2] for one in file.read_text().strip().strip(";").split(";"))
        for file in files
    ]
