"""A real controller: who can reach what, a copy of its state, and commands that outlive it."""

import contextlib
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from berth.testing.up import SOURCE, Up, until
from forked_up import ForkedUp

pytestmark = pytest.mark.slow
FIND = """
import os, pathlib
here = pathlib.Path(os.environ["BERTH_FOLDER"])
for _ in range(4):
    for name in ("admin.token", "tokens.json", "journal.sqlite", "controller.sock", "endpoint.json"):
        if (here / name).exists():
            print("found", here / name)
    here = here / ".."
print("environment", *(name for name in os.environ if "TOKEN" in name))
print("walked")
"""


def wait_for_log(live: Up, job: str, words: str) -> str:
    return until(lambda: words in (reported := live.client.text("jobs", job, "logs")[0]) and reported)


def test_a_job_finds_nothing_of_the_controllers_state_above_its_folder(up, monkeypatch):
    monkeypatch.setenv("BERTH_TOKEN", "")
    live = up("--cluster", "1x1x2")
    job = live.submit([sys.executable, "-c", FIND])
    reported = wait_for_log(live, job, "walked")
    assert "found" not in reported
    assert "environment BERTH_ATTEMPT_TOKEN\n" in reported
    assert not list(live.state.glob("*.token"))
    assert "token=" not in (live.state / "up.log").read_text()
    assert "all users who may submit are trusted with it" in (live.state / "up.log").read_text()


def test_everything_in_the_state_folder_is_its_owners_only(tmp_path):
    before = os.umask(0)
    try:
        live = ForkedUp(tmp_path / "state", "--cluster", "1x1x2").start()
    finally:
        os.umask(before)
    try:
        live.berth("token", "add", "alice")
        live.submit("true")
        places = [live.state, live.state.with_name("state-work") / live.state_name()]
        assert [stat.S_IMODE(place.stat().st_mode) for place in places] == [0o700, 0o700]
        modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in live.state.iterdir()}
        assert {"controller.sock", "endpoint.json", "journal.sqlite", "journal.sqlite-wal"} <= set(modes)
        assert set(modes.values()) == {0o600}
    finally:
        live.clear()


def test_commands_need_no_token_over_the_socket_and_one_over_tcp(up):
    live = up("--cluster", "1x1x2")
    url = json.loads((live.state / "endpoint.json").read_text())["url"]
    assert live.berth("queue").returncode == 0
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/api/v1/status", timeout=30)
    assert refused.value.code == 401
    forged = urllib.request.Request(f"{url}/api/v1/status", headers={"X-Forwarded-For": "unix"})
    with pytest.raises(urllib.error.HTTPError) as also_refused:
        urllib.request.urlopen(forged, timeout=30)
    refused.value.close()
    also_refused.value.close()
    token = live.berth("token", "add", "alice").stdout.strip()
    asked = urllib.request.Request(f"{url}/api/v1/me", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert json.load(answer)["user"] == "alice"
    link = live.berth("dashboard", "--no-open").stdout.strip()
    code = link.removeprefix(f"{url}/#code=")
    login = urllib.request.Request(
        f"{url}/api/v1/login", json.dumps({"code": code}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(login, timeout=30) as answer:
        session = json.load(answer)["token"]
    for secret in (token, code, session):
        assert secret
        holders = [
            path for path in live.state.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
        ]
        assert not holders, "a token is in no log and in no file, not even the journal"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_another_user_is_refused_at_the_socket(up):
    live = up("--cluster", "1x1x2")
    for path in (live.state, *live.state.parents):  # as if the folder were open
        path.chmod(path.stat().st_mode | 0o055)
    (live.state / "controller.sock").chmod(0o666)
    ask = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX)\n"
        "os.chdir(sys.argv[1]); s.connect('controller.sock')\n"
        "s.sendall(b'GET /api/v1/status HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(len(s.recv(100)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask, str(live.state)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "200" not in done.stdout
    assert done.stdout.strip() == "0" or "ConnectionReset" in done.stderr or "BrokenPipe" in done.stderr
    assert live.berth("queue").returncode == 0


def test_a_copy_of_a_live_state_is_refused_and_adopting_it_leaves_the_jobs_alone(up, tmp_path):
    live = up("--cluster", "1x1x2")
    record = tmp_path / "ran"
    job = live.submit(f"echo $$ >> {record}; exec sleep 600", grace="0s")
    until(lambda: live.state_of(job) == "running" and record.exists())
    pid = int(record.read_text())
    copy = ForkedUp(tmp_path / "copy", "--cluster", "1x1x2")
    shutil.copytree(live.state, copy.state, ignore=shutil.ignore_patterns("*.sock"))
    work = live.state.with_name(f"{live.state.name}-work")
    shutil.copytree(work, copy.state.with_name("copy-work"))
    done = copy.berth("up", "--state", str(copy.state), "--port", "0", check=False)
    assert done.returncode == 2
    assert "belongs to another place" in done.stderr
    assert "--adopt" in done.stderr
    assert live.state_of(job) == "running"
    adopted = ForkedUp(copy.state, "--cluster", "1x1x2", "--adopt").start()
    try:
        until(lambda: len(record.read_text().split()) == 2)  # queued again in the copy, and run there
        first = adopted.client.get("jobs", job, "history")["attempts"][0]
        assert first["lost"]
        adopted.client.post("jobs", job, "cancel")
        until(lambda: adopted.state_of(job) == "cancelled")
        assert live.state_of(job) == "running"
        assert live.client.get("jobs", job)["attempts"] == 1
        assert Path(f"/proc/{pid}").exists()
    finally:
        adopted.clear()
    again = ForkedUp(copy.state, "--cluster", "1x1x2").start()  # at home there now
    again.clear()
    assert Path(f"/proc/{pid}").exists()


def test_wait_and_logs_go_on_across_a_restart_and_a_down_controller_has_a_code_of_its_own(up, tmp_path):
    live = up("--cluster", "1x1x2")
    gate = tmp_path / "gate"
    job = live.submit(f"echo one; until [ -e {gate} ]; do sleep 0.05; done; echo two; exit 7", restarts=0)
    wait_for_log(live, job, "one")
    environment = os.environ | {"PYTHONPATH": SOURCE, "BERTH_STATE": str(live.state)}
    command = [sys.executable, "-m", "berth"]
    waiting, logs = (
        subprocess.Popen(
            [*command, *verb, job], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for verb in (["wait"], ["logs", "-f"])
    )
    try:
        assert logs.stdout.readline() == "one\n"
        assert waiting.poll() is None
        live.kill()
        for verb in (
            ("queue",),
            ("wait", job, "--patience", "0s"),
            ("logs", "-f", job, "--patience", "0s"),
            ("cancel", job),
        ):
            down = live.berth(*verb, check=False)
            assert down.returncode == 75, down.stderr
            assert "does not answer" in down.stderr
        assert "asking again" in waiting.stderr.readline()
        assert "asking again" in logs.stderr.readline()
        live.start()
        gate.touch()
        assert waiting.wait(120) == 7
        assert logs.wait(120) == 0
        assert logs.stdout.read() == "two\n"
    finally:
        for process in (waiting, logs):
            if process.poll() is None:
                process.kill()
            process.communicate()


def test_connections_that_send_nothing_are_closed(up):
    live = up("--cluster", "1x1x2")
    host, port = (
        json.loads((live.state / "endpoint.json").read_text())["url"].removeprefix("http://").split(":")
    )
    made = [socket.create_connection((host, int(port)), timeout=60) for _ in range(50)]
    for one in made[::2]:
        one.sendall(b"GET /api/v1/status HT")
    for one in made:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(100) == b""
        one.close()
    assert live.berth("queue").returncode == 0
