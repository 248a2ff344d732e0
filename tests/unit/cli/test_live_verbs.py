"""The verbs of a live cluster, in this process, over HTTP to a controller whose engine is in memory."""

from __future__ import annotations

import io
import json
import threading
import time

import pytest
import uvicorn

from berth.__main__ import run
from berth.cli.why import _event
from berth.clock import MachineClock
from berth.cluster.load import load_cluster
from berth.live.api.app import make_app
from berth.live.api.service import Service
from berth.live.api.tokens import Tokens
from berth.live.commands import cancel_all
from berth.live.controller import Controller
from berth.live.folder import Folder
from berth.live.server import listen
from berth.live.setup import Setup
from berth.live.store import Store
from berth.testing.memory import MemoryBackend
from berth.units import format_wait


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A controller of 16 devices, its address and its admin's token."""
    folder = tmp_path_factory.mktemp("served")
    cluster, store = load_cluster("2x2x4:V100-16"), Store(folder)
    backend = MemoryBackend(cluster, MachineClock(), startup_s=0.0)
    controller = Controller(store, backend, Setup(cluster, "fifo", store=store.name))
    tokens, socket, over = Tokens(folder), listen("127.0.0.1", 0), threading.Event()
    controller.attempts = folder / "attempts"
    app = make_app(Service(controller, tokens, controller.attempts))
    web = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    threads = [
        threading.Thread(target=controller.run, args=(over,)),
        threading.Thread(target=web.run, kwargs={"sockets": [socket]}),
    ]
    for thread in threads:
        thread.start()
    controller.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    controller.token = tokens.add("root", "admin")
    yield controller
    web.should_exit = True
    over.set()
    controller.wakeup.set()
    for thread in threads:
        thread.join()
    controller.close()


@pytest.fixture
def live(served, berth, monkeypatch):
    """Runs a verb at the controller, whose jobs are gone when the test ends."""
    monkeypatch.setenv("BERTH_URL", served.url)
    monkeypatch.setenv("BERTH_TOKEN", served.token)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> str:
        code, out, err = berth(*arguments)
        assert code == 0, err
        assert "--json" in arguments or max(map(len, out.splitlines()), default=0) <= 80
        return out

    run.berth, run.controller = berth, served
    yield run
    served.ask(cancel_all(list(served.state.jobs))).result(300)
    until(lambda: not served.state.jobs)


def until(condition, timeout_s: float = 300.0):
    """The controller runs by itself; the bound is only there so that a broken test ends."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)
    return found


def submit(live, *options: object, gpus: int = 1, seconds: float = 1000) -> str:
    asked = ("submit", "--gpus", gpus, "--grace", "0s", "--env", f"SECONDS={seconds}")
    return json.loads(live(*asked, *options, "--json", "--", "work"))["job"]


def running(live, job: str) -> bool:
    return json.loads(live("why", job, "--json"))["state"] == "running"


def test_the_queue_of_an_idle_cluster_is_one_line(live):
    assert live("queue") == "nothing waits and nothing runs\n"


@pytest.mark.slow
def test_a_job_is_shown_where_it_runs_and_the_next_with_its_reason(live):
    first, second = submit(live, "--name", "wide", gpus=16), submit(live, "--name", "[next]", gpus=2)
    until(lambda: running(live, first))
    # a forecast is kept for five seconds
    until(lambda: "blocker" in json.loads(live("why", second, "--json")))
    shown = live("queue")
    assert "r0-m0:4, r0-m1:4 +2" in shown
    assert "[next]" in shown
    assert "prio" in shown
    assert "needs 2" in shown
    rows = {row["id"]: row for row in json.loads(live("queue", "--json"))["jobs"]}
    assert rows[second]["blocker"].startswith("needs 2 devices; 0 are free; starts in ")
    assert rows[second]["starts_after"] == [first]
    assert rows[first]["expected_end"] == pytest.approx(rows[second]["expected_start"])
    reported = " ".join(live("why", second).split())
    assert reported.startswith(
        f"{second} is queued, number 1 in the queue at priority 0, 2 devices. It needs 2 devices; 0 are free; starts"
    )
    assert f"when {first} (wide) ends (modelled)." in reported
    assert "It should start" not in reported  # said once
    assert "It should end in about" in live("why", first)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 160])
def test_the_queue_shows_users_and_whole_ids_at_any_width(live, columns, monkeypatch):
    long = f"evaluation-2026-11-18.{columns}"
    first = submit(live, "--name", "wide", "--priority", 3, gpus=16)
    submit(live, "--id", long, "--name", "a-name-that-is-much-too-long-for-a-table", gpus=2)
    until(lambda: running(live, first) and "blocker" in json.loads(live("why", long, "--json")))
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = live.berth("queue")
    lines = out.splitlines()
    assert code == 0
    assert any(long in line.split() for line in lines)
    assert [line.split()[:5] for line in lines if first in line.split()[:1]] == [
        [first, "wide", "root", "running", "16"]
    ]
    assert max(map(len, lines)) <= columns
    below = next(at for at, line in enumerate(lines) if long in line) + 1
    # the reason has a column if there is room for one
    assert ("needs" in lines[below - 1]) == (columns == 160)
    assert "needs 2 devices" in " ".join(" ".join(lines[below - 1 :]).split())


@pytest.mark.parametrize("columns", [60, 66])
def test_long_ids_have_a_line_of_their_own_and_are_not_split_in_reasons(columns):
    from rich.console import Console

    from berth.report.terminal import print_listing

    out = Console(width=columns, file=io.StringIO())
    long = "llm-pretraining-2026-11-18-second-attempt-of-three"
    rows = [["1", "j1", "small", "alice", "8"], ["2", long, "large", "bob", "16"]]
    notes = ["", f"needs 16 devices in one rack; starts in 2h when the job {long} ends"]
    print_listing(out, ["#", "job", "name", "user", "gpus"], rows, left=4, note="why", notes=notes)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(long in line for line in lines) == 2
    at = next(at for at, line in enumerate(lines) if line.split()[-1:] == [long])
    assert lines[at + 1].split() == ["2", "large", "bob", "16"]


def test_names_are_shortened_where_a_line_of_its_own_for_the_id_is_not_enough():
    from rich.console import Console

    from berth.report.terminal import print_listing

    out = Console(width=60, file=io.StringIO())
    columns = ["#", "job", "name", "user", "gpus", "prio", "waits", "starts"]
    row = ["1", "j1", "pretraining", "christophe", "128", "-1000", "23h59m", "~23h59m"]
    print_listing(out, columns, [row], left=4, note="why", notes=["paused"])
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].split() == ["1", "j1", "pretraini…", "christophe", *row[4:]]


@pytest.mark.parametrize(("columns", "fit"), [(44, False), (54, False), (55, True), (60, True)])
def test_names_stay_whole_where_shortening_them_does_not_make_rows_fit(columns, fit):
    from rich.console import Console

    from berth.report.terminal import print_listing

    out = Console(width=columns, file=io.StringIO())
    names = ["#", "job", "name", "user", "gpus", "prio", "waits", "starts"]
    long = "job-with-a-long-id"
    row = ["1", long, "pretraining", "christophe", "128", "-1000", "23h59m", "~23h59m"]
    print_listing(out, names, [row], left=4)
    lines = out.file.getvalue().splitlines()
    assert lines[1].split() == [long]  # a line of its own costs nothing
    assert (max(map(len, lines)) <= columns) == fit
    assert (lines[2].split()[1:3] == ["pretraining", "christophe"]) == (not fit)


def test_a_command_in_a_note_stays_on_one_line():
    from rich.console import Console

    from berth.report.terminal import NO_BREAK, print_listing

    out = Console(width=40, file=io.StringIO())
    note = f"its command exited; its output: berth{NO_BREAK}logs{NO_BREAK}j1"
    print_listing(out, ["job", "state"], [["j1", "failed"]], left=2, note="cause", notes=[note])
    assert out.file.getvalue().splitlines()[-1].strip() == "berth logs j1"


def test_a_column_of_ids_is_at_least_as_wide_as_its_name():
    from rich.console import Console

    from berth.report.terminal import print_listing

    out = Console(width=20, file=io.StringIO())
    print_listing(out, ["machine", "devices", "free"], [["m1", "8x A100-40GB", "8"]], left=2)
    name, row = out.file.getvalue().splitlines()
    assert row.index("8x") == name.index("devices")


def test_states_have_colours_on_a_terminal_only():
    from rich.console import Console

    from berth.report.terminal import print_listing, state_text

    for terminal, coloured in ((True, True), (False, False)):
        out = Console(force_terminal=terminal, width=80, record=True, file=io.StringIO())
        print_listing(out, ["job", "state"], [["j1", state_text("failed")]], left=2)
        assert ("\x1b[1;31mfailed" in out.file.getvalue()) == coloured


def test_times_of_a_live_cluster_are_whole_seconds():
    assert [format_wait(value) for value in (0, 0.2, 7.63, 59.96, 3661)] == ["0s", "<1s", "8s", "1m", "1h1m"]


@pytest.mark.slow
def test_a_dry_run_with_a_drained_machine_and_an_empty_queue_names_the_machine(live):
    live("drain", "r0-m0")
    try:
        out = live("submit", "--dry-run", "--gpus", 16, "--", "true")
    finally:
        live("undrain", "r0-m0")
    assert " ".join(out.split()) == (
        "no estimate of its start: needs 16 devices, and the machines in service have 12 within one network; "
        "out of service: r0-m0 (modelled)"
    )


def test_the_state_of_an_ended_job_is_said_once(live):
    job = submit(live, seconds=0)
    until(lambda: json.loads(live("why", job, "--json"))["state"] == "finished")
    assert live("why", job) == f"{job} is over: finished.\n"


def test_where_a_job_runs_is_shown_with_its_history(live):
    first = submit(live, "--name", "wide", gpus=16)
    until(lambda: running(live, first))
    assert "It is on r0-m0:4, r0-m1:4, r1-m0:4, r1-m1:4, within one network." in live("why", first)
    assert "start       r0-m0:4" in live("history", first)
    nodes = live("nodes").splitlines()
    assert [line.split()[0] for line in nodes if "4x V100-16" in line] == ["r0-m0", "r0-m1", "r1-m0", "r1-m1"]


def test_the_profile_in_a_file_is_read_here_and_sent_with_the_job(live, tmp_path):
    (tmp_path / "mine.yaml").write_text("bytes: 440MB\ncompute: {V100: 120ms}\n")
    (tmp_path / "job.yaml").write_text("run: work\nmodel: mine.yaml\ngrace: 0s\nenv: {SECONDS: '1000'}\n")
    first = submit(live, "--model", tmp_path / "mine.yaml")
    second = json.loads(live("submit", tmp_path / "job.yaml", "--json"))["job"]
    for job in (first, second):
        profile = live.controller.state.jobs[job].profile
        assert (profile["name"], profile["parameter_bytes"]) == ("mine", 440e6)
        assert profile["compute_s"] == {"V100": 0.12}
    code, _, err = live.berth("submit", "--model", "nowhere.yaml", "--", "work")
    assert (code, err.splitlines()[0]) == (2, "error: nowhere.yaml: no such file")


def test_durations_may_have_several_units(live):
    job = submit(live, "--duration", "1h30m")
    assert live.controller.state.jobs[job].spec.duration == 5400


def test_several_jobs_are_cancelled_by_one_command(live):
    jobs = [submit(live) for _ in range(3)]
    code, out, err = live.berth("cancel", *jobs, "nobody")
    assert (code, out) == (2, "")
    assert "error: there is no job 'nobody': nothing is cancelled" in err
    assert live("cancel", jobs[0]) == f"{jobs[0]} cancelled\n"
    until(lambda: jobs[0] not in live.controller.state.jobs)
    assert (
        live("cancel", *jobs) == f"{jobs[0]} is over: cancelled\n{jobs[1]} cancelled\n{jobs[2]} cancelled\n"
    )
    until(lambda: not live.controller.state.jobs)
    reported = json.loads(live("cancel", *jobs, "--json"))
    assert [row["already_ended"] for row in reported["jobs"]] == [True] * 3
    assert "cancelled" in live("queue", "--over", "--limit", 3)
    code, _, err = live.berth("cancel", jobs[0])
    assert (code, err) == (2, f"error: job {jobs[0]} is over: cancelled\n")


@pytest.mark.parametrize("option", ["--device", "--kind"])
def test_kind_is_a_hidden_alias_of_device(live, option):
    assert json.loads(live("submit", option, "V100-16", "--dry-run", "--json", "--", "work"))["machines"]
    code, _, err = live.berth("submit", option, "H100", "--", "work")
    assert code == 2
    assert "no device type in 2x2x4:V100-16 is called 'H100'" in err


@pytest.mark.parametrize("option", ["--duration", "--grace", "--deadline"])
def test_a_wrong_time_names_its_option(live, option):
    code, _, err = live.berth("submit", option, "soon", "--", "work")
    assert code == 2
    assert f"error: {option}: 'soon' is not a duration\n" in err


def test_device_and_kind_together_are_refused(live):
    code, _, err = live.berth("submit", "--device", "V100-16", "--kind", "T4", "--", "work")
    assert code == 2
    assert "--device and --kind are two names of one thing\n  give --device only" in err
    assert "--kind" not in live("submit", "--help")


def test_help_says_that_a_live_cluster_and_a_simulation_differ_in_which_jobs_are_evicted(live):
    submit = " ".join(live("submit", "--help").replace("│", " ").split())
    assert "policy berth: migrated, not evicted" in submit
    simulate = " ".join(live("simulate", "--help").replace("│", " ").split())
    assert "Live, policy berth evicts none that does not ask for it" in simulate


def test_a_dry_run_of_many_machines_fits_the_terminal(live):
    reported = live("submit", "--dry-run", "--gpus", 16, "--", "work")
    text = " ".join(reported.split())
    assert text == ("it would start now within one network (modelled), on r0-m0:4, r0-m1:4, r1-m0:4, r1-m1:4")
    submit(live, "--duration", "1h", gpus=16)
    assert "it would start in about " in live("submit", "--dry-run", "--", "work")


@pytest.mark.slow
def test_what_if_counts_one_rack_as_one(live):
    submit(live)
    assert " 1 more rack " in live("what-if", "--add-racks", 1)
    assert " srtf, 2 more racks " in live("what-if", "--add-racks", 2, "--policy", "srtf")


def test_what_if_lists_the_jobs_that_gain_and_lose(live):
    for name, seconds in (("wide", 1000), ("long", 900), ("short", 20)):
        submit(live, "--name", name, "--duration", f"{seconds}s", gpus=16, seconds=seconds)
    told = json.loads(live("what-if", "--policy", "srtf", "--json"))
    by_name = {one["name"]: one for one in told["jobs"]}
    assert by_name["short"]["changed_end_s"] < by_name["short"]["end_s"]  # it preempts the wide one
    assert by_name["wide"]["changed_end_s"] > by_name["wide"]["end_s"]
    assert (told["sooner"], told["later"], told["same"]) == (2, 1, 0)
    shown = live("what-if", "--policy", "srtf")
    assert "Ends: 2 sooner, 1 later, 0 at the same time." in shown
    assert by_name["short"]["job"] in shown


@pytest.mark.slow
def test_a_job_that_failed_for_good_says_why_and_where_its_output_is(live):
    job = submit(live, "--restarts", 0, "--env", "FAILS=1", seconds=0)
    until(lambda: json.loads(live("why", job, "--json"))["state"] == "failed")
    why = f"{job} is over: failed, its command exited with an error.\nIts output: berth logs {job}\n"
    assert live("why", job) == why
    assert f"its command exited with an error; its output: berth logs {job}" in live("queue", "--over")


@pytest.mark.slow
def test_a_job_that_failed_says_when_it_is_tried_again(live):
    job = submit(live, "--env", "FAILS=1", seconds=0)
    until(lambda: json.loads(live("why", job, "--json"))["state"] == "delayed")
    reported = live("why", job)
    assert reported.startswith(
        f"{job} is delayed: its last attempt failed: its command exited with an error; it is"
    )
    assert "It is tried again in " in reported


def test_logs_are_printed_as_they_are_and_a_job_that_waits_says_so(live):
    first, second = submit(live, gpus=16), submit(live, gpus=16)
    until(lambda: running(live, first))
    folder = Folder(live.controller.attempts, live.controller.store.tokens_of(first)[0]).path
    folder.mkdir(parents=True)
    (folder / "rank-3.log").write_text("naïve [bold]text[/bold]\n")
    assert live("logs", first, "--rank", 3) == "naïve [bold]text[/bold]\n"
    assert live("logs", first) == ""
    live("cancel", second)
    code, out, err = live.berth("logs", "--follow", second)
    assert (code, out, err) == (0, "", "")  # it is over: there is nothing to wait for


def test_priority_drain_and_undrain_say_what_they_did(live):
    job = submit(live)
    assert live("priority", job, 7) == f"{job} has priority 7\n"
    assert json.loads(live("priority", job, "--json", "--", -7)) == {"job": job, "priority": -7}
    assert live("drain", "r1-m1") == "r1-m1 takes no new jobs\n"
    assert "drained" in live("nodes")
    assert json.loads(live("undrain", "r1-m1", "--json")) == {"machine": "r1-m1", "drained": False}
    code, _, err = live.berth("drain", "r9")
    assert (code, "no machine is called 'r9'" in err) == (2, True)


@pytest.mark.parametrize(("fails", "code"), [(0, 0), (1, 1)])
def test_wait_ends_with_the_jobs_own_code(live, fails, code):
    job = submit(live, "--restarts", 0, "--env", f"FAILS={fails}", seconds=0)
    left, _, err = live.berth("wait", job)
    assert left == code
    assert err == f"{job} {'failed' if fails else 'finished'}\n"
    assert json.loads(live.berth("wait", job, "--json")[1])["code"] == code


def test_a_job_file_of_another_name_is_not_run_as_a_command(live, tmp_path):
    (tmp_path / "ctr.job").write_text("run: work\n")
    for more in ([], ["--dry-run"]):
        code, _, err = live.berth("submit", *more, "ctr.job")
        assert code == 2
        assert err.startswith("error: ctr.job: is not a command that can be run")
        assert "ends in .yaml" in err


def test_a_stopped_attempt_is_said_to_be_stopped_once():
    event = {"codes": [143], "cause": "stopped", "stopped": True}
    assert _event(event) == "stopped"


def test_an_interrupt_while_the_command_line_is_loaded_prints_nothing(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("berth.cli.main.main", interrupted)
    with pytest.raises(SystemExit) as left:
        run()
    assert left.value.code == 130


def test_resubmitting_with_the_same_id_is_a_no_op(live):
    assert live("submit", "--id", "mine", "--grace", "0s", "--", "work").startswith("mine  http://127.0.0.1:")
    assert live("submit", "--id", "mine", "--grace", "0s", "--", "work").startswith(
        "mine  already submitted: "
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "submit --id ../x -- work",
            "id: must begin with a letter or a digit, and have only those and . _ -",
        ),
        ("submit --env 1X=2 -- work", "must be a variable name"),
        ("submit --priority 5000 -- work", "priority: should be less than or equal to 1000"),
        ("submit --required moon -- work", "no tier in 2x2x4:V100-16 is called 'moon'"),
        (
            "submit --required machine --gpus 8 -- work",
            "no machine of 2x2x4:V100-16 ever holds 8 devices of one type",
        ),
        ("why ../../status", "nothing is called '../../status'"),
        ("logs known --rank 1", "job known has no rank 1: it has 1 device"),
        ("logs known --attempt 9", "job known has had "),
        ("priority known 5000", "priority: should be less than or equal to 1000"),
        ("what-if --policy mine.py:Mine", "policy: must be one that berth has"),
        ("what-if --policy oracle-best", "no policy is called"),
    ],
)
def test_what_the_controller_refuses_is_one_message_without_a_pattern(live, line, said):
    if "known" in line:
        live("submit", "--id", "known", "--grace", "0s", "--cwd", "/", "--", "work")
    code, out, err = live.berth(*line.split())
    assert (code, out) == (2, "")
    assert said in err
    assert "pattern" not in err


@pytest.mark.parametrize("verb", ["why", "history", "logs", "cancel", "drain"])
def test_an_empty_name_is_refused(live, verb):
    assert live.berth(verb, "")[2].startswith("error: a name is empty\n")


def test_a_folder_to_run_in_may_be_named_from_here(live, tmp_path):
    (tmp_path / "here").mkdir()
    job = submit(live, "--cwd", "here")
    assert live.controller.state.jobs[job].spec.cwd == str(tmp_path / "here")
