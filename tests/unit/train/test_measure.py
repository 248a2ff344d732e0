"""Measurements of this machine: what disturbs them is seen, repeated and stated."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from berth.train.measure import contention
from berth.train.measure.contention import Contention, Slowdown
from berth.train.measure.disturbance import Disturbance, Measurer, Watch, children, cpu_s_of_tree

BUSY_LOOP = """import os, time
while time.process_time() < 0.4: pass
print(os.getpid(), flush=True)
time.sleep(60)"""


def _spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.slow
def test_cpu_time_of_a_tree_has_running_and_ended_children() -> None:
    """Work of a child that runs and of one that was waited for count; that of this process too."""
    before = cpu_s_of_tree(os.getpid())
    ended = multiprocessing.get_context("fork").Process(target=_spin, args=(0.15,))
    ended.start()
    ended.join()
    with subprocess.Popen([sys.executable, "-c", BUSY_LOOP], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert running.pid in children(os.getpid())
        _spin(0.1)
        assert cpu_s_of_tree(os.getpid()) - before >= 0.6
        running.kill()


@pytest.mark.slow
def test_a_watch_counts_programs_that_the_measurement_did_not_start() -> None:
    """The same work disturbs when a program of its own does it, and does not when a child does."""
    with subprocess.Popen(
        [sys.executable, "-c", f"import os\nif os.fork(): os._exit(0)\nos.setsid()\n{BUSY_LOOP}"],
        stdout=subprocess.PIPE,
    ) as parent:
        watch, started = Watch(), time.monotonic()
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        seen, elapsed_s = watch.disturbance(), time.monotonic() - started
        cores = os.cpu_count() or 1
        assert seen.others * elapsed_s * cores >= 0.3
        os.kill(orphan, signal.SIGKILL)


class Disturbed:
    """A measurer whose attempts are disturbed as given."""

    def __init__(self, *totals: float, extra_s: float = 60.0) -> None:
        self.reports: list[str] = []
        self.measurer = Measurer(self.reports.append, extra_s)
        left = iter(totals)
        numbers = iter(range(len(totals)))
        self.measurer._once = lambda measure: (next(numbers), Disturbance(next(left)))  # type: ignore[method-assign]

    def kept(self) -> int:
        return int(self.measurer("rows", lambda: 0))


@pytest.mark.parametrize(
    ("totals", "kept", "worst"),
    [((0.02,), 0, 0.02), ((0.3, 0.01), 1, 0.01), ((0.3, 0.2, 0.4), 1, 0.2), ((0.2, 0.3, 0.4), 0, 0.2)],
)
def test_the_least_disturbed_of_three_attempts_counts(
    totals: tuple[float, ...], kept: int, worst: float
) -> None:
    """A calm first attempt is not repeated; what stays disturbed is known."""
    disturbed = Disturbed(*totals)
    assert disturbed.kept() == kept
    assert disturbed.measurer.worst.total == worst
    assert len(disturbed.reports) == len(totals)


def test_nothing_is_repeated_without_time_for_it() -> None:
    """A busy machine does not make measuring endless."""
    disturbed = Disturbed(0.5, extra_s=0.0)
    assert disturbed.kept() == 0
    assert str(disturbed.measurer.worst) == "other programs used 50% of the cores"


def test_one_bad_round_does_not_change_a_slowdown() -> None:
    """The median of rounds leaves a disturbed one out; quartiles state the spread."""
    assert Slowdown.of([1.1, 1.1, 1.1, 1.12, 1.08, 3.0, 1.1]) == Slowdown(1.1, 1.1, 1.11)
    assert Slowdown.of([0.9, 0.8, 0.95]) == Slowdown(1.0, 1.0, 1.0)


def test_slowdowns_never_fall_with_the_bytes_that_a_pass_moves() -> None:
    """Noise of a few per cent must not make larger calls faster."""
    found = Contention(
        Slowdown(1.2, 1.1, 1.3),
        {
            1e6: Slowdown(1.05, 1.0, 1.1),
            1e7: Slowdown(1.02, 1.0, 1.1),
            1e8: Slowdown(1.3, 1.2, 1.4),
        },
    )
    assert found.compute_slowdown_at == {1e6: 1.05, 1e7: 1.05, 1e8: 1.3}
    assert str(found) == "1.00 to 1.40 times longer while all cores are busy"


@pytest.mark.slow
def test_companions_work_only_while_they_are_let() -> None:
    """Stopped processes use no CPU time, working ones do, and none is left at the end."""
    before = set(children(os.getpid()))
    with contention._paused(lambda: lambda: _spin(0.001), 2) as companions:
        assert set(children(os.getpid())) - before == set(companions.pids)
        stopped = sum(map(cpu_s_of_tree, companions.pids))
        time.sleep(0.1)
        assert sum(map(cpu_s_of_tree, companions.pids)) == stopped
        with companions.at_work():
            deadline = time.monotonic() + 60
            while sum(map(cpu_s_of_tree, companions.pids)) == stopped and time.monotonic() < deadline:
                time.sleep(0.01)
        assert sum(map(cpu_s_of_tree, companions.pids)) > stopped
    assert set(children(os.getpid())) <= before


def test_a_companion_that_ends_before_it_is_ready_ends_the_measurement(capfd) -> None:
    def make() -> None:
        raise MemoryError

    before = set(children(os.getpid()))
    with (
        pytest.raises(RuntimeError, match="a companion of the measurement has ended"),
        contention._paused(make, 2),
    ):
        pass
    assert set(children(os.getpid())) <= before


def test_a_single_core_is_never_slowed_down() -> None:
    """There is no other core."""
    found = contention.measure_contention(cores=1)
    assert found.rows.median == 1.0
    assert set(found.compute_slowdown_at.values()) == {1.0}
