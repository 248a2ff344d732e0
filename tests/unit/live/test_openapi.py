"""The API and its description agree: generated requests, right and wrong, against every route, under all checks."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import uvicorn

from berth.clock import MachineClock
from berth.cluster.load import load_cluster
from berth.live.api.app import make_app
from berth.live.api.desk import Desk
from berth.live.api.tokens import Tokens
from berth.live.controller import Controller
from berth.live.server import listen, url_of
from berth.live.setup import Setup
from berth.live.store import Store
from berth.testing.memory import MemoryBackend

pytestmark = pytest.mark.slow
EXAMPLES = 10  # for each route


@pytest.fixture
def address(tmp_path):
    """A controller over HTTP whose jobs end at once, its URL and an admin's token."""
    cluster, store = load_cluster("2x2x4:V100-16"), Store(tmp_path / "state")
    backend = MemoryBackend(cluster, MachineClock(), startup_s=0.0)
    controller = Controller(store, backend, Setup(cluster, "fifo", store=store.name))
    tokens, socket, over = Tokens(store.folder), listen("127.0.0.1", 0), threading.Event()
    app = make_app(Desk(controller, tokens, tmp_path / "attempts"))
    web = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    threads = [
        threading.Thread(target=controller.run, args=(over,)),
        threading.Thread(target=web.run, kwargs={"sockets": [socket]}),
    ]
    for thread in threads:
        thread.start()
    yield url_of(socket), tokens.add("root", "admin")
    web.should_exit = True
    over.set()
    controller.called.set()
    for thread in threads:
        thread.join()
    controller.close()


def test_no_request_whatever_contradicts_the_description(address, tmp_path):
    url, token = address
    config = Path(__file__).with_name("schemathesis.toml")
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(config),
        "run",
        f"{url}/openapi.json",
    ]
    options = [
        "--request-timeout",
        "120",  # a batch of ten thousand jobs, on a busy machine
        "--checks",
        "all",
        "--max-examples",
        str(EXAMPLES),
        "--seed",
        "1",
        "--exclude-path",
        "/api/v1/events",
    ]
    done = subprocess.run(
        [*command, *options, "-H", f"Authorization: Bearer {token}", "--phases", "examples,coverage,fuzzing"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Tested: 25" in done.stdout  # all routes but the endless stream
