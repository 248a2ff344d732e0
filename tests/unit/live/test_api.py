"""The HTTP API: who may do what, what is answered, and what is refused."""

import asyncio
import json
import re
import threading
import time
from collections import deque

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from berth.clock import MachineClock
from berth.cluster.load import load_cluster
from berth.live.api.app import make_app
from berth.live.api.desk import Desk
from berth.live.api.events import Events
from berth.live.api.limits import Limits
from berth.live.api.tokens import Tokens, admin_token
from berth.live.controller import Controller
from berth.live.setup import Setup
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
    admin_token(tmp_path, tokens)
    desk = Desk(controller, tokens, tmp_path / "attempts")
    over = threading.Event()
    thread = threading.Thread(target=controller.run, args=(over,))
    thread.start()
    yield Service(desk, tokens)
    over.set()
    controller.called.set()
    thread.join()
    controller.close()


class Service:
    def __init__(self, desk, tokens):
        self.desk, self.app = desk, make_app(desk)
        self.admin = self.client(tokens.add("root", "admin"))
        self.alice = self.client(tokens.add("alice", "user"))
        self.bob = self.client(tokens.add("bob", "user"))
        self.nobody = TestClient(self.app)

    def client(self, token):
        return TestClient(self.app, headers={"Authorization": f"Bearer {token}"})


def wait_until(condition, timeout_s=30.0):
    """The controller runs by itself; the bound is only there so that a broken test ends."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


JOB = {"spec": {"run": "secret command", "gpus": 4, "env": {"SECONDS": "1000"}}}


def test_without_a_token_nothing_is_told(service):
    for method, path in [("GET", "status"), ("GET", "jobs"), ("POST", "jobs"), ("GET", "events")]:
        assert service.nobody.request(method, f"/api/v1/{path}", json=JOB).status_code == 401
    wrong = service.client("wrong")
    assert wrong.get("/api/v1/status").status_code == 401


def test_a_job_is_taken_and_shown(service):
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


def test_what_a_job_runs_is_its_owners_business(service):
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
    assert unknown.status_code == 400
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
def test_what_makes_no_sense_is_named(service, body, said):
    refused = service.alice.post("/api/v1/jobs", json=body)
    assert refused.status_code == 422
    assert said in refused.text


def test_what_can_never_run_is_refused_with_the_reason(service):
    refused = service.alice.post("/api/v1/jobs", json={"spec": {"run": "x", "gpus": 99}})
    assert refused.status_code == 400
    assert "99 devices" in refused.json()["detail"]


def test_many_at_once_each_with_its_answer(service):
    jobs = [{"spec": {"run": "x"}, "id": f"b{n}"} for n in range(50)] + [{"spec": {"run": "x", "gpus": 99}}]
    answers = service.alice.post("/api/v1/jobs/batch", json={"jobs": jobs}).json()["jobs"]
    assert [one["job"] for one in answers[:50]] == [f"b{n}" for n in range(50)]
    assert "99 devices" in answers[50]["error"]


def test_the_beginning_of_an_id_will_do_if_it_names_one(service):
    for name in ("alpha-1", "alpha-2", "beta"):
        service.alice.post("/api/v1/jobs", json=JOB | {"id": name})
    assert service.alice.get("/api/v1/jobs/be").json()["id"] == "beta"
    several = service.alice.get("/api/v1/jobs/alpha")
    assert several.status_code == 404
    assert "alpha-1, alpha-2" in several.json()["detail"]


def test_paths_of_logs_can_not_escape(service, tmp_path):
    (tmp_path / "secret").write_text("treasure")
    for job in ("..%2f..%2fsecret", "....//secret", "%2e%2e/secret", "a/../../secret"):
        answer = service.admin.get(f"/api/v1/jobs/{job}/logs")
        assert answer.status_code in (404, 405)
        assert "treasure" not in answer.text
    refused = service.admin.get("/api/v1/jobs/x/logs?rank=../../secret")
    assert refused.status_code == 422


def test_a_request_that_is_too_large_is_refused(service):
    huge = service.alice.post("/api/v1/jobs", content=b" " * (17 << 20))
    assert huge.status_code == 413

    def drip():
        for _ in range(18):
            yield b" " * (1 << 20)

    assert service.alice.post("/api/v1/jobs", content=drip()).status_code == 413  # without a length, too


def test_too_many_requests_are_refused_for_whoever_sends_them():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limited = Limits(app, per_s=5.0)
    one = TestClient(limited, headers={"Authorization": "Bearer one"})
    codes = [one.get("/").status_code for _ in range(30)]
    assert codes[:5] == [204] * 5
    assert codes.count(429) > 5
    assert TestClient(limited, headers={"Authorization": "Bearer other"}).get("/").status_code == 204


def test_forecasts_are_made_a_few_at_a_time(service, monkeypatch):
    monkeypatch.setattr("berth.live.api.desk._THINKING_S", 0.01)
    with service.desk._thinking(), service.desk._thinking():
        busy = service.alice.post("/api/v1/dry-run", json=JOB)
    assert busy.status_code == 429
    assert service.alice.post("/api/v1/dry-run", json=JOB).status_code == 200


def test_a_token_is_never_at_rest_nor_in_a_log(service, tmp_path, caplog):
    token = service.alice.headers["authorization"].split()[1]
    service.alice.get("/api/v1/status")
    assert token not in (tmp_path / "tokens.json").read_text()
    assert token not in caplog.text
    assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0
    assert (tmp_path / "admin.token").stat().st_mode & 0o077 == 0


def test_a_token_that_was_taken_away_no_longer_works(service, tmp_path):
    assert Tokens(tmp_path).remove("alice") == 1
    assert service.alice.get("/api/v1/status").status_code == 401
    assert service.bob.get("/api/v1/status").status_code == 200


def test_metrics_are_what_prometheus_reads(service):
    from prometheus_client.parser import text_string_to_metric_families

    service.alice.post("/api/v1/jobs", json=JOB)
    found = {
        family.name: family for family in text_string_to_metric_families(service.nobody.get("/metrics").text)
    }
    devices = {sample.labels["use"]: sample.value for sample in found["berth_devices"].samples}
    assert sum(devices.values()) == 16
    assert found["berth_submitted"].samples[0].value == 1


def test_metrics_count_what_runs_on_a_drained_machine_as_busy_and_are_exact(service):
    books = service.desk.controller.books
    service.alice.post("/api/v1/jobs", json=JOB)
    wait_until(lambda: books.attempts)
    machine = books.cluster.machines[next(iter(books.attempts.values())).machines[0]].name
    service.admin.post(f"/api/v1/machines/{machine}/drain")
    books.submitted = 123_456_789
    text = service.nobody.get("/metrics").text
    assert 'berth_devices{use="busy"} 4\n' in text
    assert 'berth_devices{use="shut"} 0\n' in text
    assert "berth_submitted_total 123456789\n" in text


def test_a_letter_of_a_log_that_lies_between_two_pieces_is_whole(service, tmp_path):
    service.alice.post("/api/v1/jobs", json=JOB | {"id": "poet"})
    wait_until(lambda: service.alice.get("/api/v1/jobs/poet").json()["attempts"])
    folder = tmp_path / "attempts" / "live" / f"{service.desk.controller.store.name}-poet.1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_bytes("aé日🙂".encode() + b"\xff\xf0\x9f")
    text, offset = "", 0
    for limit in (2, 2, 4, 5, 100, 100):
        answer = service.alice.get(f"/api/v1/jobs/poet/logs?offset={offset}&limit={limit}")
        text, offset = text + answer.text, int(answer.headers["x-next-offset"])
    assert (text, offset) == ("aé日🙂\ufffd", 11)  # the last one may still be written to its end
    assert service.alice.get("/api/v1/jobs/poet/logs?offset=11&limit=1").text == "\ufffd"


def test_a_dry_run_minds_no_job_whatever_it_is_called(service):
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


def test_events_tell_what_was_committed(service):
    records = []
    service.desk.controller.listeners.append(lambda first, made: records.extend(made))
    service.alice.post("/api/v1/jobs", json=JOB)
    assert records[0].kind == "submitted"
    from berth.live.api.events import public

    assert "secret command" not in json.dumps(public(records[0]))


def test_the_description_names_every_moment_and_every_length_of_time(service):
    """Names of moments have no unit in them, so it is told with the schema."""
    about = service.nobody.get("/openapi.json").json()["info"]["description"]
    moments = set(re.findall(r"`(\w+)`", about.partition("Moments are")[2].partition("\n\n")[0]))
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


def names_of_moments(told, name=""):
    """Fields with numbers that can only be Unix times."""
    if isinstance(told, dict):
        for key, value in told.items():
            yield from names_of_moments(value, key)
    elif isinstance(told, list):
        for value in told:
            yield from names_of_moments(value, name)
    elif isinstance(told, float) and told > 1e9:
        yield name


def test_several_are_cancelled_at_once_or_none(service):
    mine = [
        service.alice.post("/api/v1/jobs", json=JOB | {"id": name}).json()["job"] for name in ("one", "two")
    ]
    other = service.bob.post("/api/v1/jobs", json=JOB).json()["job"]
    states = lambda: [service.admin.get(f"/api/v1/jobs/{job}").json()["state"] for job in [*mine, other]]  # noqa: E731
    for wrong, status in ((other, 403), ("nobody", 404)):
        assert service.alice.post("/api/v1/cancel", json={"jobs": [*mine, wrong]}).status_code == status
    assert not {"stopping", "cancelled"} & set(states())
    told = service.alice.post("/api/v1/cancel", json={"jobs": ["on", "two", "one"]}).json()
    assert told == {"jobs": [{"job": "one", "state": "cancelled"}, {"job": "two", "state": "cancelled"}]}
    wait_until(lambda: states()[:2] == ["cancelled"] * 2)
    again = service.alice.post("/api/v1/cancel", json={"jobs": mine}).json()["jobs"]
    assert again == [{"job": job, "state": "cancelled", "was_over": True} for job in mine]
    assert service.alice.post("/api/v1/cancel", json={"jobs": []}).status_code == 422


def heard(events, after, most):
    """What a listener is told, as numbers and names of events."""

    async def listen():
        stream, found = events.stream(after), []
        async for text in stream:
            found += [line for line in text.split("\n") if line.startswith(("id", "event: gap"))]
            if len(found) >= most:
                break
        await stream.aclose()
        return found

    return asyncio.run(asyncio.wait_for(listen(), 20))


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
    told = heard(events, first, most=2 * (last - first))
    assert told == [f"id: {number}" for number in range(first + 1, first + 1 + len(told))]
    assert len(told) > last - first


def test_who_comes_back_to_a_controller_that_began_anew_is_told_of_the_gap(crank):
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
def test_no_request_whatever_surprises_the_server(service):
    """Generated requests, valid and not, against every route: the answer is as the schema says, and never 500."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", service.app).exclude(path="/api/v1/events")
    headers = {"Authorization": service.admin.headers["authorization"]}
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=15, suppress_health_check=list(HealthCheck), database=None)
        def check(case):
            # a request may be well formed and still ask for what this cluster has not
            case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

        check()
