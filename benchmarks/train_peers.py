"""The work of `benchmarks/train.py` by others, side by side (`python benchmarks/train_peers.py`); never required.

Each peer gets an environment of its own below a cache folder, made once. One that can't be installed is said to be
missing, with the last words of pip, and the others go on. All peers are processes with one thread that train the same
examples by turns; the figure is CPU milliseconds per 1,000 examples, the median of the turns, the spread the distance
between the quartiles, the ratio the median of the ratios to the floor of the same turn. AUC is progressive, over the
last quarter. All but berth fold ids onto a table of a million rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from berth.train.data.clicks import ClickStream

HERE = Path(__file__).resolve().parent / "peers"
TORCH = "torch==2.13.0"
FLOOR, BERTH = "MLP floor with input gradient", "berth, one process"
ROWS = 1_000_000


@dataclass(frozen=True)
class Environment:
    """Packages that live together; the second list is installed without what it asks for."""

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


# torchrec asks for FBGEMM's build for CUDA, whose files would overwrite those of the build for processors.
RECOMMENDERS = Environment(
    "torchrec-1.8",
    (TORCH, "numpy", "fbgemm-gpu-cpu==1.8.0", "tensordict", "torchmetrics==1.0.3", "tqdm", "pyre-extensions"),
    ("torchrec==1.8.0",),
)
TENSORFLOW = Environment("tensorflow-2.21", ("tensorflow-cpu==2.21.0", "numpy"))
PEERS: dict[str, tuple[str, Environment | None]] = {  # None: berth's own environment
    FLOOR: ("with_floor.py", None),
    BERTH: ("with_berth.py", None),
    "torch EmbeddingBag + Adagrad": ("with_torch.py", None),
    "torchrec 1.8": ("with_torchrec.py", RECOMMENDERS),
    "FBGEMM TBE 1.8": ("with_fbgemm.py", RECOMMENDERS),
    "TensorFlow 2.21": ("with_tensorflow.py", TENSORFLOW),
}


class MissingError(Exception):
    """A peer that can't be measured here, and why."""


@dataclass
class Peer:
    """A process that trains when it is told to."""

    process: subprocess.Popen[str]
    cpu_ms: list[float] = field(default_factory=list)  # per 1,000 examples, of each turn

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise MissingError("it ended before it was asked to")
        told: dict[str, Any] = json.loads(line)
        return told

    def turn(self, first: int, last: int, size: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{first} {last}\n")
        self.process.stdin.flush()
        self.cpu_ms.append(self.hear()["cpu_s"] * 1e6 / ((last - first) * size))

    def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        told = self.hear()
        self.process.wait()
        return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=262_144)
    parser.add_argument("--batches", type=int, nargs="+", default=[4096, 512])
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where environments are kept")
    options = parser.parse_args()
    pythons = interpreters(options.cache)
    with tempfile.TemporaryDirectory() as folder:
        write_examples(Path(folder), options.examples)
        for size in options.batches:
            compare(pythons, Path(folder), size, options.examples, options.turns)
    return 0


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berth" / "peers"


def interpreters(cache: Path) -> dict[str, str]:
    """The Python of every peer that can be installed; the others are said to be missing."""
    found, failed = {}, dict[str, str]()
    for name, (_, environment) in PEERS.items():
        if environment is None:
            found[name] = sys.executable
            continue
        try:
            if environment.name in failed:
                raise MissingError(failed[environment.name])
            found[name] = str(installed(cache, environment))
        except MissingError as error:
            failed[environment.name] = str(error)
            print(f"{name} can't be installed here: {error}", flush=True)
    return found


def installed(cache: Path, environment: Environment) -> Path:
    """Its Python; the environment is made if it is not there."""
    root = cache / environment.name
    python, done = root / "bin" / "python", root / "installed"
    if not done.exists():
        print(f"installing {', '.join((*environment.packages, *environment.alone))} into {root}", flush=True)
        try:
            venv.create(root, with_pip=True, clear=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise MissingError(f"no environment could be made: {error}") from None
        pip_install(python, list(environment.packages))
        if environment.alone:
            pip_install(python, ["--no-deps", *environment.alone])
        done.touch()
    return python


def pip_install(python: Path, what: list[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise MissingError(words[-1] if words else f"pip ended with {done.returncode}")


def write_examples(folder: Path, examples: int) -> None:
    """The same for all peers."""
    keys, dense, _, labels = ClickStream().draw(0, examples)
    folded = (keys * np.int64(0x9E3779B1) >> 8) % ROWS  # as `WithBag` of benchmarks/train.py
    for name, array in (("keys", keys), ("ids", folded), ("dense", dense), ("labels", labels)):
        np.save(folder / f"{name}.npy", array)


def compare(pythons: dict[str, str], folder: Path, size: int, examples: int, turns: int) -> None:
    """One table."""
    peers = started(pythons, folder, size)
    bounds = np.linspace(0, examples // size, turns + 1).astype(int).tolist()
    for turn in range(turns):
        for name, peer in list(peers.items()):
            try:
                peer.turn(bounds[turn], bounds[turn + 1], size)
            except (MissingError, OSError) as error:
                print(f"{name} can't go on: {error}", flush=True)
                del peers[name]
    print(f"\nbatch {size:,}                      CPU ms per 1,000   ± quartiles   x floor    AUC  RSS MiB")
    for name, peer in peers.items():
        show(name, peer, peers[FLOOR], peer.end())


def started(pythons: dict[str, str], folder: Path, size: int) -> dict[str, Peer]:
    """Every peer that comes as far as its first batch."""
    alone = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONWARNINGS": "ignore"}
    peers = {}
    for name, python in pythons.items():
        command = [python, str(HERE / PEERS[name][0]), str(folder), str(size)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **alone},
        )
        peers[name] = Peer(process)
        try:
            peers[name].hear()
        except (MissingError, ValueError) as error:
            print(f"{name} does not start: {error}", flush=True)
            del peers[name]
    return peers


def show(name: str, peer: Peer, floor: Peer, facts: dict[str, Any]) -> None:
    """One line; the first turn is not counted."""
    low, middle, high = statistics.quantiles(peer.cpu_ms[1:], n=4)
    ratio = statistics.median(
        mine / other for mine, other in zip(peer.cpu_ms[1:], floor.cpu_ms[1:], strict=True)
    )
    learned = "" if name == FLOOR else f"{facts['auc']:.3f}"
    print(
        f"  {name:32} {middle:12.2f} {high - low:13.2f} {ratio:9.2f} {learned:>6} {facts['resident_mib']:8,}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
