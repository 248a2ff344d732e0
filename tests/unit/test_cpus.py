"""The same bits on every x86-64 CPU: tests of stored digests pass under the settings of other CPUs.

numpy chooses loops, the C library variants of its functions, and numba instructions by what the CPU offers. All
three can be set to an older CPU. What is relied upon: additions, products, quotients and square roots are those of
IEEE 754 in each of them, and numba does not contract or reorder them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numpy._core import _multiarray_umath as umath

from berth.native.cache import cache_folder

ROOT = Path(__file__).parents[2]

# The policies go through all arithmetic that is more than sums and products: the Gittins index, the usual size of
# jobs, learned timers, iteration times and shared links.
DIGESTS = [
    *(
        f"tests/unit/simulate/test_events.py::test_the_same_trace_setting_and_seed_give_the_same_log_to_the_bit[{name}]"
        for name in ("gittins on", "berth on", "berth off", "dally:mode=tuned on")
    ),
    "tests/unit/workload/test_generate.py::test_the_bytes_of_a_seed_never_change",
    "tests/unit/workload/test_reproducible_arrays.py::test_the_bits_never_change",
    "tests/unit/test_reproducible.py",
]
FEW = [
    "tests/unit/network/test_contention.py::test_compiled_and_interpreted_contention_agree_to_the_bit",
    *DIGESTS[4:],
]

# `AVX2` and `FMA` are what the C library asks for before it takes its fused variants of exp, log, pow and sin.
NO_VECTORS = {
    "NPY_DISABLE_CPU_FEATURES": " ".join(
        name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]
    ),
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-FMA,-FMA4",
}
# Compiled for that CPU in a folder of its own, and not again until the sources change.
GENERIC = {"NUMBA_CPU_NAME": "generic", "XDG_CACHE_HOME": str(cache_folder().parent / "generic-cpu")}

FACTS = """
from numba.core.registry import cpu_target
from numpy._core import _multiarray_umath as umath
print(sorted(name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]))
print(cpu_target.target_context.codegen().magic_tuple())
"""


def child(arguments: list[str], environment: dict[str, str]) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "digests"),
    [
        (NO_VECTORS, DIGESTS),
        (GENERIC, FEW),  # the simulator is compiled for that CPU in `make soak`
        pytest.param(GENERIC, DIGESTS, marks=pytest.mark.soak),
    ],
    ids=["no-vectors", "generic", "generic, all"],
)
def test_stored_digests_are_those_of_every_cpu(environment, digests):
    """Of this CPU they are those tests themselves."""
    report = child(["-m", "pytest", "-p", "no:cacheprovider", *digests], environment)
    assert " passed" in report
    assert "skipped" not in report


@pytest.mark.slow
def test_the_settings_of_other_cpus_take_effect_and_share_no_compiled_code():
    here, plain, generic = (
        child(["-c", FACTS], environment).splitlines() for environment in ({}, NO_VECTORS, GENERIC)
    )
    assert plain[0] == "[]"
    assert here[1] != generic[1], "numba keeps compiled code under this key"
