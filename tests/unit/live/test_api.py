"""The HTTP API: who may do what, what is answered, and what is refused."""

import asyncio
import fcntl
import json
import re
import threading
import time
from collections import deque

import httpx2
import pytest
from anyio import to_thread
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from berth.clock import MachineClock
from berth.cluster.load import load_cluster
from berth.live.api.app import make_app
from berth.live.api.events import Events
from berth.live.api.limits import Limits
from berth.live.api.service import Service
from berth.live.api.tokens import OWNER, Caller, LoginCodes, Tokens
from berth.live.controller import Controller
from berth.live.setup import Setup
from berth.live.spec import Bounds
from berth.live.store import Store
from berth.testing.memory import MemoryBackend


@pytest.fixture
def service(tmp_path):
    """An API over a controller that runs by itself, and what is needed to use it."""
    cluster = load_cluster("2x2x4:V100-16")
    store = Store(tmp_path)
    controller = Controller(
        store, MemoryBackend(cluster, MachineClock()), Setup(cluster, "fifo", store=store.name)
    )
    tokens = Tokens(tmp_path)
    service = Service(controller, tokens, tmp_path / "attempts")
    over = threading.Event()
    thread = threading.Thread(target=controller.run, args=(over,))
    thread.start()
    yield Harness(service, tokens)
    over.set()
    controller.wakeup.set()
    thread.join()
    controller.close()


class Harness:
    def __init__(self, api, tokens):
        self.api, self.app = api, make_app(api)
        self.admin = self.client(tokens.add("root", "admin"))
        self.alice = self.client(tokens.add("alice", "user"))
        self.bob = self.client(tokens.add("bob", "user"))
        self.anonymous = TestClient(self.app)

    def client(self, token):
        return TestClient(self.app, headers={"Authorization": f"Bearer {token}"})


def wait_until(condition, timeout_s=300.0):
    """The controller runs by itself; the bound is only there so that a broken test ends."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


JOB = {"spec": {"run": "secret command", "gpus": 4, "env": {"SECONDS": "1000"}}}


def test_requests_without_a_token_are_refused(service):
    for method, path in [("GET", "status"), ("GET", "jobs"), ("POST", "jobs"), ("GET", "events")]:
        assert service.anonymous.request(method, f"/api/v1/{path}", json=JOB).status_code == 401
    wrong = service.client("wrong")
    assert wrong.get("/api/v1/status").status_code == 401


def test_a_submitted_job_is_listed(service):
    answer = service.alice.post("/api/v1/jobs", json=JOB)
    assert answer.status_code == 201
    job = answer.json()["job"]
    shown = service.alice.get(f"/api/v1/jobs/{job}").json()
    assert (shown["user"], shown["gpus"], shown["spec"]["run"]) == ("alice", 4, "secret command")
    assert service.alice.get("/api/v1/jobs").json()["total"] == 1
    assert service.alice.get(f"/api/v1/jobs/{job}/why").json()["reason"]["sentence"]
    assert service.alice.get(f"/api/v1/jobs/{job}/history").json()["events"][0]["kind"] == "submitted"


def test_a_user_acts_on_jobs_of_their_own_only(service):
    job = service.alice.post("/api/v1/jobs", json=JOB).json()["job"]
    for path in (f"jobs/{job}/cancel",):
        refused = service.bob.post(f"/api/v1/{path}")
        assert refused.status_code == 403
        assert "not yours" in refused.json()["detail"]
    assert service.bob.get(f"/api/v1/jobs/{job}/logs").status_code == 403
    assert service.bob.post("/api/v1/machines/r0-m0/drain").status_code == 403
    assert service.bob.post(f"/api/v1/jobs/{job}/priority", json={"priority": 1}).status_code == 403
    assert service.alice.post(f"/api/v1/jobs/{job}/cancel").json()["state"] == "cancelled"


def test_only_the_owner_sees_the_command_of_a_job(service):
    job = service.alice.post("/api/v1/jobs", json=JOB).json()["job"]
    for path in (f"jobs/{job}", "jobs", f"jobs/{job}/history", f"jobs/{job}/why", "cluster", "status"):
        assert "secret command" not in service.bob.get(f"/api/v1/{path}").text
    service.alice.post(f"/api/v1/jobs/{job}/cancel")
    assert "secret command" not in service.bob.get("/api/v1/jobs?over=true").text


def test_an_admin_drains_and_prioritises(service):
    job = service.alice.post("/api/v1/jobs", json=JOB).json()["job"]
    assert service.admin.post("/api/v1/machines/r0-m0/drain").json() == {"machine": "r0-m0", "drained": True}
    assert service.admin.post("/api/v1/machines/r0-m0/undrain").json()["drained"] is False
    assert service.admin.post(f"/api/v1/jobs/{job}/priority", json={"priority": 3}).json()["priority"] == 3
    unknown = service.admin.post("/api/v1/machines/r9/drain")
    assert unknown.status_code == 404
    assert "r9" in unknown.json()["detail"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"spec": {"gpus": 4}}, "run"),
        ({"spec": {"run": "x", "gpus": 0}}, "gpus"),
        ({"spec": {"run": "x", "duration": "soon"}}, "duration"),
        ({"spec": {"run": "x"}, "id": "../../etc"}, "id"),
        ({"spec": {"run": "x", "colour": "red"}}, "colour"),
    ],
)
def test_an_invalid_request_names_the_field(service, body, said):
    refused = service.alice.post("/api/v1/jobs", json=body)
    assert refused.status_code == 422
    assert said in refused.text


def test_a_job_that_can_never_run_is_refused_with_the_reason(service):
    refused = service.alice.post("/api/v1/jobs", json={"spec": {"run": "x", "gpus": 99}})
    assert refused.status_code == 409
    assert "99 devices" in refused.json()["detail"]


def test_a_batch_has_one_answer_for_each_job(service):
    jobs = [{"spec": {"run": "x"}, "id": f"b{n}"} for n in range(50)] + [{"spec": {"run": "x", "gpus": 99}}]
    answers = service.alice.post("/api/v1/jobs/batch", json={"jobs": jobs}).json()["jobs"]
    assert [one["job"] for one in answers[:50]] == [f"b{n}" for n in range(50)]
    assert "99 devices" in answers[50]["error"]


def test_a_unique_prefix_of_an_id_names_the_job(service):
    for name in ("alpha-1", "alpha-2", "beta"):
        service.alice.post("/api/v1/jobs", json=JOB | {"id": name})
    assert service.alice.get("/api/v1/jobs/be").json()["id"] == "beta"
    several = service.alice.get("/api/v1/jobs/alpha")
    assert several.status_code == 404
    assert "alpha-1, alpha-2" in several.json()["detail"]


def test_a_name_instead_of_an_id_is_answered_with_the_id(service):
    for job in ("j-1", "j-2"):
        service.alice.post("/api/v1/jobs", json={"id": job, "spec": JOB["spec"] | {"name": "nightly"}})
    answer = service.alice.get("/api/v1/jobs/nightly/why")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "there is no job 'nightly'; j-1, j-2 have that name"
    assert answer.json()["hint"] == "use its id: j-1"


def test_a_mistyped_id_or_name_is_answered_with_the_nearest(service):
    service.alice.post("/api/v1/jobs", json={"id": "j-17", "spec": JOB["spec"] | {"name": "nightly"}})
    for typed, meant in (("j-71", "j-17"), ("nightlly", "nightly")):
        hint = service.alice.get(f"/api/v1/jobs/{typed}/why").json()["hint"]
        assert hint.startswith(f"did you mean {meant!r}? ")


@pytest.mark.parametrize(
    "name", ["../../secret", "a/../../secret", "..", ".", "a\\..\\b", "a\x00b", "-", "é", ""]
)
def test_no_job_has_a_name_that_is_a_path(service, name):
    refused = service.admin.post("/api/v1/jobs", json=JOB | {"id": name})
    assert refused.status_code == 422
    assert not service.api.controller.state.jobs


def test_paths_of_logs_can_not_escape(service, tmp_path):
    """The job exists and has run, so its log is read; whatever is put into the address, no other file is."""
    service.alice.post("/api/v1/jobs", json=JOB | {"id": "x"})
    wait_until(lambda: service.alice.get("/api/v1/jobs/x").json()["attempts"])
    attempts = tmp_path / "attempts"
    mine = attempts / "live" / service.api.controller.store.tokens_of("x")[0]
    mine.mkdir(parents=True)
    (mine / "rank-0.log").write_text("mine")
    for place in (tmp_path, attempts, attempts / "live"):
        (place / "secret").write_text("treasure")
        (place / "rank-0.log").write_text("treasure")
    assert service.alice.get("/api/v1/jobs/x/logs").text == "mine"
    for job in (
        "x%2f..",
        "x%2f..%2f..%2fsecret",
        "..%2fx",
        "x/../x/../..",
        ".",
        "%2e%2e",
        "x%00",
        "live%2fx",
    ):
        answer = service.alice.get(f"/api/v1/jobs/{job}/logs")
        assert answer.status_code in (404, 405)
        assert "treasure" not in answer.text
    for query in ("rank=../../secret", "rank=0/../../secret", "attempt=../1", "attempt=1/..", "rank=-1"):
        answer = service.alice.get(f"/api/v1/jobs/x/logs?{query}")
        assert answer.status_code == 422
        assert "treasure" not in answer.text


@pytest.mark.parametrize("model", ["leak.yaml", "./leak.yaml", "/etc/passwd", "../leak.yml"])
@pytest.mark.parametrize("route", ["jobs", "dry-run"])
def test_a_model_is_never_a_file_of_the_controllers(service, tmp_path, monkeypatch, model, route):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leak.yaml").write_text("bytes: hunter2secret\n")
    refused = service.alice.post(f"/api/v1/{route}", json={"spec": {"run": "x", "model": model}})
    assert refused.status_code == 404
    assert f"no model is called {model!r}" in refused.json()["detail"]
    assert "hunter2secret" not in refused.text


def test_a_profile_may_be_sent_with_the_job(service):
    model = {"name": "mine", "parameter_bytes": 4.4e8, "compute_s": {"V100": 0.12}}
    job = service.alice.post("/api/v1/jobs", json={"spec": JOB["spec"] | {"model": model}}).json()["job"]
    assert service.alice.get(f"/api/v1/jobs/{job}").json()["spec"]["model"] == model
    assert service.api.controller.state.jobs[job].profile["compute_s"] == {"V100": 0.12}


@pytest.mark.parametrize(
    ("asked", "most"),
    [({"priority": 1}, "at most 0"), ({"grace": "11m"}, "at most 10m"), ({"restarts": 101}, "at most 100")],
)
@pytest.mark.parametrize("route", ["jobs", "dry-run"])
def test_bounds_apply_to_users_and_not_to_admins(service, asked, most, route):
    body = {"spec": JOB["spec"] | asked}
    refused = service.alice.post(f"/api/v1/{route}", json=body)
    assert refused.status_code == 403
    assert most in refused.json()["detail"]
    assert service.admin.post(f"/api/v1/{route}", json=body).status_code in (200, 201)
    batch = service.alice.post("/api/v1/jobs/batch", json={"jobs": [body, JOB]}).json()["jobs"]
    assert most in batch[0]["error"]
    assert batch[1]["state"] == "queued"


def test_bounds_can_be_configured(service):
    service.api._bounds = Bounds(priority=50, grace_s=3600, restarts=1)
    spec = JOB["spec"] | {"priority": 50, "grace": "1h", "restarts": 1}
    assert service.alice.post("/api/v1/jobs", json={"spec": spec}).status_code == 201
    assert service.alice.post("/api/v1/jobs", json={"spec": spec | {"restarts": 2}}).status_code == 403


@pytest.mark.parametrize("mark", ["\u202e", "\u2066", "\u200b", "\u0085", "\u2028", "\x1b", "\n", "\ufeff"])
def test_a_name_with_control_characters_is_refused(service, mark):
    refused = service.alice.post("/api/v1/jobs", json={"spec": JOB["spec"] | {"name": f"job{mark}gpj"}})
    assert refused.status_code == 422
    assert "direction of text" in refused.text
    assert (
        service.alice.post("/api/v1/jobs", json={"spec": JOB["spec"] | {"name": "日本 🙂 é"}}).status_code
        == 201
    )


def test_a_login_code_works_once_and_has_the_rights_of_its_creator(service):
    code = service.alice.post("/api/v1/login-code").json()["code"]
    answer = service.anonymous.post("/api/v1/login", json={"code": code})
    assert answer.status_code == 201
    page = service.client(answer.json()["token"])
    assert page.get("/api/v1/me").json()["user"] == "alice"
    assert page.get("/api/v1/me").json()["role"] == "user"
    assert service.anonymous.post("/api/v1/login", json={"code": code}).status_code == 401
    assert service.anonymous.post("/api/v1/login-code").status_code == 401


def test_a_session_ends_with_the_token_that_it_was_made_from(service, tmp_path):
    def page_of(client):
        code = client.post("/api/v1/login-code").json()["code"]
        return service.client(service.anonymous.post("/api/v1/login", json={"code": code}).json()["token"])

    own = Tokens(tmp_path).add("dora", "user", expires=time.time() + 1000)
    page, other = page_of(service.client(own)), page_of(service.alice)
    assert page.get("/api/v1/me").status_code == 200
    assert page.post("/api/v1/login-code").status_code == 403
    code = service.client(own).post("/api/v1/login-code").json()["code"]
    Tokens(tmp_path).revoke(own)
    assert page.get("/api/v1/me").status_code == 401
    assert service.anonymous.post("/api/v1/login", json={"code": code}).status_code == 401
    assert other.get("/api/v1/me").status_code == 200


def test_a_session_of_the_account_can_not_create_login_codes(tmp_path):
    tokens = Tokens(tmp_path)
    session = tokens.add_session(OWNER, time.time() + 1000)
    assert tokens.caller(session) == OWNER
    assert tokens.caller(session).session


def test_only_the_newest_codes_of_a_user_count():
    codes, alice, bob = LoginCodes(), Caller("alice", "user"), Caller("bob", "user")
    kept = codes.add(bob)
    made = [codes.add(alice) for _ in range(25)]
    assert [code for code in made if codes.take(code)] == made[-10:]
    assert codes.take(kept) == bob


def test_tokens_are_locked_against_other_processes_from_reading_to_writing(tmp_path, monkeypatch):
    tokens, held = Tokens(tmp_path), []

    def watched(call):
        def do():
            with (tmp_path / "tokens.lock").open("r+") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(call.__name__)
            call()

        return do

    for name in ("_load", "_write"):
        monkeypatch.setattr(tokens, name, watched(getattr(tokens, name)))
    tokens.revoke(tokens.add("alice", "user"))
    tokens.remove("alice")
    assert held == ["_load", "_write"] * 3


def test_without_its_file_no_token_is_known(service, tmp_path):
    assert service.alice.get("/api/v1/status").status_code == 200
    (tmp_path / "tokens.json").unlink()
    assert service.alice.get("/api/v1/status").status_code == 401


def test_a_token_that_has_expired_no_longer_works(service, tmp_path):
    tokens = Tokens(tmp_path)
    old, new = (tokens.add("dora", "user", label="ci", expires=time.time() + s) for s in (-1, 1000))
    assert service.client(old).get("/api/v1/status").status_code == 401
    assert service.client(new).get("/api/v1/status").status_code == 200
    assert [one.label for one in tokens.listed() if one.user == "dora"] == ["ci"]


def test_a_request_that_is_too_large_is_refused(service, monkeypatch):
    monkeypatch.setattr("berth.live.api.limits._REFUSED_S", 0.1)  # nothing more comes
    huge = service.alice.post("/api/v1/jobs", content=b" " * (17 << 20))
    assert huge.status_code == 413

    def drip():
        for _ in range(18):
            yield b" " * (1 << 20)

    assert service.alice.post("/api/v1/jobs", content=drip()).status_code == 413  # without a length, too


@pytest.mark.slow
def test_too_many_requests_are_refused_for_each_caller():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    class Known:
        def caller(self, token):
            return Caller(token, "user") if token in ("one", "other") else None

    def ask(token):
        return TestClient(limited, headers={"Authorization": f"Bearer {token}"}).get("/").status_code

    limited = Limits(app, Known(), per_s=5.0)
    codes = [ask("one") for _ in range(30)]
    assert codes[:5] == [204] * 5
    assert codes.count(429) > 5
    assert ask("other") == 204
    codes = [ask(f"made up {number}") for number in range(30)]  # none of them known: all are one peer's
    assert codes[:5] == [204] * 5
    assert codes.count(429) > 5
    assert ask("other") == 204


def test_forecasts_are_made_a_few_at_a_time(service, monkeypatch):
    monkeypatch.setattr("berth.live.api.service._FORECAST_WAIT_S", 0.01)
    with service.api._forecasting(), service.api._forecasting():
        busy = service.alice.post("/api/v1/dry-run", json=JOB)
    assert busy.status_code == 429
    assert service.alice.post("/api/v1/dry-run", json=JOB).status_code == 200


def test_a_token_is_neither_stored_nor_logged(service, tmp_path, caplog):
    token = service.alice.headers["authorization"].split()[1]
    service.alice.get("/api/v1/status")
    assert token not in (tmp_path / "tokens.json").read_text()
    assert token not in caplog.text
    assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0


def test_a_token_that_was_taken_away_no_longer_works(service, tmp_path):
    assert Tokens(tmp_path).remove("alice") == 1
    assert service.alice.get("/api/v1/status").status_code == 401
    assert service.bob.get("/api/v1/status").status_code == 200


def scraped(service):
    """The value of each metric, by its name and labels."""
    text = service.anonymous.get("/metrics").text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {(one.name, *one.labels.values()): one.value for one in samples}


def test_metrics_are_what_prometheus_reads(service):
    service.alice.post("/api/v1/jobs", json=JOB)
    found = scraped(service)
    assert sum(value for (name, *_), value in found.items() if name == "berth_devices") == 16
    assert found["berth_submitted_total",] == 1
    assert {name for name, *_ in found} == {
        "berth_backend_up",
        "berth_devices",
        "berth_jobs",
        "berth_journal_records",
        "berth_machines_shut",
        "berth_pass_seconds",
        "berth_passes_total",
        "berth_policy_up",
        "berth_submitted_total",
        "berth_timer_seconds",
    }


@pytest.mark.slow
def test_metrics_count_what_runs_on_a_drained_machine_as_busy_and_are_exact(service):
    state = service.api.controller.state
    service.alice.post("/api/v1/jobs", json=JOB)
    wait_until(lambda: state.attempts)
    machine = state.cluster.machines[next(iter(state.attempts.values())).machines[0]].name
    service.admin.post(f"/api/v1/machines/{machine}/drain")
    state.submitted = 123_456_789
    found = scraped(service)
    assert (found["berth_devices", "busy"], found["berth_devices", "shut"]) == (4, 0)
    assert found["berth_machines_shut", "drained"] == 1
    assert found["berth_submitted_total",] == 123_456_789


def test_a_character_split_between_two_parts_of_a_log_is_kept(service, tmp_path):
    service.alice.post("/api/v1/jobs", json=JOB | {"id": "poet"})
    wait_until(lambda: service.alice.get("/api/v1/jobs/poet").json()["attempts"])
    folder = tmp_path / "attempts" / "live" / service.api.controller.store.tokens_of("poet")[0]
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_bytes("aé日🙂".encode() + b"\xff\xf0\x9f")
    text, offset = "", 0
    for limit in (2, 2, 4, 5, 100, 100):
        answer = service.alice.get(f"/api/v1/jobs/poet/logs?offset={offset}&limit={limit}")
        text, offset = text + answer.text, int(answer.headers["x-next-offset"])
    assert (text, offset) == ("aé日🙂\ufffd", 11)  # the last one may still be written to its end
    assert service.alice.get("/api/v1/jobs/poet/logs?offset=11&limit=1").text == "\ufffd"


def test_a_dry_run_conflicts_with_no_job_id(service):
    service.alice.post("/api/v1/jobs", json=JOB | {"id": "dry-run"})
    assert service.alice.post("/api/v1/dry-run", json=JOB).json()["machines"]


def test_dry_run_and_what_if_are_labelled_modelled(service):
    dry = service.alice.post("/api/v1/dry-run", json=JOB).json()
    assert dry["modelled"] is True
    assert sum(dry["machines"].values()) == 4
    what = service.alice.post("/api/v1/what-if", json={"add_racks": 1}).json()
    assert what["modelled"] is True
    refused = service.alice.post("/api/v1/what-if", json={"policy": "/tmp/mine.py:Mine"})
    assert refused.status_code == 422  # no code comes in by this door
    said = json.dumps(refused.json())
    assert "a policy in a file is code, which only the user who starts the controller may name" in said
    assert "only simulate" not in said


def test_events_are_the_committed_records(service):
    records = []
    service.api.controller.listeners.append(lambda first, made: records.extend(made))
    service.alice.post("/api/v1/jobs", json=JOB)
    submitted = next(record for record in records if record.kind != "pass")  # a pass may be due at any moment
    assert submitted.kind == "submitted"
    from berth.live.api.events import public

    assert "secret command" not in json.dumps(public(submitted))


@pytest.mark.slow
def test_the_description_names_every_moment_and_every_length_of_time(service):
    """Names of times carry no unit, so the schema states it."""
    about = service.anonymous.get("/openapi.json").json()["info"]["description"]
    moments = set(re.findall(r"`(\w+)`", about.partition("Points in time are")[2].partition("\n\n")[0]))
    for number in range(3):
        service.alice.post("/api/v1/jobs", json=JOB | {"id": f"job-{number}"})
    wait_until(lambda: service.alice.get("/api/v1/jobs/job-0").json()["state"] == "running")
    service.alice.post("/api/v1/jobs/job-0/cancel")
    paths = [
        "status",
        "jobs",
        "jobs?over=true",
        "jobs/job-1",
        "jobs/job-1/why",
        "jobs/job-1/history",
        "now",
        "journal",
    ]
    answers = [service.alice.get(f"/api/v1/{path}").json() for path in paths]
    answers.append(service.alice.post("/api/v1/dry-run", json=JOB).json())
    found = {name for answer in answers for name in names_of_moments(answer)}
    assert {"submitted", "since", "began", "time"} <= found <= moments


def names_of_moments(reported, name=""):
    """Fields with numbers that can only be Unix times."""
    if isinstance(reported, dict):
        for key, value in reported.items():
            yield from names_of_moments(value, key)
    elif isinstance(reported, list):
        for value in reported:
            yield from names_of_moments(value, name)
    elif isinstance(reported, float) and reported > 1e9:
        yield name


def test_several_are_cancelled_at_once_or_none(service):
    at_once = {"spec": JOB["spec"] | {"grace": "0s"}}
    mine = [
        service.alice.post("/api/v1/jobs", json=at_once | {"id": name}).json()["job"]
        for name in ("one", "two")
    ]
    other = service.bob.post("/api/v1/jobs", json=JOB).json()["job"]
    states = lambda: [service.admin.get(f"/api/v1/jobs/{job}").json()["state"] for job in [*mine, other]]  # noqa: E731
    for wrong, status in ((other, 403), ("nobody", 404)):
        assert service.alice.post("/api/v1/cancel", json={"jobs": [*mine, wrong]}).status_code == status
    assert not {"stopping", "cancelled"} & set(states())
    reported = service.alice.post("/api/v1/cancel", json={"jobs": ["on", "two", "one"]}).json()
    assert reported == {"jobs": [{"job": "one", "state": "cancelled"}, {"job": "two", "state": "cancelled"}]}
    wait_until(lambda: states()[:2] == ["cancelled"] * 2)
    again = service.alice.post("/api/v1/cancel", json={"jobs": mine}).json()["jobs"]
    assert again == [{"job": job, "state": "cancelled", "already_ended": True} for job in mine]
    assert service.alice.post("/api/v1/cancel", json={"jobs": []}).status_code == 422


def heard(events, after, most):
    """The events that a listener receives, as numbers and names."""

    async def listen():
        stream, found = events.stream(after), []
        async for text in stream:
            found += [line for line in text.split("\n") if line.startswith(("id", "event: gap"))]
            if len(found) >= most:
                break
        await stream.aclose()
        return found

    return asyncio.run(asyncio.wait_for(listen(), 300))


def test_a_listener_hears_each_record_once_also_those_of_the_moment_it_comes(crank):
    live = crank()
    events = Events(live.controller)
    first = live.controller.store.seq
    live.submit()

    class Kept(deque):
        """While it is copied something is committed."""

        def __iter__(self):
            if not self.asked:
                self.asked = True
                live.submit()
            return super().__iter__()

    events._kept = Kept(events._kept)
    events._kept.asked = False
    last = live.controller.store.seq
    reported = heard(events, first, most=2 * (last - first))
    assert reported == [f"id: {number}" for number in range(first + 1, first + 1 + len(reported))]
    assert len(reported) > last - first


def test_a_client_that_reconnects_after_a_restart_learns_of_the_gap(crank):
    live = crank()
    live.submit()
    seq = live.controller.store.seq
    live.restart()  # its first record was written before anybody could listen
    events = Events(live.controller)
    live.submit()
    assert heard(events, seq, most=1) == ["event: gap"]
    assert heard(Events(live.controller), seq, most=1) == ["event: gap"]  # also if nothing has happened since
    assert heard(events, seq + 1, most=1) == [f"id: {seq + 2}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"grace": 30}, 422),
        ({"grace": "0s"}, 201),
        ({"grace": "0"}, 422),
        ({"duration": "0s"}, 422),
        ({"duration": "1.5h"}, 201),
        ({"memory": 1024}, 422),
        ({"memory": "1GiB"}, 201),
        ({"gpus": 2.0}, 201),
        ({"gpus": "2"}, 422),
        ({"restarts": "3"}, 422),
        ({"restarts": True}, 422),
        ({"kind": "V100-16", "any_of": ["V100-16"]}, 409),
        ({"step_pattern": "("}, 409),
        ({"kind": "H100"}, 404),
        ({"env": {"A": "1"}}, 201),
        ({"env": {"no name": "1"}}, 422),
        ({"model": {"parameter_bytes": 1e6, "compute_s": {"V100": 0.1}}}, 201),
        ({"model": {"parameter_bytes": 1e6, "compute_s": {"V100": "0.1"}}}, 422),
        ({"model": {"parameter_bytes": 1e6, "compute_s": {"\u202e": 0.1}}}, 422),
        ({"required": "galaxy"}, 404),
    ],
)
def test_the_schema_accepts_exactly_what_the_api_accepts(service, asked, status):
    body = {"spec": {"run": "x"} | asked}
    assert service.admin.post("/api/v1/jobs", json=body).status_code == status
    schemas = service.anonymous.get("/openapi.json").json()["components"]["schemas"]
    spec = schemas["SentJob"] | {"components": {"schemas": schemas}}
    right = Draft202012Validator(json.loads(json.dumps(spec))).is_valid(body["spec"])
    assert right == (status != 422)


def test_a_job_is_shown_in_a_form_that_can_be_sent_again(service):
    spec = {"run": "x", "duration": "90m", "grace": "936ns", "memory": "80GiB", "restarts": 7}
    first = service.admin.post("/api/v1/jobs", json={"spec": spec}).json()["job"]
    shown = service.admin.get(f"/api/v1/jobs/{first}").json()["spec"]
    assert (shown["duration"], shown["grace"], shown["memory"]) == ("5400s", "0.000000936s", "85899345920B")
    again = service.admin.post("/api/v1/jobs", json={"spec": shown}).json()["job"]
    assert service.admin.get(f"/api/v1/jobs/{again}").json()["spec"] == shown


def test_a_wrong_method_is_answered_with_the_allowed_ones(service):
    assert service.admin.options("/api/v1/jobs").headers["allow"] == "GET, POST"
    assert service.admin.delete("/api/v1/jobs/batch").headers["allow"] == "POST"
    assert service.admin.delete("/api/v1/jobs/j1/cancel").headers["allow"] == "POST"


@pytest.mark.parametrize("value", ['"a\\ud800"', "1e400", "NaN"])
def test_values_that_json_can_not_hold_are_refused_as_invalid(service, value):
    field = "name" if value.startswith('"') else "gpus"
    body = f'{{"spec": {{"run": ["true"], "{field}": {value}}}}}'
    answer = service.alice.post("/api/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)


def test_commands_and_metrics_are_answered_while_all_threads_are_busy(service):
    async def ask():
        limiter = to_thread.current_default_thread_limiter()
        for _ in range(int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(object())
        transport = httpx2.ASGITransport(app=service.app)
        headers = dict(service.alice.headers)
        async with (
            asyncio.timeout(300),
            httpx2.AsyncClient(transport=transport, base_url="http://berth", headers=headers) as client,
        ):
            return [
                (await client.request(method, path, json=body)).status_code
                for method, path, body in [
                    ("POST", "/api/v1/jobs", JOB | {"id": "busy"}),
                    ("POST", "/api/v1/jobs/busy/cancel", None),
                    ("GET", "/metrics", None),
                ]
            ]

    assert asyncio.run(ask()) == [201, 200, 200]
