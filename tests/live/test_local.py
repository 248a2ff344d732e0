"""This machine as a cluster: real jobs, a controller that is killed, and the commands people type."""

import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from berth.testing.up import SOURCE, until
from forked_up import ForkedUp

pytestmark = pytest.mark.slow

# Works in steps, remembers how far it came, and leaves a record of having finished that can be written once only;
# started again with nothing left to do, it says so.
STEPS = """
import os, signal, sys, time
place, total = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.environ["RANK"] == "0":
    mine = open(place + ".lock", "w")
    import fcntl
    fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)   # two of us at once would fail here
    begun = done = int(open(place).read()) if os.path.exists(place) else 0
    while done < total or os.path.exists(place + ".hold"):
        time.sleep(0.02)
        done += 1
        with open(place + ".new", "w") as file:
            file.write(str(done))
        os.replace(place + ".new", place)
    if begun >= total and os.path.exists(place + ".finished"):
        open(place + ".again", "w").close()
    else:
        os.close(os.open(place + ".finished", os.O_CREAT | os.O_EXCL))
    open(os.environ["BERTH_FOLDER"] + "/done", "w").close()
else:
    time.sleep(0.02 * total)
"""


def work(folder: Path, name: str, steps: int) -> list[str]:
    return [sys.executable, "-c", STEPS, str(folder / name), str(steps)]


def test_killed_controllers_and_supervisors_lose_no_job_and_run_none_twice(up, tmp_path):
    live, chance = up("--cluster", "2x2x2", "--policy", "srtf"), random.Random(4)
    names: list[str] = []
    killed: list[str] = []  # jobs whose supervisors may have had no time to say that they have ended
    for number in range(24):
        names.append(
            live.submit(
                work(tmp_path, f"job{number}", chance.choice((10, 30, 60))),
                job=f"job{number}",
                gpus=chance.choice((1, 2, 3, 4)),
                duration=f"{chance.randrange(1, 60)}s",
                grace="5s",
                restarts=20,
            )
        )
        if number in (6, 13, 20):
            live.kill()
            killed += _kill_a_supervisor(live, chance)
            live.start()
    until(
        lambda: all(live.state_of(name) == "finished" for name in names),
        about=lambda: [
            row for name in names if (row := live.client.get("jobs", name))["state"] != "finished"
        ],
    )
    assert sorted(path.stem for path in tmp_path.glob("job*.finished")) == sorted(names)
    assert {path.stem for path in tmp_path.glob("job*.again")} <= set(killed)
    assert live.berth("replay", str(live.state)).stdout.endswith("0 differences\n")


def _kill_a_supervisor(live, chance: random.Random) -> list[str]:
    """Returns the job whose it was."""
    ready = sorted(live.state.with_name(f"{live.state.name}-work").glob("*/live/*/part-0.running"))
    if not ready:
        return []
    attempt = chance.choice(ready).parent
    with suppress(ProcessLookupError):  # it may have ended since
        os.kill(json.loads((attempt / "part-0.ready").read_text())["pid"], signal.SIGKILL)
    return [attempt.name.split("-", 1)[1].split(".")[0]]


def test_a_job_continues_without_a_controller(up, tmp_path):
    live = up("--cluster", "1x1x2", "--policy", "fifo")
    (tmp_path / "long.hold").touch()
    job = live.submit(work(tmp_path, "long", 10), gpus=2)
    until(lambda: live.state_of(job) == "running")
    live.kill()
    (tmp_path / "long.hold").unlink()
    until((tmp_path / "long.finished").exists)
    live.start()
    until(lambda: live.state_of(job) == "finished")
    assert live.client.get("jobs", job)["attempts"] == 1


def test_a_training_is_evicted_and_resumed_without_losing_a_step(up, training):
    """Its result equals that of an undisturbed run, to the bit."""
    live = up("--cluster", "1x1x2", "--policy", "srtf")
    facts = {"run": [*training.command, "--json"], "gpus": 2, "per": "machine", "env": training.ENV}
    calm = live.submit(cwd=str(training.calm), duration="60s", **facts)
    until(lambda: live.state_of(calm) == "finished")
    moved = live.submit(cwd=str(training.moved), duration="1h", grace="300s", **facts)
    until(training.has_begun)
    quick = live.submit("true", gpus=2, duration="1s")
    until(lambda: live.state_of(quick) == "finished")
    training.release()
    until(lambda: live.state_of(moved) == "finished")
    row = live.client.get("jobs", moved)
    assert (row["attempts"], row["evictions"]) == (2, 1)
    stopped, calm_end, moved_end = (
        json.loads(_document(live.client.text("jobs", job, "logs", attempt=attempt)[0]))
        for job, attempt in ((moved, 1), (calm, 1), (moved, 2))
    )
    assert stopped["preempted"]
    assert 0 < stopped["step"] < training.STEPS
    for name in ("step", "loss", "auc"):
        assert calm_end[name] == moved_end[name]
    training.assert_same_tables()


def _document(text: str) -> str:
    """The JSON at the end of a log."""
    return text[text.index("\n{") + 1 :] if not text.startswith("{") else text


def test_a_job_reports_its_step_time(up, tmp_path):
    live = up("--cluster", "1x2x2", "--policy", "fifo")
    script = "import time\nfrom berth.job import steps\n"
    script += "for _ in steps(range(100_000), every_s=0.3): time.sleep(0.02)"  # until the test ends
    job = live.submit([sys.executable, "-c", script], gpus=2, env={"PYTHONPATH": SOURCE}, name="mine")
    logged = "for i in $(seq 100000); do echo step $i took 0.25 s; sleep 0.1; done"
    other = live.submit(logged, gpus=2, name="logged", step_pattern="took (?P<seconds>[0-9.]+) s")
    for name in (job, other):
        until(lambda name=name: live.client.get("jobs", name, "history")["steps"])
    slept, logged = (
        live.client.get("jobs", name, "history")["steps"][-1]["seconds"] for name in (job, other)
    )
    assert slept >= 0.02  # as measured: on a busy machine it may be much longer
    assert logged == pytest.approx(0.25)


def test_every_verb_from_the_command_line(up, tmp_path):
    live = up("--cluster", "2x2x2", "--policy", "berth")
    spec = tmp_path / "job.yaml"
    spec.write_text("run: echo from a file\nname: filed\ngpus: 2\n")
    first = live.berth("submit", str(spec)).stdout.split()[0]
    assert live.berth("wait", first).returncode == 0
    assert live.berth("logs", first).stdout == "from a file\n"
    slow = live.json("submit", "--", "sh", "-c", "echo one; sleep 1; echo two")["job"]
    assert live.berth("logs", "-f", slow).stdout == "one\ntwo\n"
    failing = live.json("submit", "--gpus", "1", "--restarts", "0", "--", "sh", "-c", "exit 5")["job"]
    assert live.berth("wait", failing, check=False).returncode == 5
    blocker = live.json(
        "submit", "--gpus", "8", "--name", "blocker", "--duration", "1h", "--", "sleep", "600"
    )["job"]
    until(lambda: live.state_of(blocker) == "running")
    waiting = live.json("submit", "--gpus", "4", "--id", "mine", "--", "true")["job"]
    until(lambda: live.json("why", waiting).get("blocker"))  # an outlook that knows the job: 5 s at most
    assert "It needs 4 devices in one rack; none is free" in " ".join(
        live.berth("why", waiting).stdout.split()
    )
    reported = live.json("why", waiting)
    assert reported["reason"]["sentence"] == "fewer than 4 devices are free"
    assert (reported["position"], reported["summary"]) == (1, "0 of the 4 devices it needs are free")
    assert "mine" in live.berth("queue").stdout
    assert "(modelled)" in live.berth("submit", "--dry-run", "--gpus", "2", "--", "true").stdout
    assert "modelled" in live.berth("what-if", "--add-racks", "1").stdout
    assert live.berth("priority", "mine", "7").stdout == "mine has priority 7\n"
    live.berth("drain", "r0-m0")
    assert "drained" in live.berth("nodes").stdout
    live.berth("undrain", "r0-m0")
    assert live.berth("cancel", blocker).stdout == f"{blocker} cancelled\n"
    assert live.berth("wait", blocker, check=False).returncode == 143  # as the signal ended it
    assert live.berth("wait", "mine").returncode == 0
    history = live.json("history", "mine")
    assert [event["kind"] for event in history["events"]][:2] == ["submitted", "prioritised"]
    assert "finished" in live.berth("queue", "--over").stdout
    assert live.stop() == 0
    assert "0 differences" in live.berth("replay", str(live.state)).stdout
    gone = live.berth("queue", check=False)
    assert (gone.returncode, "berth up" in gone.stderr) == (75, True)  # unreachable, not wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("submit",), "nothing to run"),
        (("submit", "--gpus", "99", "--", "true"), "99 devices are asked for"),
        (("submit", "--device", "H100", "--", "true"), "H100"),
        (("submit", "--env", "LR", "--", "true"), "--env 'LR' must be KEY=VALUE"),
        (("submit", "no-such.yaml"), "no-such.yaml"),
        (("why", "j99"), "there is no job 'j99'"),
        (("drain", "r9"), "r9"),
        (("what-if",), "nothing would change"),
        (("what-if", "--policy", "fifoo"), "fifo"),
        (("replay", "/nowhere"), "there is no journal"),
    ],
)
def test_mistakes_are_one_clear_message(served, arguments, said):
    done = served.berth(*arguments, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    live = ForkedUp(tmp_path_factory.mktemp("served"), "--cluster", "2x2x2", "--policy", "fifo").start()
    yield live
    live.stop()
