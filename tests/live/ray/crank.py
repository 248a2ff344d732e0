"""A controller over Ray in a process of its own, to be killed: `python crank.py FOLDER ADDRESS`."""

import sys
import time
from pathlib import Path

from berth.live.backends.ray import RayBackend
from berth.live.controller import Controller
from berth.live.setup import Setup
from berth.live.store import Store


def main(folder: Path, address: str) -> None:
    store, backend = Store(folder), RayBackend(folder / "attempts", address, answer_s=60.0)
    controller = Controller(store, backend, Setup(backend.cluster(), policy="fifo", store=store.name))
    while True:
        controller.step()
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
