"""The work of `benchmarks/train.py` by others, side by side (`python benchmarks/train_peers.py`); never required.

Each peer gets an environment of its own below a cache folder, made once. One that can't be installed is said to be
missing, with the last words of pip, and the others go on. All peers are processes with one thread that train the same
examples by turns; the figure is CPU milliseconds per 1,000 examples, the median of the turns, the spread the distance
between the quartiles, the ratios are medians of those within a turn: to the floor, and to berth, where a peer that is
faster is a bar missed. AUC is progressive, over the
last quarter. All but berth fold ids onto a table of a million rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from berth.train.data.clicks import ClickStream
from results import Figure, figure, finish, options

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
    """A process that trains on request."""

    process: subprocess.Popen[str]
    cpu_ms: list[float] = field(default_factory=list)  # per 1,000 examples, of each turn

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise MissingError("it ended before it was asked to")
        reported: dict[str, Any] = json.loads(line)
        return reported

    def turn(self, first: int, last: int, size: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{first} {last}\n")
        self.process.stdin.flush()
        self.cpu_ms.append(self.hear()["cpu_s"] * 1e6 / ((last - first) * size))

    def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        reported = self.hear()
        self.process.wait()
        return reported


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--examples", type=int, default=262_144)
    parser.add_argument("--batches", type=int, nargs="+", default=[4096, 512])
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where environments are kept")
    given = parser.parse_args()
    pythons = interpreters(given.cache)
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        write_examples(Path(folder), given.examples)
        for size in given.batches:
            found += compare(pythons, Path(folder), size, given.examples, given.turns)
    return finish("train-peers", found, given.results)


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


def compare(pythons: dict[str, str], folder: Path, size: int, examples: int, turns: int) -> list[Figure]:
    """All peers by turns at one size of batches."""
    peers = started(pythons, folder, size)
    bounds = np.linspace(0, examples // size, turns + 1).astype(int).tolist()
    for turn in range(turns):
        for name, peer in list(peers.items()):
            try:
                peer.turn(bounds[turn], bounds[turn + 1], size)
            except (MissingError, OSError) as error:
                print(f"{name} can't go on: {error}", flush=True)
                del peers[name]
    facts = {name: peer.end() for name, peer in peers.items()}
    return figures(size, {name: peer.cpu_ms[1:] for name, peer in peers.items()}, facts)


def started(pythons: dict[str, str], folder: Path, size: int) -> dict[str, Peer]:
    """Every peer that comes as far as its first batch."""
    alone = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONWARNINGS": "ignore"}
    peers = {}
    for name, python in pythons.items():
        command = [python, str(HERE / PEERS[name][0]), str(folder), str(size)]
        own = {"PYTHONPATH": _with_this_folder()} if PEERS[name][1] is None else {}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **alone, **own},
        )
        peers[name] = Peer(process)
        try:
            peers[name].hear()
        except (MissingError, ValueError) as error:
            print(f"{name} does not start: {error}", flush=True)
            del peers[name]
    return peers


def _with_this_folder() -> str:
    """Return the path for berth, whose model is here; modules of this folder must not shadow other packages."""
    return os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


def figures(size: int, costs: dict[str, list[float]], facts: dict[str, dict[str, Any]]) -> list[Figure]:
    """From CPU milliseconds of each turn but the first, and what each peer reported at its end."""
    spent, ratios, ahead, learned, memory = (
        f"Batch {size:,}: {what}"
        for what in (
            "CPU ms per 1,000 examples",
            "times the floor",
            "times the CPU time of berth",
            "AUC",
            "memory of the process",
        )
    )
    made = [figure(spent, name, "ms", cost, quartiles=True) for name, cost in costs.items()]
    for name in (one for one in costs if one != FLOOR):
        beside = [mine / other for mine, other in zip(costs[name], costs[FLOOR], strict=True)]
        made.append(figure(ratios, name, "x", beside, quartiles=True, beside=FLOOR))
    for name in (one for one in costs if one not in (FLOOR, BERTH)):
        beside = [other / mine for other, mine in zip(costs[name], costs[BERTH], strict=True)]
        made.append(figure(ahead, name, "x", beside, at_least={"median": 1.0}, quartiles=True, beside=BERTH))
    made += [
        figure(learned, name, "", [reported["auc"]]) for name, reported in facts.items() if name != FLOOR
    ]
    return made + [
        figure(memory, name, "MiB", [reported["resident_mib"]]) for name, reported in facts.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
