"""A call of a user's hook that takes too long, or indexes out of bounds, ends with one message that has its line."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from policy_files import ROWS, hook, policy

from berth.errors import InputError
from berth.schedule import limits
from berth.schedule.hooks import compiled_notes
from berth.schedule.policies.registry import load_policy
from berth.schedule.policy import Policy
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs

pytestmark = pytest.mark.slow

SLOW = ["Mine.order for job", "did not return within 0.1 s of CPU time"]
LONG = ["ValueError", "a range in a hook has at most 1,000,000 entries"]
MEMORY = ["MemoryError", "raised by the policy Mine"]


@pytest.fixture(autouse=True)
def short():
    """A call may take 0.1 s."""
    limits.set_limits(cpu_s=0.1)
    yield
    limits.set_limits()


def helpers(*texts):
    return "\n".join(texts)


LOOPS_COMPILED = {
    "while": policy(hook("while now > -1.0:  # HERE\n    now += 1.0\nreturn now")),
    "a float that is never reached": policy(
        hook("x = 0.0\nwhile x != 1.05:  # HERE\n    x += 0.1\nreturn x")
    ),
    "in a helper": policy(
        hook("return dig(job)"),
        after="def dig(it):\n    while it.gpus:  # HERE\n        pass\n    return 1.0",
    ),
    "in helpers, called in a loop": policy(
        hook("x = 0.0\nfor i in range(1_000_000):\n    x += dig(i)\nreturn x"),
        after="def dig(i):\n    x = 0.0\n    for j in range(1000): x += math.sin(i + j)  # HERE\n    return x",
    ),
    "helpers that call each other twice": policy(
        hook("return f0(now)"),
        after=helpers(
            *(f"def f{i}(x):\n    return f{i + 1}(x) + f{i + 1}(x + 1.0)" for i in range(12)),
            "def f12(x):\n    y = 0.0\n    for i in range(1_000_000): y += math.sin(x + i)  # HERE\n    return y",
        ),
    ),
    "a function inside the hook": policy(
        hook("def dig(x):\n    while x > -1.0:  # HERE\n        x += 1.0\n    return x\nreturn dig(now)")
    ),
    "a lambda": policy(
        hook("return dig(now)"),
        before="dig = lambda x: sum([x for i in range(1000) for j in range(1_000_000)])  # HERE",
    ),
    "a function that the user compiled": policy(
        hook("return dig(now)"),
        before="import numba\n@numba.njit\ndef dig(x):\n    while x > -1.0:  # HERE\n        x += 1.0\n    return x",
    ),
    "a comprehension in each other": policy(
        hook("return sum([sum([math.sin(i) for i in range(9000)]) for j in range(1_000_000)])  # HERE")
    ),
    "arrays": policy(
        hook("x = 0.0\nfor i in range(1_000_000):  # HERE\n    x += np.sort(np.ones(100_000))[0]\nreturn x")
    ),
    "text": policy(hook("s = 'x'\nwhile len(s) > 0:  # HERE\n    s = s + 'x'\nreturn 1.0")),
}
LOOPS_INTERPRETED = {
    "without end": policy(hook("while True: now += 1.0  # HERE")),
    "a dictionary": policy(hook("x = 0\nwhile SEEN.get(x, True): pass  # HERE\nreturn 1.0")),
    "a list that grows": policy(hook("xs = [SEEN]\nwhile True: xs.append(now)  # HERE")),
    "a generator": policy(hook("return sum(1.0 for i in range(1000) for j in range(1_000_000))  # HERE")),
    "a method": policy(
        hook("return Box().dig(now)"),
        before="class Box:\n    def dig(self, x):\n        while True: x += 1.0  # HERE",
    ),
    "a library": policy(
        hook("return statistics.mean(Endless())  # HERE"),
        before="import statistics\nclass Endless:\n    def __iter__(self):\n        return iter(float, 2.0)",
    ),
    "an error that is caught": policy(
        hook(
            "while True:\n    try:\n        while True: now += 1.0  # HERE\n    except Exception:\n        pass"
        )
    ),
}
ONE_OPERATION = {
    "sum of a range": (policy(hook("return 1.0 * sum(range(10**15))  # HERE")), LONG),
    "smallest of a range": (policy(hook("return 1.0 * min(range(int(now) + 10**15))  # HERE")), LONG),
    "largest of a range": (policy(hook("return 1.0 * max(range(0, -(10**15), -1))  # HERE")), LONG),
    "a sorted range": (policy(hook("return 1.0 * sorted(range(10**12))[0]  # HERE")), LONG),
    "a comprehension": (policy(hook("return sum([0.0 for i in range(10**15)])  # HERE")), LONG),
    "a range by another name": (
        policy(hook("return 1.0 * sum(numbers(10**15))  # HERE"), before="numbers = range"),
        LONG,
    ),
    "a range, interpreted": (policy(hook("return SEEN.get(1, sum(range(10**15)))  # HERE")), LONG),
    "an array of zeros": (policy(hook("return np.zeros(10**12)[5]  # HERE")), MEMORY),
    "an array of numbers": (policy(hook("return 1.0 * np.arange(10**12)[5]  # HERE")), MEMORY),
    "a long list": (policy(hook("return 1.0 * len([1.0] * 10**12)  # HERE")), MEMORY),
    "a long text": (policy(hook("return 1.0 * len('x' * 10**13)  # HERE")), MEMORY),
    "a factorial": (policy(hook("return 1.0 * math.factorial(10**9)  # HERE")), ["may take forever"]),
    "combinations": (
        policy(hook("return 1.0 * len(list(itertools.product(range(99), repeat=99)))  # HERE")),
        ["itertools.product", "may take forever"],
    ),
    "a vectorized function": (
        policy(
            hook("return dig(now)  # HERE"),
            before="import numba\n@numba.vectorize(['float64(float64)'])\ndef dig(x):\n    return x",
        ),
        ["dig can't be used", "no limits"],
    ),
    "a function of numba's": (
        policy(hook("return 1.0 * sum(numba.prange(10**15))  # HERE"), before="import numba"),
        ["numba.prange can't be used", "no limits"],
    ),
    "a handler for everything": (
        policy(hook("try:\n    now += 1.0\nexcept:  # HERE\n    pass\nreturn now")),
        ["catches everything", "write `except Exception:`"],
    ),
    "recursion": (
        policy(hook("return dig(now)"), after="def dig(x):\n    return dig(x - 1)  # HERE"),
        ["dig calls itself"],
    ),
    "recursion by another name": (
        policy(
            hook("return dig(now)"), after="def dig(x):\n    again = dig  # HERE\n    return again(x - 1)"
        ),
        ["dig calls itself"],
    ),
    "recursion that is not seen": (
        policy(hook("return dig(dig, now)"), after="def dig(f, x):\n    return f(f, x - 1.0)"),
        ["RecursionError", "raised by the policy Mine"],
    ),
}
WAITS = ["IndexError", "job.slowdown[-1] is out of bounds", "job.tier is -1 while a job waits"]
BOUNDS = {
    "a constant index": (
        policy(hook("return job.slowdown[8]  # HERE")),
        ["job.slowdown[8] is out of bounds"],
    ),
    "a constant below 0": (
        policy(hook("return job.slowdown[-1]  # HERE")),
        ["job.slowdown[-1] is out of bounds"],
    ),
    "a named one": (
        policy(hook("return job.shape_slowdown[SLOT]  # HERE")),
        ["job.shape_slowdown[6] is out of bounds"],
    ),
    "computed": (
        policy(hook("at = job.gpus + 3\nreturn job.slowdown[at]  # HERE")),
        ["IndexError", "is out of bounds: it has 8 entries", "raised by the policy Mine"],
    ),
    "computed in a helper": (
        policy(
            hook("return note(job)"), after="def note(job):\n    return job.slowdown[int(job.gpus)]  # HERE"
        ),
        ["IndexError", "raised by the policy Mine"],
    ),
    "computed, interpreted": (
        policy(hook("at = SEEN.get('a', 9)\nreturn job.slowdown[at]  # HERE")),
        ["IndexError", "raised by the policy Mine"],
    ),
    "below 0": (policy(hook("return job.slowdown[job.tier]  # HERE")), WAITS),
    "below 0, by another name": (policy(hook("xs = job.slowdown\nreturn xs[job.tier]  # HERE")), WAITS),
    "below 0, in a helper": (
        policy(hook("return at(job.slowdown, job.tier)"), after="def at(xs, i):\n    return xs[i]  # HERE"),
        WAITS,
    ),
    "below 0, of a slice": (policy(hook("return job.slowdown[1:][job.tier]  # HERE")), WAITS),
    "a slice from below 0": (policy(hook("return sum(job.slowdown[job.tier :])  # HERE")), WAITS),
    "below 0, interpreted": (policy(hook("return SEEN.get(1, job.slowdown[job.tier])  # HERE")), WAITS),
    "below 0, of the array": (
        policy(hook("return params.ranks[job.tier]  # HERE"), fields="ranks: tuple = array()"),
        ["IndexError", "params.ranks[-1] is out of bounds"],
    ),
    "below 0, of the totals": (
        policy(hook("return cluster.free[job.tier]  # HERE", arguments="job, now, params, cluster")),
        ["IndexError", "cluster.free[-1] is out of bounds"],
    ),
}


@pytest.mark.parametrize("case", [*LOOPS_COMPILED, *LOOPS_INTERPRETED])
def test_an_endless_loop_is_one_message_with_its_line(refused, case):
    refused((LOOPS_COMPILED | LOOPS_INTERPRETED)[case], *SLOW)
    assert bool(compiled_notes(load_policy("mine.py:Mine"))) == (case in LOOPS_INTERPRETED)


@pytest.mark.parametrize("case", [*ONE_OPERATION, *BOUNDS])
def test_a_mistake_is_one_message_with_its_line(refused, case):
    source, words = (ONE_OPERATION | BOUNDS)[case]
    refused(source, *words)


@pytest.mark.parametrize(
    "source",
    [
        LOOPS_COMPILED["in a helper"],
        LOOPS_INTERPRETED["a method"],
        ONE_OPERATION["sum of a range"][0],
        ONE_OPERATION["an array of zeros"][0],
        BOUNDS["below 0"][0],
    ],
)
def test_policies_check_says_the_same(refused, source):
    refused(source, "Mine", verb=("policies", "check"))


@pytest.mark.parametrize("name", ["wake", "allowed_tier", "tie_break"])
def test_the_message_names_the_hook(refused, name):
    refused(
        policy(hook("x = 0\nwhile x >= 0:  # HERE\n    x += job.gpus * 0\nreturn x", name)),
        f"Mine.{name} for job",
        "did not return within",
        "bound its loops",
    )


def test_the_line_is_that_of_the_file_as_it_is(refused):
    """A comment changes no byte code, so what was compiled before must not be taken for this."""
    body = "while now > -1.0:  # HERE\n    now += 2.0\nreturn now"
    refused(policy(hook(body)), *SLOW)
    refused(policy(hook(f"# a comment\n{body}")), *SLOW)


def test_memory_has_a_limit(write, tmp_path):
    """In a process of its own: the limit counts from its peak."""
    line = write(policy(hook("xs = [now]\nwhile now > -1.0:  # HERE\n    xs.append(now)\nreturn xs[0]")))
    code = (
        "import sys; from berth.schedule import limits; limits.set_limits(cpu_s=60, memory_mib=64)\n"
        "from berth.cli.main import main; main()"
    )
    arguments = ["simulate", "jobs.csv", "--cluster", "1x1x8:V100-16", "--policy", "mine.py:Mine"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"mine.py:{line}: Mine.order for job a at 0 s took more than 64 MiB of memory" in done.stderr


@pytest.mark.parametrize(
    "over",
    ["range(SLOT)", "range(10, 0, -1)", "range(len(job.slowdown))", "enumerate(range(3))", "(1, 2, 3)"],
)
def test_loops_within_the_limits_are_compiled(write, over):
    body = f"x = len([i for i in {over}])\nfor i in {over}:\n    x += 1\nreturn float(x + sum(range(9)))"
    write(policy(hook(body)))
    mine = load_policy("mine.py:Mine")
    assert compiled_notes(mine) == []
    assert (simulate(jobs(ROWS), cluster([8]), mine, Setting(network="off")).records["end_s"] > 0).all()


@pytest.mark.parametrize("also", ["", "SEEN.get(1)\n"])
def test_what_is_within_bounds_reads_the_same_compiled_and_interpreted(write, also):
    """Slices and elements of a job's arrays; a list of the policy's own is indexed as in Python."""
    body = (
        "xs = [1.0, 2.0]\n"
        "job.seen = job.slowdown[1:][2] + len(job.slowdown[:2]) + xs[-1] + max(job.slowdown[2:4])"
    )
    write(policy(hook(f"{also}{body}", "update"), fields="class Job(JobView):\n    seen: float"))
    mine = load_policy("mine.py:Mine")
    assert bool(compiled_notes(mine)) == bool(also)
    run = simulate(jobs(ROWS), cluster([8]), mine, Setting(network="off"))
    expected = run.records["slowdown"][:, 3] + 2.0 + 2.0 + run.records["slowdown"][:, 2:4].max(axis=1)
    assert (run.records["policy_state"][:, 0] == expected).all()


@dataclass(frozen=True)
class Endless(Policy):
    """Does not end for jobs of one size."""

    size: float = 0.0

    @staticmethod
    def order(job, now, params):
        while job.gpus == params.size:
            now += 1.0
        return job.arrival_s


def test_of_runs_in_threads_only_the_endless_one_is_stopped():
    start = threading.Barrier(3)

    def run(size):
        start.wait()
        try:
            simulate(jobs(ROWS * 50), cluster([8]), Endless(size=size), Setting(network="off"))
        except InputError as error:
            return str(error)
        return "all"

    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(run, [3.0, 4.0, 3.0]))
    assert said[::2] == ["all", "all"]
    assert "Endless.order for job j2 at 2 s did not return" in said[1]
