"""Jobs with parts and alternatives under the controller: placed whole, launched by part, restarted in another shape."""

from __future__ import annotations

import re

import pytest

from berth.live import commands, forecast, scheduled_jobs, snapshot, views
from berth.live.api.service import Service
from berth.live.api.tokens import Caller, Tokens
from berth.live.decisions import replay_pass
from berth.live.history import Setups, history
from berth.live.outlook import Outlook
from berth.live.reconcile import launch_of
from berth.live.recover import apply_all, group_passes, replay_journal
from berth.live.setup import setup_from_dict
from berth.live.snapshot import same
from berth.live.spec import SentJob
from berth.live.state import ControllerState

CLUSTER = """\
racks:
  - machines: [{count: 2, devices: {T4: 4}}, {count: 2, devices: {cpu-core: 8}}]
"""
FAST = {
    "name": "fast",
    "parts": [
        {"name": "dense", "devices": {"T4": 4}, "tier": "machine"},
        {"name": "rows", "devices": {"cpu-core": 3}},
        {"name": "read", "devices": {"cpu-core": 6}},
    ],
    "step": {"near": "40ms", "rack": "50ms", "network": "90ms"},
}
SLOW = {
    "name": "slow",
    "parts": [{"name": "all", "devices": {"cpu-core": 10}}],
    "step": {"near": "160ms", "network": "200ms"},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    file = tmp_path_factory.mktemp("cluster") / "lab.yaml"
    file.write_text(CLUSTER)
    return str(file)


@pytest.fixture
def live(crank, lab):
    return crank(cluster=lab, policy="berth")


def offer(live, *alternatives, steps: int = 10_000, seconds: float = 400, **more) -> str:
    facts = {"run": "work", "env": {"SECONDS": str(seconds)}, "work": f"{steps} steps", "grace": "0s"}
    spec = SentJob(**facts | {"alternatives": list(alternatives)} | more)
    spec.check_together()
    return live.ask(commands.submit(spec, "me"))["job"]


def test_rows_of_waiting_jobs_keep_the_shape_they_count_for(crank, lab, monkeypatch):
    """Rows and shapes of jobs that have ended are used again while others wait."""
    monkeypatch.setattr(scheduled_jobs, "_FIRST", 14)
    live = crank(cluster=lab, policy="berth")
    fast, slow = (
        {
            **one,
            "parts": [{"name": "all", "devices": devices}],
            "step": {
                "near": one["step"]["near"],
                "rack": one["step"]["near"],
                "network": one["step"]["network"],
            },
        }
        for one, devices in ((FAST, {"T4": 4}), (SLOW, {"cpu-core": 8}))
    )
    ended = [offer(live, fast, slow, steps=500, seconds=20) for _ in range(5)]
    ended += [offer(live, fast, steps=500, seconds=20) for _ in range(3)]
    for _ in range(40):
        live.step(5)
    assert not any(job in live.state.jobs for job in ended)
    running = [offer(live, fast, slow, steps=70_000, seconds=3000) for _ in range(4)]
    live.step(1)
    waiting = [offer(live, fast, slow, steps=2500, seconds=100) for _ in range(3)]
    live.step(1)
    waiting += [offer(live, fast, steps=2500, seconds=100) for _ in range(6)]
    live.step(1)
    world = live.state.world
    for job in waiting:
        record = world.jobs[live.state.jobs[job].row]
        assert 0 <= record["counted_shape"] - record["first_shape"] < record["shape_count"]
    for job in [*waiting, *running]:
        live.ask(commands.cancel(job))
    live.step(1)
    assert not live.state.world.scarcity["waiting_for"].any()
    assert not live.state.world.scarcity["wanted"].any()


def attempt_of(live, job: str):
    return live.state.attempts[live.state.jobs[job].token]


def devices_by_part(live, job: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for seat in attempt_of(live, job).seats:
        found[seat.part] = found.get(seat.part, 0) + len(seat.devices)
    return found


def test_a_job_of_unlike_parts_starts_as_a_whole(live):
    job = offer(live, FAST)
    live.step(1)
    attempt = attempt_of(live, job)
    assert attempt.shape == "fast"
    assert devices_by_part(live, job) == {0: 4, 1: 3, 2: 6}
    dense = [seat for seat in attempt.seats if seat.part == 0]
    assert len(dense) == 1  # tied to one machine
    members = launch_of(live.state, attempt).members
    assert [member.part for member in members] == ["dense"] * 4 + ["rows"] * 3 + ["read"] * 6
    assert [member.rank for member in members] == list(range(13))
    live.step(500)
    assert live.state_of(job) == "finished"


def test_no_part_starts_without_the_others(live):
    cores = live.submit(gpus=8, seconds=1000, kind="cpu-core")
    live.step(1)
    job = offer(live, FAST)
    live.step(1)
    assert live.state_of(job) == "queued"  # 8 of 9 cores are free, and all T4
    live.ask(commands.cancel(cores))
    live.step(31, times=2)
    assert live.state_of(job) == "placed"


def test_a_lost_machine_changes_the_shape_and_what_is_left_carries_over(live):
    live.submit(gpus=4, kind="T4", seconds=100_000)
    job = offer(live, FAST, SLOW)
    live.step(1)
    attempt = attempt_of(live, job)
    assert attempt.shape == "fast"
    live.step(200)
    live.backend.lose(live.cluster.machines[attempt.seats[0].machine].name)
    live.step(1, times=5)
    assert attempt_of(live, job).shape == "slow"
    left = float(live.state.world.jobs[live.state.jobs[job].row]["estimated_remaining_s"])
    assert left == pytest.approx((10_000 - 200 / 0.05) * 0.16, rel=0.02)
    past = history(job, live.controller.store, Setups(live.controller.store))
    assert [one["shape"] for one in past["attempts"]] == ["fast", "slow"]


def records_of(live):
    return list(live.controller.store.records())


@pytest.mark.slow
def test_the_journal_replays_to_the_same_state_from_any_snapshot(live):
    jobs = [offer(live, FAST, SLOW), offer(live, SLOW, seconds=50), offer(live, FAST, seconds=20)]
    live.submit(gpus=2, kind="T4", seconds=30)
    live.step(1, times=3)
    live.controller.keep_snapshot()
    live.step(60, times=3)
    jobs.append(offer(live, SLOW, FAST))
    live.step(60, times=3)
    assert {attempt.shape for attempt in live.state.attempts.values()} <= {"fast", "slow"}
    state = apply_all(None, records_of(live), trust=True)
    assert same(state, live.state)
    assert same(snapshot.load(snapshot.save(live.state)), live.state)
    assert same(snapshot.copy_of(live.state), live.state)
    live.restart()  # from the snapshot and the records after it
    again = apply_all(None, records_of(live), trust=True)
    assert same(again, live.state)
    assert replay_journal(live.folder / "journal.sqlite")["differences"] == 0


@pytest.mark.slow
def test_recorded_decisions_are_applied_without_the_policy(live):
    """As after a change of the code: shapes and places are those of the journal."""
    job = offer(live, FAST, SLOW)
    offer(live, SLOW)
    live.step(1, times=2)
    records = records_of(live)
    state = ControllerState(setup_from_dict(records[0].body))
    for group in group_passes(records):
        if group[0].kind == "pass":
            replay_pass(state, group, trust=False)
        else:
            state.apply(group[0])
    assert state.attempts == live.state.attempts
    for name in ("shape", "tier", "gpus", "slowdown", "estimated_remaining_s"):
        row = state.jobs[job].row
        assert state.world.jobs[row][name].tolist() == live.state.world.jobs[row][name].tolist(), name
    assert (state.world.hosts["free"] == live.state.world.hosts["free"]).all()


def test_another_cluster_keeps_the_shape_and_the_remaining_work(live, lab, tmp_path):
    job = offer(live, FAST, SLOW)
    live.step(100, times=2)
    before = attempt_of(live, job)
    left = float(live.state.world.jobs[live.state.jobs[job].row]["true_remaining_s"])
    larger = tmp_path / "lab.yaml"
    larger.write_text(CLUSTER + "  - machines: [{count: 1, devices: {T4: 4}}]\n")
    live.restart(cluster=str(larger))
    after = attempt_of(live, job)
    assert (after.shape, after.token) == (before.shape, before.token)
    assert float(live.state.world.jobs[live.state.jobs[job].row]["true_remaining_s"]) <= left
    live.step(1)


def test_the_queue_says_what_the_alternatives_would_give(live):
    blocker = offer(live, {**FAST, "parts": FAST["parts"][:1], "name": "gpus"}, steps=5000)
    other = offer(live, {**FAST, "parts": FAST["parts"][:1], "name": "gpus"}, steps=5000)
    live.step(1)
    assert {live.state_of(blocker), live.state_of(other)} == {"placed"}
    slower = {**SLOW, "step": {"near": "5s", "network": "5s"}}
    job = offer(live, FAST, slower)
    live.step(1)
    assert live.state_of(job) == "queued"
    now = live.controller.now()
    outlook = Outlook(snapshot.copy_of(live.state), now, pending=False, events=100)
    text = outlook.sentence(job, now)
    assert re.search(
        r"needs 4 T4 \+ 9 cpu-core; starts in .*; could start now on 10 cpu-core, would end \d+h.* later than waiting",
        text,
    ), text
    page = Service(live.controller, Tokens(live.folder), live.folder).why(job, Caller("me", "admin"))
    assert page["reason"]["sentence"].count("could start now on 10 cpu-core") == 1
    assert page["blocker"].startswith("needs 4 T4 + 9 cpu-core; starts in ")
    assert "could start now" not in page["blocker"]  # one fact, one figure
    why = views.why(live.state, live.state.jobs[job], now)
    assert [one["name"] for one in why["alternatives"]] == ["slow", "fast"]
    assert [one["fits_now"] for one in why["alternatives"]] == ["rack", None]
    row = views.job_facts(live.state, live.state.jobs[job], live.controller.now())
    assert (row["shape"], row["gpus"], row["cores"]) == ("fast", 4, 9)
    assert (why["gpus"], why["cores"]) == (4, 9)
    assert [(free["name"], free["type"], free["devices"], free["free"]) for free in why["free"]] == [
        ("r0", "T4", 8, 0),
        ("r0", "cpu-core", 16, 16),
    ]


def test_an_ended_job_counts_gpus_and_cores_apart(live):
    job = offer(live, FAST, seconds=1)
    live.step(6)
    page = Service(live.controller, Tokens(live.folder), live.folder).job(job, Caller("me", "admin"))
    assert (page["state"], page["shape"], page["gpus"], page["cores"]) == ("finished", "fast", 4, 9)


def test_the_alternatives_say_what_the_rest_of_the_work_costs(live):
    job = offer(live, {**FAST, "price": "$9/h"}, {**SLOW, "price": "$0.9/h"}, steps=900_000)
    live.step(1)
    why = views.why(live.state, live.state.jobs[job], live.controller.now())
    usd = {one["name"]: one["usd"] for one in why["alternatives"]}
    assert usd == pytest.approx(
        {"fast": 900_000 * 0.05 / 3600 * 9, "slow": 900_000 * 0.16 / 3600 * 0.9}, rel=0.01
    )


def test_a_wait_for_a_job_that_is_overdue_is_not_promised_again_and_again(live):
    """Both GPU machines should be free after 200 s and are not; the job could start on cores."""
    gpus = {**FAST, "parts": FAST["parts"][:1], "name": "gpus"}
    for _ in range(2):
        offer(live, gpus, steps=5000, seconds=9000)
    live.step(1)
    job = offer(live, FAST, {**SLOW, "step": {"near": "300ms", "network": "300ms"}})
    live.step(101)
    service = Service(live.controller, Tokens(live.folder), live.folder)
    assert (
        "and would finish 38m20s later than by waiting"
        in service.why(job, Caller("me", "admin"))["reason"]["sentence"]
    )
    live.step(200)
    service = Service(live.controller, Tokens(live.folder), live.folder)  # with a forecast of now
    page = service.why(job, Caller("me", "admin"))
    assert re.fullmatch(
        r"it could start now on 10 cpu-core; it waits for 4 T4 \+ 9 cpu-core within one rack, expected 1m\d+s ago",
        page["reason"]["sentence"],
    )
    assert page["reason"]["saves_s"] is None
    assert page["start_overdue_s"] == pytest.approx(100, abs=10)
    assert re.search(r"; starts when j\d ends \(1m\d+s overdue, 50s more assumed\)", page["blocker"])


def test_a_job_with_parts_names_which_machines_are_out_of_service(live):
    gpus = [machine.name for machine in live.cluster.machines[:2]]
    for name in gpus:
        live.ask(commands.drain(name))
    job = offer(live, FAST)
    live.step(1)
    now = live.controller.now()
    text = Outlook(snapshot.copy_of(live.state), now, pending=False, events=100).sentence(job, now)
    never = "needs 4 T4 + 9 cpu-core, and the machines in service never have that within one network"
    assert text == f"{never}; out of service: {', '.join(gpus)}"


def test_a_dry_run_names_the_shape(live):
    spec = SentJob(run="work", work="1000 steps", alternatives=[SLOW, FAST])
    name, found = forecast.dry_run(snapshot.copy_of(live.state), spec, "me", live.controller.now())
    assert found.shapes[name] == "fast"
    assert sum(found.places[name].values()) == 13


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"alternatives": [{**SLOW, "parts": [{"name": "all", "devices": {"cpu-core": 17}}]}]},
            "asks for 17 cpu-core",
        ),
        ({"alternatives": [{**SLOW, "parts": [{"name": "all", "devices": {"H100": 1}}]}]}, "has none"),
        ({"alternatives": [SLOW], "deadline": "1s"}, "no alternative meets the deadline"),
        ({"alternatives": [{**SLOW, "step": {"near": "1s"}}]}, "step times have none for network"),
    ],
)
def test_what_can_never_run_is_refused(live, more, said):
    with pytest.raises(commands.ConflictError, match=said):
        offer(live, **more)


def test_gangs_that_queued_before_the_first_offer_are_counted_once(live):
    gangs = [live.submit(gpus=8, kind="T4", seconds=100) for _ in range(3)]
    live.step(1)
    offer(live, FAST, SLOW)
    live.step(1)
    for gang in gangs:
        live.ask(commands.cancel(gang))
    live.step(200, times=6)
    assert not live.state.world.scarcity["waiting_for"].any()


@pytest.mark.parametrize("running", [True, False])
def test_a_cluster_with_other_tiers_starts_and_takes_the_shapes_that_it_knows(live, tmp_path, running):
    if not running:
        live.submit(gpus=8, kind="T4", seconds=100_000)
        live.step(1)
    job = offer(live, FAST, *([] if not running else [SLOW]))
    live.step(1)
    assert live.state_of(job) == ("placed" if running else "queued")
    renamed = tmp_path / "lab.yaml"
    names = ("node", "rack", "network")
    tiers = ", ".join(f"{{name: {name}, bandwidth: 10GB/s}}" for name in names)
    renamed.write_text(f"tiers: [{tiers}]\n{CLUSTER}")
    live.restart(cluster=str(renamed))
    live.step(1, times=40)
    if running:  # FAST ties a part to `machine`, which is gone; SLOW names no tier that is
        assert attempt_of(live, job).shape == "slow"
    else:
        assert live.state.jobs[job].state == "delayed"


def test_the_work_that_is_left_survives_a_cluster_that_can_hold_no_alternative(live, lab, tmp_path):
    job = offer(live, FAST, SLOW)
    live.step(100, times=2)

    def units_left() -> float:
        record = live.state.world.jobs[live.state.jobs[job].row]
        unit_s = live.state.world.shapes[record["shape"]]["unit_s"] if record["shape_count"] else 1.0
        return float(record["true_remaining_s"] / unit_s)

    before = units_left()
    small = tmp_path / "lab.yaml"
    small.write_text("racks:\n  - machines: [{count: 1, devices: {V100-16: 1}}]\n")
    live.restart(cluster=str(small))
    live.step(1, times=40)
    assert live.state.jobs[job].state == "delayed"
    live.restart(cluster=lab)
    assert units_left() == pytest.approx(before, rel=0.05)


def test_a_job_that_outlives_its_duration_gives_way(live):
    """Its order falls behind when a quarter is added to what was stated: what was known of it is out of date."""
    gang = {"gpus": 8, "kind": "T4", "preemptible": True, "grace": "0s"}
    long = live.submit(seconds=5000, duration="1000s", **gang)
    live.step(10, times=90)
    waiting = live.submit(seconds=120, duration="120s", **gang)
    live.step(10, times=9)
    assert live.state_of(long) in ("placed", "running")
    live.step(10, times=3)
    live.submit(seconds=9000, **gang)
    live.step(1, times=3)
    assert live.state_of(long) == "queued"
    assert live.state_of(waiting) in ("placed", "running")
