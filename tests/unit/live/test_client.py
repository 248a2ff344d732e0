"""A command and what answers it: a controller, another server, or nothing."""

import http.server
import json
import threading

import pytest

from berth.errors import InputError
from berth.live.client import Client
from berth.live.home import Endpoint, UnreachableError, find_endpoint
from berth.live.server import listen, url_of


@pytest.fixture
def stranger():
    """A server that is not a controller; it gives prepared answers."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, body, length = self.server.says
            self.send_response(status)
            self.send_header("Content-Length", str(length or len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Not read."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.client = Client(Endpoint(f"http://127.0.0.1:{server.server_port}", "token"))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("says", "reported"),
    [
        ((200, b"<html>hello</html>", 0), "is not a berth controller"),
        ((200, b'{"jobs": [', 100), "does not answer"),  # and it hangs up in the middle
        ((404, b'"nothing here"', 0), 'status 404: "nothing here"'),
        (
            (502, b"<html>\n  <h1>Bad Gateway</h1>\n" + b"x" * 900, 0),
            "status 502: <html> <h1>Bad Gateway</h1> xxx",
        ),
        ((500, b"", 0), "status 500"),
        ((409, b'{"detail": "no", "hint": "yes"}', 0), "no\n  yes"),
    ],
    ids=["no JSON", "half an answer", "JSON that says nothing", "a proxy's page", "empty", "a refusal"],
)
def test_any_wrong_answer_becomes_one_sentence(stranger, says, reported):
    stranger.says = says
    with pytest.raises(InputError) as error:
        stranger.client.get("jobs")
    assert reported in str(error.value)
    assert len(str(error.value)) < 200


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A state folder whose controller is up, with the token of its admin."""
    monkeypatch.setenv("BERTH_STATE", str(tmp_path))
    for name in ("BERTH_URL", "BERTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "endpoint.json").write_text(json.dumps({"url": "http://10.0.0.5:7070"}))
    (tmp_path / "journal.sqlite").touch()
    return tmp_path


def test_the_controller_of_a_state_folder_is_asked_over_its_socket(home):
    found = find_endpoint(None, None)
    assert (found.folder, found.token) == (home, "")
    assert found.url == "http://10.0.0.5:7070"  # for people
    assert find_endpoint(str(home), None).folder == home


@pytest.mark.parametrize("url", ["http://localhost:7071", "http://10.0.0.5:7070", "http://[::1]:7070"])
def test_a_url_needs_a_token_of_its_own(home, url, monkeypatch):
    with pytest.raises(InputError, match="there is no token for"):
        find_endpoint(None, url)
    monkeypatch.setenv("BERTH_TOKEN", "mine")
    assert find_endpoint(None, url) == Endpoint(url, "mine")


def test_a_killed_controller_has_another_exit_code_than_bad_input(home):
    with pytest.raises(UnreachableError, match="does not answer") as error:
        Client(find_endpoint(None, None)).get("status")
    assert error.value.exit_code == 75


@pytest.mark.parametrize(("host", "begins"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_a_controller_is_found_at_its_own_address(host, begins):
    with listen(host, 0) as sock:
        url = url_of(sock)
        assert url.startswith(begins)
        client = Client(Endpoint(url, "token"))
        assert (client._host, client._port) == (host, sock.getsockname()[1])
