"""Files that `make coverage` and `make mutants` name exist, so that a rename can't break them unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def interpreted_tests() -> list[Path]:
    lines = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    calls = re.findall(r"\$\(call unit,([\w/]+),([^)]*)\)", lines)
    return [ROOT / f"tests/unit/{folder}/test_{name}.py" for folder, names in calls for name in names.split()]


def mutated_files() -> list[Path]:
    import mutants

    packages = mutants.PACKAGES.values()
    tests = [ROOT / test for package in packages for test in (*package.tests, *package.more)]
    sources = [
        ROOT / "src/berth" / source for package in packages for source in package.sources if "*" not in source
    ]
    return tests + sources


def test_the_files_of_make_coverage_exist():
    files = interpreted_tests()
    assert len(files) > 20
    assert [file for file in files if not file.exists()] == []


def test_the_files_of_make_mutants_exist(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests")
    files = mutated_files()
    assert len(files) > 20
    assert [file for file in files if not file.exists()] == []
