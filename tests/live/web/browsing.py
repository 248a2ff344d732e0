"""What the tests of the page need: a controller at an address that stays, and pages that remember complaints."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from berth.testing.up import until
from forked_up import ForkedUp

CHROMIUM = os.environ.get("BERTH_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
HOSTILE = [
    '<img src=x onerror="window.pwned=1">',
    '"><script>window.pwned=1</script>',
    "{{7*7}}' onload=pwned()",
]
SHELL = "i=0; while [ $i -lt 6000 ]; do echo line $i of rank $RANK; i=$((i+1)); sleep 0.2; done"
WAIT_S = 300.0
# Toasts go away by themselves, so their texts are kept.
KEEP_TOASTS = """
window.toasts = [];
new MutationObserver((changes) => {
  for (const change of changes) for (const node of change.addedNodes)
    if (node.classList?.contains("toast")) window.toasts.push(node.textContent);
}).observe(document, {childList: true, subtree: true});
"""


AXE = "async () => (await axe.run()).violations.map(one => [one.id, one.nodes[0].html])"  # after axe_rules()


def axe_rules() -> str:
    """The script that checks a page for accessibility."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


def free_port() -> int:
    """A port below those that the system gives to connections, so that it stays free."""
    while True:
        port = random.randrange(30_000, 32_700)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


class Berth(ForkedUp):
    """`berth up` on a port that it has again after a restart."""

    def __init__(self, state: Path, cluster: str, *options: str) -> None:
        self.port = free_port()
        self._token: str | None = None
        super().__init__(state, "--cluster", cluster, "--port", str(self.port), *options)
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        if self._token is None:
            self._token = self.berth("token", "add", "admin", "--role", "admin").stdout.strip()
        return self._token

    @property
    def address(self) -> str:
        """As `berth dashboard` opens it: it works once."""
        return self.berth("dashboard", "--no-open").stdout.strip()

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", method=method)
        request.add_header("Authorization", f"Bearer {token or self.token}")
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(request, data) as response:
            return json.load(response)

    def put(self, name: str, gpus: int, run: str = SHELL) -> str:
        """A job that goes on for a while."""
        return self.submit(run, name=name, gpus=gpus, per="machine", grace="0s", duration="10m")

    def empty(self) -> None:
        """Cancels everything, and waits until it has left."""
        for job in self.ask("GET", "jobs")["jobs"]:
            try:
                self.ask("POST", f"jobs/{job['id']}/cancel")
            except urllib.error.HTTPError as error:
                if error.code != 409:  # it ended by itself meanwhile
                    raise
                error.close()
        until(lambda: not self.ask("GET", "jobs")["jobs"])


class Looker:
    """Opens pages, and remembers everything they complain about."""

    def __init__(self, browser: Any, shots: Path) -> None:
        self._browser, self._shots = browser, shots
        self._contexts: list[Any] = []
        self.complaints: list[str] = []

    def open(
        self,
        address: str,
        *,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        bypass_csp: bool = False,
    ) -> Any:
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
            bypass_csp=bypass_csp,  # for scripts that a test adds
        )
        self._contexts.append(context)
        context.set_default_timeout(WAIT_S * 1000)
        context.add_init_script(KEEP_TOASTS)
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.goto(address)
        return page

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def keep(self, page: Any, name: str) -> None:
        """A picture for people to look at."""
        page.screenshot(path=self._shots / f"{name}.png")

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def make_log(path: Path) -> Path:
    """A day under a policy that evicts, on machines of which some fail."""
    from berth.cluster.load import load_cluster
    from berth.schedule.policies.registry import load_policy
    from berth.simulate.events import write_events
    from berth.simulate.run import Setting, simulate
    from berth.testing import faults
    from berth.workload.distributions import load_durations, load_sizes
    from berth.workload.generate import GenerateSpec, generate

    cluster = load_cluster("2x4x4:H100")
    spec = GenerateSpec(
        jobs=150,
        load=1.3,
        gpus=cluster.devices,
        sizes=load_sizes("powers-of-two"),
        durations=load_durations("exponential:2h"),
        seed=4,
        users=5,
    )
    trace = generate(spec)
    lost = faults([(20_000, 1, "fail"), (30_000, 1, "repair"), (25_000, 5, "drain"), (60_000, 5, "undrain")])
    run = simulate(trace, cluster, load_policy("srtf"), Setting(log=True, faults=lost), name="srtf")
    write_events(run, path)
    return path
