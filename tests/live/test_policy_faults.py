"""A real controller whose policy fails: it is killed, started again, and goes on with another policy."""

from __future__ import annotations

import pytest

from berth.testing.up import until

pytestmark = pytest.mark.slow
RAISES = """from __future__ import annotations
from dataclasses import dataclass
from berth.schedule import JobView, Policy

@dataclass(frozen=True)
class Mine(Policy):
    @staticmethod
    def order(job: JobView, now: float, params: Mine) -> float:
        return 1 / (int(job.gpus) - 3)
"""


def test_a_policy_that_fails_outlives_kill_9_and_gives_way_to_another(up, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(RAISES)
    live = up("--cluster", "2x2x4", "--policy", str(mine))
    live.submit("sleep 600", job="one", gpus=8)
    until(lambda: live.state_of("one") == "running")
    assert live.berth("submit", "--id", "three", "--gpus", "3", "--", "sleep", "600").returncode == 0
    said = f"the policy failed: {mine}:9: division by zero for job three"
    assert said in " ".join(live.client.get("jobs", "three", "why")["reason"]["sentence"].split())
    live.kill()
    live.options = ()
    live.start()
    until(lambda: live.client.get("status")["warnings"])
    assert [one["cause"] for one in live.client.get("status")["warnings"]] == ["policy-failed"]
    assert live.state_of("one") == "running"
    log = (live.state / "up.log").read_text()
    assert log.count(said) == 2  # once for each start
    assert "Traceback" not in log
    live.kill()
    mine.unlink()
    live.options = ("--policy", "fifo")
    live.start()
    until(lambda: live.state_of("three") == "running")
    assert live.state_of("one") == "running"
    refused = live.berth("replay", check=False)
    assert refused.returncode == 2
    assert "can't be loaded: there is no file" in refused.stderr
