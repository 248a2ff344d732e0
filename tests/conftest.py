"""Fixtures for all tests, and the rule that in CI nothing may be skipped."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from forked import relevant
from preloaded import forking

# The first example may have to wait for a kernel to be compiled, and the machine may be busy: no deadlines.
settings.register_profile("berth", deadline=None)
settings.load_profile("berth")

ROOT = Path(__file__).resolve().parents[1]
os.environ["BERTH_HOME"] = str(ROOT / ".no-measurements")  # tests plan with the shipped profiles
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process that tests start compiles the sources
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # workers of the tests share the cores; threads that wait would spin

# Where the longest tests are, beginning with those that wait: two of four workers are left for the two cores.
LONGEST = (
    "tests/live/slurm/",
    "tests/live/ray/",
    "tests/golden/",
    "tests/live/web/",
    "tests/unit/train/",
    "tests/live/",
    "tests/simulation/",
    "tests/unit/live/test_openapi.py",
    "tests/unit/plan/test_cli_plan.py",
    "tests/unit/schedule/test_limits.py",
    "tests/unit/simulate/test_threads.py",
    "tests/unit/testing/",
    "tests/property/",
)
ENGINES = ("tests/live/slurm/", "tests/live/ray/", "tests/live/web/")  # each is started once, by one worker


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file whose tests are all slow is not imported where slow tests are left out."""
    if collection_path.suffix == ".py" and "not slow" in config.option.markexpr:
        return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text() or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers begin with the longest tests, so that none of them is left alone with one in the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collected tests and imported modules stay: the garbage collector need not walk through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _rank(nodeid: str) -> int:
    return next((at for at, prefix in enumerate(LONGEST) if nodeid.startswith(prefix)), len(LONGEST))


class ByFile(LoadScopeScheduling):
    """Hands out files, so that fixtures of modules are made once; pages of the documentation share nothing."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/golden/test_docs.py"):
            return nodeid
        engine = next((engine for engine in ENGINES if nodeid.startswith(engine)), None)
        return engine or nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    """Replace xdist's own way to hand out files."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The public traces that lie beside a developer's checkout; a test that needs them skips without."""
    folder = Path(os.environ.get("BERTH_SHARED", ROOT.parent / "shared")) / "traces"
    if not folder.is_dir():
        pytest.skip(f"the public traces are not at {folder} (set BERTH_SHARED)")
    return folder


@pytest.fixture
def free_port() -> int:
    """A port below those that the system gives to connections, so that it stays free."""
    while True:
        port = random.randrange(27_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def ctrl_c():
    """SIGINT interrupts, here and in children: where tests run in the background or under nohup it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def forked():
    """Processes that `subprocess` and `multiprocessing` start are forked from one that has the imports."""
    with forking():
        yield


@pytest.fixture(autouse=True)
def same_environment():
    """Of the variables that imports read: with others, processes of all later tests would import, not fork."""
    before = relevant(os.environ)
    yield
    assert relevant(os.environ) == before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and os.environ.get("BERTH_NO_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but BERTH_NO_SKIPS is set: {report.longrepr}"
    return report
