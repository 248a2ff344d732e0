"""Real processes under a supervisor: started together, ended together, reported correctly."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from berth.live.backend import Launch, Member
from berth.live.folder import SUPERVISE, Folder, archive_supervisor

pytestmark = pytest.mark.slow
TOKEN = f"s{os.getpid()}-j1.1"  # tests beside these have other ones
MARK = f"BERTH_ATTEMPT_TOKEN={TOKEN}\0".encode()


def until(condition, timeout_s: float = 300.0):
    """Waits for something real; the bound is only there so that a broken test ends."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)
    return found


def launch(*argv: str, members: int = 1, machines: int = 1, grace_s: float = 5.0, **facts) -> Launch:
    people = tuple(Member(rank, rank, f"m{rank % machines}", (rank,)) for rank in range(members))
    return Launch(TOKEN, "j1", 1, "job", "me", argv, people, grace_s=grace_s, **facts)


class Stage:
    """One attempt's folder and the supervisors that were started for it."""

    def __init__(self, root: Path) -> None:
        self.folder = Folder(root, TOKEN)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, order: Launch, *machines: str) -> "Stage":
        self.folder.prepare(order)
        for machine in machines or ("",):
            command = [sys.executable, "-I", "-S", str(SUPERVISE), str(self.folder.path)]
            self.processes.append(subprocess.Popen([*command, machine] if machine else command))
        return self

    def running(self, parts: int = 1) -> "Stage":
        until(lambda: all(self.folder.report(part, "running") for part in range(parts)))
        return self

    def end(self) -> None:
        for process in self.processes:
            process.wait(300)

    def log(self, rank: int = 0) -> str:
        return self.folder.log(rank).read_text()


@pytest.fixture
def stage(tmp_path):
    made = Stage(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_job_finds_the_programs_of_the_controllers_python_after_its_own(stage, monkeypatch):
    beside = Path(sys.executable).parent
    assert (beside / "berth").exists()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # as where berth was started by its path
    stage.start(launch("berth", "--version")).end()
    assert stage.log().startswith("berth ")


def test_a_gang_has_torchruns_environment(stage):
    show = "print(*(os.environ[n] for n in 'RANK LOCAL_RANK WORLD_SIZE CUDA_VISIBLE_DEVICES MASTER_ADDR'.split()))"
    stage.start(launch(sys.executable, "-c", f"import os; {show}", members=3)).end()
    assert [stage.log(rank) for rank in range(3)] == [f"{r} {r} 3 {r} 127.0.0.1\n" for r in range(3)]
    seen = stage.folder.seen()
    assert (seen.state, seen.codes, seen.code, seen.stopped) == ("ended", (0, 0, 0), 0, False)


def test_nothing_of_the_controllers_environment_is_handed_on(stage, monkeypatch):
    monkeypatch.setenv("BERTH_TOKEN_OF_ADMIN", "treasure")
    monkeypatch.setenv("AWS_SECRET", "treasure")
    stage.start(launch("/usr/bin/env")).end()
    assert "treasure" not in stage.log()
    assert "BERTH_JOB=j1" in stage.log()


def test_the_name_of_an_attempt_is_not_in_the_variable_of_the_apis_token(stage, monkeypatch):
    monkeypatch.setenv("BERTH_TOKEN", "treasure")
    stage.start(launch("/usr/bin/env")).end()
    names = dict(line.split("=", 1) for line in stage.log().splitlines())
    assert names["BERTH_ATTEMPT_TOKEN"] == TOKEN
    assert "BERTH_TOKEN" not in names


def test_when_one_process_fails_all_end_with_its_code(stage):
    script = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    stage.start(launch(sys.executable, "-c", script, members=3)).end()
    seen = stage.folder.seen()
    assert seen.code == 7
    assert seen.codes[1] == 7
    assert not seen.stopped


def test_the_archive_for_other_machines_runs_a_gang_without_berth(stage, tmp_path):
    archive = archive_supervisor(tmp_path)
    written = archive.stat().st_mtime_ns
    assert archive_supervisor(tmp_path).stat().st_mtime_ns == written  # the same bytes are not written again
    stage.folder.prepare(launch("/bin/sh", "-c", "echo here"))
    subprocess.run([sys.executable, "-I", "-S", str(archive), str(stage.folder.path)], check=True, cwd="/")
    assert stage.folder.seen().codes == (0,)
    assert stage.log() == "here\n"


def test_a_stopped_gang_has_its_grace_period(stage):
    script = "trap 'echo saved; exit 0' TERM; echo here; while :; do sleep 0.05; done"
    stage.start(launch("/bin/sh", "-c", script, grace_s=300.0)).running()
    until(lambda: "here" in stage.log())
    stage.folder.stop()
    stage.processes[0].send_signal(signal.SIGTERM)
    stage.end()
    seen = stage.folder.seen()
    assert (seen.codes, seen.stopped) == ((0,), True)
    assert "saved" in stage.log()


def test_a_gang_that_ended_before_its_stop_has_finished(stage):
    late = """
import sys
sys.path.insert(0, sys.argv[1])
import supervise
end_all = supervise.Part._end_all
def told_first(part):
    (part.folder / "stop").touch()
    part.signalled = True
    end_all(part)
supervise.Part._end_all = told_first
supervise.main(sys.argv[2])
"""
    stage.folder.prepare(launch("/bin/true"))
    subprocess.run([sys.executable, "-c", late, str(SUPERVISE.parent), str(stage.folder.path)], check=True)
    seen = stage.folder.seen()
    assert (seen.codes, seen.stopped) == ((0,), False)


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(stage):
    script = "trap '' TERM; echo here; while :; do sleep 0.05; done"
    stage.start(launch("/bin/sh", "-c", script, grace_s=0.3)).running()
    until(lambda: "here" in stage.log())
    stage.folder.stop()  # seen without any signal
    stage.end()
    assert stage.folder.seen().codes == (137,)


def test_what_left_its_process_group_is_ended_too(stage, tmp_path):
    note = tmp_path / "pid"
    script = (
        f"setsid sh -c 'trap \"\" TERM; echo $$ > {note}; while :; do sleep 0.05; done' & "
        f"until [ -s {note} ]; do sleep 0.05; done; exit 0"
    )
    stage.start(launch("/bin/sh", "-c", script)).end()
    assert not alive(int(note.read_text()))
    assert stage.folder.seen().codes == (0,)


def test_a_killed_supervisor_leaves_nothing_behind_and_never_runs_again(stage, tmp_path):
    record = tmp_path / "ran"
    script = f"echo once >> {record}; setsid sleep 600 & sleep 600"
    stage.start(launch("/bin/sh", "-c", script)).running()
    pid = stage.folder.report(0, "running")["pids"]["0"]
    until(record.exists)
    stage.processes[0].kill()
    stage.processes[0].wait()
    until(lambda: not stage.folder.held())
    stage.start(launch("/bin/sh", "-c", script)).processes[1].wait(300)
    seen = stage.folder.seen()
    assert (seen.state, seen.lost, seen.codes) == ("ended", True, ())
    assert not alive(pid)
    assert record.read_text() == "once\n"
    marked = [p for p in Path("/proc").glob("[0-9]*/environ") if MARK in _read(p)]
    assert not marked


ESCAPES = "env -i setsid sh -c 'trap \"\" TERM; echo $$ > {note}; while :; do sleep 0.05; done' & sleep 600"


def test_the_parent_of_a_killed_supervisor_kills_all_processes(stage, tmp_path):
    note = tmp_path / "pid"
    stage.start(launch("/bin/sh", "-c", ESCAPES.format(note=note))).running()
    until(lambda: note.exists() and note.read_text())
    os.kill(stage.folder.report(0, "ready")["pid"], signal.SIGKILL)
    stage.end()  # the keeper, which nothing had to start again
    assert not alive(int(note.read_text()))
    seen = stage.folder.seen()
    assert (seen.state, seen.lost, seen.cause) == ("ended", True, "supervisor-lost")


def test_all_processes_end_when_the_lifeline_is_closed(stage, tmp_path):
    note = tmp_path / "pid"
    stage.folder.prepare(launch("/bin/sh", "-c", "trap '' TERM; " + ESCAPES.format(note=note), grace_s=600.0))
    lifeline, hold = os.pipe()
    command = [sys.executable, "-I", "-S", str(SUPERVISE), str(stage.folder.path), "", "", str(lifeline)]
    stage.processes.append(subprocess.Popen(command, pass_fds=(lifeline,)))
    os.close(lifeline)
    stage.running()
    until(lambda: note.exists() and note.read_text())
    os.close(hold)
    stage.end()
    assert not alive(int(note.read_text()))
    seen = stage.folder.seen()
    assert (seen.state, seen.lost, seen.cause) == ("ended", True, "supervisor-lost")
    assert (stage.folder.path / "failed").exists()  # so the other parts end too


@pytest.mark.parametrize(
    ("script", "cause"),
    [("exit 3", "exit"), ("kill -9 $$", "signal"), ("exit 0", None)],
)
def test_the_cause_of_an_end_is_reported(stage, script, cause):
    stage.start(launch("/bin/sh", "-c", script)).end()
    assert stage.folder.seen().cause == cause


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_second_supervisor_does_nothing(stage, tmp_path):
    record = tmp_path / "ran"
    order = launch("/bin/sh", "-c", f"echo once >> {record}; sleep 0.5")
    stage.start(order)
    stage.start(order)
    stage.end()
    stage.start(order).end()
    assert record.read_text() == "once\n"


def test_a_gang_that_was_stopped_before_its_start_never_starts(stage, tmp_path):
    stage.folder.prepare(launch("/bin/sh", "-c", f"touch {tmp_path / 'ran'}"))
    stage.folder.stop()
    stage.start(launch("/bin/sh", "-c", f"touch {tmp_path / 'ran'}")).end()
    assert stage.folder.seen().stopped
    assert not (tmp_path / "ran").exists()


def test_a_stop_for_an_unknown_token_keeps_it_from_starting(tmp_path):
    folder = Folder(tmp_path, "s-j9.1")
    folder.stop()
    assert folder.prepare(launch("true")) is False


def test_a_gang_on_several_machines_begins_when_all_are_there(stage, tmp_path):
    script = "echo $RANK $MASTER_PORT >> " + str(tmp_path / "began")
    order = launch("/bin/sh", "-c", script, members=4, machines=2, env={})
    stage.start(order, "m0")
    until(lambda: stage.folder.report(0, "ready"))
    assert not (tmp_path / "began").exists()
    stage.start(order, "m1").end()
    lines = [line.split() for line in (tmp_path / "began").read_text().splitlines()]
    assert sorted(rank for rank, _ in lines) == ["0", "1", "2", "3"]
    assert len({port for _, port in lines}) == 1
    assert stage.folder.seen(together=False).codes == (0, 0, 0, 0)


def test_too_much_memory_kills_the_gang_with_a_line_in_the_log(stage):
    script = "import time; x = bytearray(200 << 20); x[:] = b'1' * len(x); time.sleep(600)"
    stage.start(launch(sys.executable, "-c", script, memory_bytes=50 << 20, grace_s=0.1)).end()
    assert (stage.folder.seen().code, stage.folder.seen().cause) == (137, "out-of-memory")
    assert "bytes of memory are in use" in stage.log()


def test_a_command_that_can_not_be_started_is_reported(stage):
    stage.start(launch("/no/such/program")).end()
    seen = stage.folder.seen()
    assert seen.code == 127
    assert "No such file" in json.loads((stage.folder.path / "part-0.ended").read_text())["error"]


def test_a_job_says_itself_that_it_has_finished(stage):
    script = (
        "from berth.job import finished; import time; finished(); print('said', flush=True); time.sleep(600)"
    )
    source = str(Path(__file__).parents[2] / "src")
    stage.start(launch(sys.executable, "-c", script, env={"PYTHONPATH": source}, grace_s=1.0)).running()
    until(lambda: "said" in stage.log())
    os.kill(stage.processes[0].pid, signal.SIGTERM)
    stage.end()
    seen = stage.folder.seen()
    assert (seen.done, seen.stopped) == (True, True)
