"""The dashboard applies records as the controller does: after a journal with faults, both have the same state."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsing import Berth, Looker

from berth.cluster.serialize import cluster_to_dict
from berth.live import views
from berth.live.api.events import public
from berth.live.recover import apply_all, group_passes
from berth.live.state import ControllerState
from berth.live.store import Store
from berth.testing.fault_simulation import FaultRun

pytestmark = pytest.mark.slow
CHECKS = 60  # moments of a story at which the pictures are compared
FOLD = """async ({cluster, groups}) => {
  const {ClusterState, STATES} = await import('/web/state.js');
  const state = new ClusterState(cluster), seen = [];
  const look = () => ({
    devices: [...state.owners()].map(at => at < 0 ? null : state.jobs[at].id),
    states: Object.fromEntries(state.jobs.map(job => [job.id, STATES[job.state]])),
    priorities: Object.fromEntries(state.jobs.map(job => [job.id, job.priority])),
    unavailable: [...state.unavailable], external: [...state.external],
  });
  for (const {records, time} of groups) { records.forEach(record => state.applyRecord(record)); seen.push(look()); }
  const back = [...groups].reverse().map(({time}) => { state.seek(time); return look(); }).reverse();
  return {forth: seen, back};
}"""
MASK = {"lost": 1, "drained": 2, "closed": 4}


def picture(state: ControllerState) -> dict[str, Any]:
    """What the page should show."""
    machines = views.machines(state)
    return {
        "devices": [one["jobs"].get(str(number)) for one in machines for number in range(one["size"])],
        "states": {job.id: shown(state, job) for job in state.jobs.values() if job.ends_as is None},
        "priorities": {job.id: job.spec.priority for job in state.jobs.values() if job.ends_as is None},
        "unavailable": [sum(MASK[why] for why in reasons) for reasons in state.unavailable],
        "external": state.external,
    }


def shown(state: ControllerState, job: Any) -> str:
    word = views.state_of(state, job)
    return "queued" if word == "evicting" else word


@pytest.mark.parametrize("seed", [3, 8, 14, 21])
def test_dashboard_and_controller_agree_on_the_state(
    berth: Berth, look: Looker, tmp_path: Path, seed: int
) -> None:
    run = FaultRun(seed, tmp_path / "run")
    run.play()
    store = Store(tmp_path / "run")
    records = list(store.records())
    store.close()
    groups, pictures = cut(records)
    page = look.open(berth.url)
    plain = [{"records": [public(one) for one in group], "time": group[-1].time} for group in groups]
    reported = page.evaluate(FOLD, {"cluster": cluster_to_dict(run.cluster), "groups": plain})
    for at, wanted in enumerate(pictures):
        compare(reported["forth"][at], wanted, f"seed {seed}, forwards, group {at}")
    lasts = [first[-1].time < second[0].time for first, second in pairwise(groups)]
    for at in (at for at, last in enumerate(lasts) if last):  # else more happened at that very moment
        compare(reported["back"][at], pictures[at], f"seed {seed}, backwards, group {at}")
    assert sum(lasts) > CHECKS // 10
    assert any(None not in wanted["devices"] for wanted in pictures) or any(
        any(wanted["unavailable"]) for wanted in pictures
    ), "the story is too tame"


def cut(records: list[Any]) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """The journal in pieces that no pass straddles, with the controller's picture after each."""
    whole = list(group_passes(records))
    size = max(1, len(whole) // CHECKS)
    groups, pictures, state = [], [], None
    for at in range(0, len(whole), size):
        piece = [record for group in whole[at : at + size] for record in group]
        state = apply_all(state, piece, trust=False)
        assert state is not None
        groups.append(piece)
        pictures.append(picture(state))
    return groups, pictures


def compare(reported: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    assert reported["devices"] == wanted["devices"], where
    states = {job: state for job, state in reported["states"].items() if job in wanted["states"]}
    assert states == wanted["states"], where
    assert {job: reported["priorities"][job] for job in wanted["priorities"]} == wanted["priorities"], where
    assert reported["unavailable"] == wanted["unavailable"], where
    assert reported["external"] == wanted["external"], where
    over = set(reported["states"]) - set(wanted["states"])
    assert all(reported["states"][job] in ("finished", "failed", "cancelled", "unknown") for job in over), (
        where
    )
