"""berth as a wheel with its core dependencies alone: every verb works, or names the extra that it needs."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import typer

from berth.cli.main import app
from berth.extras import install_command
from preloaded import Preloaded

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Hides the modules of every distribution that the core does not depend on, also from processes that verbs start.
BLOCKER = """
import importlib.machinery, json, os
hidden = set(json.loads(os.environ["HIDDEN_MODULES"]))
find = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else find(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""

ON = "--cluster 2x2x4"
TRAIN, PLAN, LIVE = (install_command(extra) for extra in ("train", "plan", "live"))
# Verb and arguments, and what is printed where an extra is missing; run in this order in one folder.
RUNS = [
    ("cluster show", "lab", None),
    ("cluster presets", "", None),
    ("cluster devices", "", None),
    ("models", "bert-large --device H100", None),
    ("policies", "fifo", None),
    ("network show", f"bert-large --gpus 8 {ON}", None),
    ("network fit", "measurements.csv", None),
    ("trace generate", f"jobs.csv {ON} --jobs 30 --seed 1", None),
    ("trace info", "jobs.csv", None),
    ("trace convert", "jobs.csv out.csv", None),
    ("profile", "ctrdnn --stored", None),
    ("profile", "nce", TRAIN),
    ("profile", "models/recommender.py:make_model", TRAIN),
    ("plan", "ctrdnn-8 --devices cpu-core,T4 --throughput 100k/s --out plan.yaml --html plan.html", None),
    ("plan", "ctrdnn --cluster cloud-mix --throughput 100k/s --method berth-lstm", TRAIN),
    ("plan", "ctrdnn --cluster cloud-mix --throughput 100k/s --method genetic", PLAN),
    ("plan", "ctrdnn --cluster cloud-mix --throughput 100k/s --method bayes", PLAN),
    ("plan check", "plan.yaml", None),
    ("plan frontier", "nce --cluster cloud-mix", None),
    ("plan bench", "--quick --only layers --methods exact,greedy", None),
    ("plan bench", "--quick --methods genetic", PLAN),
    ("train", "nce --steps 2", TRAIN),
    ("train", "nce --steps 2 --workers 2", TRAIN),
    ("train", "models/recommender.py:make_model --steps 2", TRAIN),
    ("evaluate", "run1 --examples 100", TRAIN),
    ("predict", "run1 --data clicks.parquet --out predictions.csv", TRAIN),
    ("export", "run1 --out served", TRAIN),
    ("data show", "clicks.parquet", TRAIN),
    ("data criteo", "--rows 100 --out clicks.tsv", TRAIN),
    ("table info", "run1", "holds no checkpoint"),
    ("table export", "run1 rows.parquet", TRAIN),
    ("table shrink", "run1 run2 --shorter-than 0.01", TRAIN),
    ("table diff", "run1 run1", "holds no checkpoint"),
    ("view", "events.parquet", LIVE),
    ("up", ON, LIVE),
]
SIMULATED = [
    ("trace generate", f"jobs.csv {ON} --jobs 30 --seed 1 --force", None),
    ("simulate", f"jobs.csv {ON} --policy fifo --policy srtf --html report.html", None),
    ("compare", f"jobs.csv {ON} --policy fifo --policy srtf", None),
    ("sweep", f"{ON} --policy fifo --policy srtf --load 0.7 --jobs 20", None),
    ("explain", f"jobs.csv longest-wait {ON}", None),
    ("policies check", "fifo --scenarios 1", None),
]
NOBODY = "no controller has its state"
# The clients of a controller get as far as finding that there is none.
ASKS = [
    ("submit", "--id j1 --gpus 1 --duration 1m -- true", NOBODY),
    ("wait", "j1", NOBODY),
    ("queue", "--over", NOBODY),
    ("why", "j1", NOBODY),
    ("history", "j1", NOBODY),
    ("logs", "j1", NOBODY),
    ("dashboard", "--no-open", NOBODY),
    ("nodes", "", NOBODY),
    ("priority", "j2 3", NOBODY),
    ("what-if", "--add-racks 1", NOBODY),
    ("cancel", "j2", NOBODY),
    ("drain", "r0-m0", NOBODY),
    ("undrain", "r0-m0", NOBODY),
    ("token add", "alice", NOBODY),
    ("token list", "", NOBODY),
    ("token remove", "alice", NOBODY),
    ("replay", "", "there is no journal"),
]


def verbs(command: Any, path: tuple[str, ...] = ()) -> set[str]:
    """Every command that can be called, by the words that call it."""
    below = getattr(command, "commands", {})
    found = {" ".join(path)} if path and (not below or command.invoke_without_command) else set()
    return found.union(*(verbs(one, (*path, name)) for name, one in below.items()))


def name_of(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;(]", requirement)[0].lower().replace("_", "-")


def core_distributions() -> set[str]:
    """The dependencies of the core, and theirs."""
    found: set[str] = set()
    left = [name_of(line) for line in PROJECT["dependencies"]]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        left += [name_of(line) for line in requires if "extra ==" not in line]
    return found


def hidden_modules() -> list[str]:
    core = core_distributions()
    owners = metadata.packages_distributions()
    hidden = {module for module, names in owners.items() if core.isdisjoint(map(name_of, names))}
    return sorted(hidden - {"berth"})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        folder,
        ROOT,
    ]
    subprocess.run(build, check=True, capture_output=True)
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """Runs `berth` from the installed wheel, in a folder of the examples, without anything but the core."""
    place = tmp_path_factory.mktemp("core")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", place / "site", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (place / "blocker").mkdir()
    (place / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    shutil.copytree(ROOT / "examples", place / "examples")
    path = f"{place / 'blocker'}{os.pathsep}{place / 'site'}"
    environment = os.environ | {"PYTHONPATH": path, "HIDDEN_MODULES": json.dumps(hidden_modules())}
    preloaded = Preloaded(place / "programs", environment)

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [place / "programs" / "berth", *words], cwd=place / "examples", env=environment | more,
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    where = [sys.executable, "-c", "import berth; print(berth.__file__)"]
    found = subprocess.run(where, env=environment, cwd=place, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(place / "site"))
    yield run
    preloaded.close()


def words_of(verb: str, arguments: str) -> list[str]:
    return [*verb.removesuffix(" show" if verb == "network show" else "").split(), *arguments.split()]


def test_every_verb_is_run():
    assert {verb for verb, *_ in [*RUNS, *SIMULATED, *ASKS]} == verbs(typer.main.get_command(app))


def test_what_is_hidden_are_the_extras_and_not_the_core():
    hidden = set(hidden_modules())
    assert {"torch", "fastapi", "uvicorn", "ray", "deap", "optuna", "regex"} <= hidden
    assert (
        not {"numpy", "numba", "polars", "pydantic", "yaml", "rich", "scipy", "typer", "zstandard"} & hidden
    )


def test_the_wheel_holds_every_file_of_the_package(wheel):
    listed = subprocess.run(
        ["git", "ls-files", "src/berth"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs git, and a checkout of it")
    wanted = {line.removeprefix("src/") for line in listed.stdout.splitlines() if (ROOT / line).is_file()}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert wanted <= held
    assert "berth/py.typed" in held
    assert not [name for name in held if name.startswith(("tests", "docs", "examples"))]


@pytest.mark.parametrize("runs", [RUNS, SIMULATED, ASKS], ids=["plain", "simulated", "clients"])
def test_with_the_core_alone_every_verb_works_or_says_in_one_line_what_is_missing(core, runs, tmp_path):
    for verb, arguments, said in runs:
        done = core(*words_of(verb, arguments), BERTH_STATE=str(tmp_path / "state"))
        shown = f"berth {verb} {arguments}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, shown
        if said is None:
            assert done.returncode == 0, shown
            continue
        assert (done.returncode, done.stdout) == (2, ""), shown
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, shown
        assert said in errors[0], shown
