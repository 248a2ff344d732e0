"""Runs the transcripts in this folder and compares what they print with what is stored.

A transcript (`*.console`) is a list of commands, each line `$ berth ...` followed by what it printed.

    python examples/transcripts.py              compare all, show differences
    python examples/transcripts.py --update     store what is printed now
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROMPT = "$ "
PROGRAMS = Path(sys.executable).parent


def commands(transcript: str) -> list[tuple[str, str]]:
    """(command, what it printed) for each prompt of a transcript; text before the first is a comment."""
    found: list[tuple[str, list[str]]] = []
    for line in transcript.splitlines():
        if line.startswith(PROMPT):
            found.append((line.removeprefix(PROMPT), []))
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(output).rstrip()) for command, output in found]


def play(transcript: str, folder: Path, programs: Path = PROGRAMS) -> str:
    """The transcript as its commands print it now, run one after the other in `folder`."""
    head = transcript.split(PROMPT, 1)[0]
    played = [
        f"{PROMPT}{command}\n{run(command, folder, programs)}".rstrip() for command, _ in commands(transcript)
    ]
    return head + "\n\n".join(played) + "\n"


def run(command: str, folder: Path, programs: Path = PROGRAMS) -> str:
    """Output and errors of one shell command, as in a terminal of 80 columns without colour.

    `berth` and `python` are those of the folder `programs`.
    """
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    # The first command on a new machine prints that it compiles.
    lines = [line.rstrip() for line in result.stdout.splitlines() if not line.startswith("compiling kernels")]
    return "\n".join([*lines, f"[exit {result.returncode}]"] if result.returncode else lines).strip("\n")


def replay(path: Path, programs: Path = PROGRAMS) -> str:
    """Plays one stored transcript in a copy of this folder, so that what it writes is thrown away."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "examples"
        shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        return play(path.read_text(), folder, programs)


def main() -> int:
    """Compares (or updates) every transcript; the exit code says whether all were equal."""
    different = 0
    for path in sorted(HERE.glob("*.console")):
        stored, now = path.read_text(), replay(path)
        if stored == now:
            print(f"same       {path.name}")
        elif "--update" in sys.argv:
            path.write_text(now)
            print(f"updated    {path.name}")
        else:
            different += 1
            print(f"DIFFERENT  {path.name}")
            sys.stdout.writelines(
                difflib.unified_diff(stored.splitlines(True), now.splitlines(True), "stored", "now")
            )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
