"""Work lost with a machine: what was really done since the last checkpoint, whatever the speeds were."""

from __future__ import annotations

import numpy as np
import pytest

from berth.native.kernels import entry
from berth.schedule.progress import advance_progress
from berth.schedule.world import new_jobs
from berth.simulate.audit import audit
from berth.simulate.engine import roll_back
from berth.simulate.engine_state import new_accounts
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES

CHECKPOINT_S = 1800.0


@entry
def fail_after(jobs, accounts, seconds, speeds):
    """Runs the first job for these seconds at these speeds in turn; then a machine of it fails."""
    now = 0.0
    for i in range(len(seconds)):
        jobs[0].speed = speeds[i]
        now += seconds[i]
        advance_progress(jobs[0], now)
    roll_back(jobs[0], accounts[0], now)


@pytest.mark.parametrize(
    ("phases", "redone", "lost_s"),
    [
        ([(1740, 1.0), (1, 0.1)], 1740.1, 1741.0),  # no checkpoint yet: all of it
        ([(1740, 0.1), (1, 1.0)], 175.0, 1741.0),
        ([(1799, 0.1), (2, 1.0)], 1.0, 1.0),  # a checkpoint at 1800 s, at the new speed
        ([(1799, 1.0), (2, 0.1)], 0.1, 1.0),
        ([(900, 1.0), (900, 0.5), (900, 1.0)], 900.0, 900.0),  # a checkpoint just when the speed changes
        ([(1000, 1.0), (1000, 0.5), (1000, 0.25)], 200 * 0.5 + 1000 * 0.25, 1200.0),
        ([(100_000, 0.3), (10, 0.9)], 1000 * 0.3 + 10 * 0.9, 1010.0),  # many checkpoints passed at once
        ([(3600, 1.0)], 0.0, 0.0),
    ],
)
def test_work_since_the_last_checkpoint_is_lost_at_the_speeds_it_was_done(phases, redone, lost_s):
    records = new_jobs(1).view(np.recarray)
    records.work_s = records.true_remaining_s = records.checkpointed_remaining_s = 1e6
    records.gpus, records.checkpoint_interval_s, records.next_checkpoint_s = 2, CHECKPOINT_S, CHECKPOINT_S
    accounts = new_accounts(records).view(np.recarray)
    seconds, speeds = (np.asarray(values, float) for values in zip(*phases, strict=True))
    fail_after(records, accounts, seconds, speeds)
    done = float((seconds * speeds).sum())
    assert accounts["redone_s"][0] == pytest.approx(redone, abs=1e-6)
    assert records.true_remaining_s[0] == pytest.approx(1e6 - done + redone, abs=1e-6)
    assert accounts["lost_gpu_s"][0] == pytest.approx(2 * lost_s, abs=1e-6)
    assert lost_s <= CHECKPOINT_S
    assert accounts["accounted_remaining_s"][0] == records.true_remaining_s[0]


def integrate(history, since_s: float, until_s: float) -> float:
    """Work between two moments, from (moment, speed from then on)."""
    total = 0.0
    for (start, speed), (stop, _) in zip(history, [*history[1:], (until_s, 0.0)], strict=True):
        total += max(0.0, min(stop, until_s) - max(start, since_s)) * speed
    return total


@pytest.mark.parametrize("failure_s", [1000, 1850, 2500, 4000])
def test_on_shared_links_the_loss_follows_the_speeds_that_the_job_had(failure_s):
    # Gangs of 12 span racks of 8: the second comes onto the up-link of the middle rack, leaves it, and so on.
    rows = [
        (0, 12, 9000, "vgg16"),
        (300, 12, 900, "vgg16"),
        (1700, 12, 100, "vgg16"),
        (2400, 12, 50, "vgg16"),
    ]
    history: list[tuple[float, float]] = []

    def watch(world, clock):
        if not world.jobs[0]["evictions"] and world.jobs[0]["tier"] >= 0:
            history.append((float(clock[0]["now"]), float(world.jobs[0]["speed"])))
        return 1

    down = faults([(failure_s, 0, "fail"), (failure_s + 10, 0, "repair")])
    setting = Setting(network="on", congestion=8.0, log=True, faults=down, checkpoint_s=CHECKPOINT_S)
    run = simulate(jobs(rows), cluster([[4, 4]] * 3), EXERCISES["fit-first"], setting, watch=watch)
    account = run.accounts[0]
    last = failure_s // CHECKPOINT_S * CHECKPOINT_S
    assert len({speed for _, speed in history}) > 1, "no speed changed: this would show nothing"
    assert account["redone_s"] == pytest.approx(integrate(history, last, failure_s), rel=1e-9)
    restored_s = 60.0
    assert account["lost_gpu_s"] == pytest.approx((failure_s - last + restored_s) * 12, rel=1e-9)
    assert audit(run).violations == ()
