"""Mutation tests: change one thing in a copy of the sources and see whether a test notices.

    python tests/mutants.py schedule --count 80 --seed 1

A mutant that no test notices is either the same program in other words, or a hole in the tests. The tests run
interpreted (`interpreted.py`), each mutant in a process that is forked after the libraries are loaded.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from mutate import mutant, sites

ROOT = Path(__file__).resolve().parents[1]
CPU_S, WALL_S = 60, 900  # a mutant that takes longer never ends; a busy machine is no reason to call it so
LIBRARIES = ("numpy", "numba", "polars", "scipy.optimize", "hypothesis", "pytest", "pydantic")
ARGUMENTS = (
    "-x",
    "-p",
    "interpreted",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::RuntimeWarning",
    "--tb=no",
    "--assert=plain",
)


@dataclass(frozen=True)
class Package:
    """Sources to change, the tests that are quick interpreted, and those that only survivors have to pass."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    more: tuple[str, ...]
    left_out: str  # tests that are too slow interpreted, by parts of their names
    preload: tuple[str, ...] = ()


PASS = (
    "start_waiting allocation progress queue placement reservation preempt_by_order preempt_for_gain victims "
    "migrate_nearer relax_locality defragment balance decide delay_timers links segments asking threatened totals "
    "groups claims shapes shape_choice scarcity reshape policies/waits"
)


def of(folder: str, names: str) -> tuple[str, ...]:
    """Test files of one folder."""
    return tuple(f"tests/unit/{folder}/test_{name}.py" for name in names.split())


PACKAGES = {
    "schedule": Package(
        tuple(f"schedule/{name}.py" for name in PASS.split()),
        (
            *of(
                "schedule",
                "places held_places kinds waiting victims lwf policies berth_policy regressions dally gain_values "
                "move_values lookahead_values place_choice segment_values part_places reservation_values shape_values "
                "price_values preemption_values priority_passing wait_values",
            ),
            *of("simulate", "quotas faults"),
        ),
        (*of("simulate", "audit explain_job"), *of("schedule", "long_queues")),
        "127 129 200 299 rounds_no_longer rounds_that endless same_stream wrong_remaining has_sunk every_policy "
        "too_soon delay_timers_again without_preemption is_compiled_only are_sorted_whatever",
    ),
    "plan": Package(
        tuple(
            f"plan/{name}.py"
            for name in ("evaluate", "provision", "arrays", "problem", "limits", "stage", "near_arcs")
        ),
        of("plan", "provision stage problem world exact"),
        of("plan", "exact search_methods explain"),
        "lstm bayes",
    ),
    "tables": Package(
        ("train/tables/*.py",),
        of("train", "admission table_edges hashing state decay table index small_tiers"),
        of("train", "tiers"),
        "stays_bounded corrupt torn probability a_full_disk_is_said larger cold_rows stated_spread uniform "
        "shards_are_even promises without_memory",
        ("torch",),
    ),
}


def tested(tests: tuple[str, ...], left_out: str, sources: Path, log: Path) -> int:
    """Pytest's exit code on changed sources."""
    to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(to, 1)
    os.dup2(to, 2)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(sources), str(ROOT / "tests")]
    import pytest

    which = " and ".join(f"not {name}" for name in left_out.split())
    return int(pytest.main([*ARGUMENTS, "-m", "not slow and not soak and not gpu", "-k", which, *tests]))


def outcome(tests: tuple[str, ...], left_out: str, sources: Path, log: Path) -> str:
    """Runs the tests on changed sources in a forked process."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
        code = 99
        try:
            code = tested(tests, left_out, sources, log)
        except Exception:  # noqa: BLE001 - the child must not go on as its parent
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    began = time.monotonic()
    while time.monotonic() - began < WALL_S:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: "survived", -signal.SIGXCPU: "timeout"}.get(code, "killed")
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def noticed(package: Package, sources: Path, quick: bool) -> str:
    """What the quick tests say, and for a survivor the others."""
    log = sources.parent / "log"
    found = outcome(package.tests, package.left_out, sources, log)
    return (
        outcome(package.more, package.left_out, sources, log) if found == "survived" and not quick else found
    )


def main() -> None:
    """Draws mutants of a package, runs them one by one, lists those that no test noticed."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("package", choices=PACKAGES)
    options.add_argument("--count", type=int, default=80)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--quick", action="store_true", help="the quick tests alone")
    options.add_argument("--only", nargs="*", help="mutants by name, FILE:NUMBER")
    given = options.parse_args()
    package = PACKAGES[given.package]
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    for library in (*LIBRARIES, *package.preload):
        __import__(library)
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        files = [path for glob in package.sources for path in sorted((sources / "berth").glob(glob))]
        every = [
            f"{path.relative_to(sources)}:{k}"
            for path in files
            for k in range(len(list(sites(ast.parse(path.read_text())))))
        ]
        chosen = given.only or random.Random(given.seed).sample(every, min(given.count, len(every)))
        if noticed(package, sources, True) != "survived":
            sys.exit(f"the tests fail without any mutant:\n{(Path(folder) / 'log').read_text()}")
        counted = {"killed": 0, "timeout": 0, "survived": 0}
        for name in chosen:
            file, number = name.rsplit(":", 1)
            path = sources / file
            text = path.read_text()
            changed, line, before, after = mutant(text, int(number))
            path.write_text(changed)
            found = noticed(package, sources, given.quick)
            path.write_text(text)
            counted[found] += 1
            print(f"{found:8} {name} line {line}: {before}  ->  {after}", flush=True)
    print(f"{given.package}: {len(chosen)} of {len(every)} mutants, {counted}")


if __name__ == "__main__":
    main()
