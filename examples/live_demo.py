"""The live part of the demo: a small cluster on this machine, and a training that is evicted and resumes.

    python examples/live_demo.py [FOLDER]

Every line printed is real output: a controller, its jobs and the processes they run are started here and ended here.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

BERTH = str(Path(sys.executable).with_name("berth"))
TIMEOUT_S = 120.0


class Live:
    """A controller with its state in a folder."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.log = folder / "up.log"
        self.folder = folder

    def start(self) -> None:
        """Start the controller and wait until it answers."""
        command = f"up --cluster 2x2x2 --policy srtf --state {self.state} --port 0"
        print(f"$ berth {command} &", flush=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen([BERTH, *shlex.split(command)], stdout=log, stderr=log)
        self.until("is up", self.log.read_text)
        print(self.log.read_text(), flush=True)

    def run(self, command: str, *, show: bool = True) -> str:
        """Run a command as a user would type it."""
        if show:
            print(f"$ berth {command}", flush=True)
        words = shlex.split(command)
        at = words.index("--") if "--" in words else len(words)
        whole = [BERTH, *words[:at], "--state", str(self.state), *words[at:]]
        done = subprocess.run(whole, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"berth {command}: {done.stderr}")
        if show:
            print(done.stdout, flush=True)
        return done.stdout

    def until(self, word: str, text: Callable[[], str]) -> None:
        """Wait until a word appears."""
        end = time.monotonic() + TIMEOUT_S
        while word not in text():
            if time.monotonic() > end or self.process.poll() is not None:
                sys.exit(f"{word!r} did not appear; see {self.log}")
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop the controller."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def main(folder: Path) -> None:
    """Run the demo in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    live = Live(folder)
    live.start()
    try:
        play(live)
    finally:
        live.stop()


def play(live: Live) -> None:
    """Run a long training, and submit a short job that needs every device."""
    home = live.folder.resolve() / "run"
    train = f"{BERTH} train ctrdnn --examples 60k --batch 500 --checkpoint {home} --checkpoint-every 20"
    live.run(f"submit --id train --name ctr --gpus 2 --per machine --duration 2h -- {train}")
    live.until("step-", lambda: " ".join(path.name for path in home.glob("*/")))
    short = "sh -c 'echo rank $RANK of $WORLD_SIZE; sleep 3'"
    live.run(f"submit --id quick --name evaluation --gpus 8 --duration 3s -- {short}")
    live.until("queued", lambda: live.run("why train", show=False))
    live.run("queue")
    live.run("why train")
    live.until("quick finished", lambda: live.run("wait quick", show=False) or "quick finished")
    live.run("logs quick")
    live.until("train finished", lambda: live.run("wait train", show=False) or "train finished")
    live.run("history train")
    print(f"$ berth replay {live.state}", flush=True)
    subprocess.run([BERTH, "replay", str(live.state)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out/live"))
