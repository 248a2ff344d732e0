"""Every `berth` command shown in the documentation works as written."""

from __future__ import annotations

import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import transcripts

from berth.schedule import reasons
from forked_up import ForkedUp
from preloaded import forking, programs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts),
]


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-10 06:13:03,2951.0,8,23608.0,6214e9
"""


# The plans of this page follow from times that it measures on the machine at hand.
MEASURED_HERE = "own-model.md"

# Pages show what berth prints; these are the programs that a reader starts, `python` for the examples beside them.
PLAYED = ("berth ", "python ")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def shown_commands(page: Path) -> list[str]:
    shown = blocks(page, "console")
    commands = [command for block in shown for command, _ in transcripts.commands(block)]
    return [command for command in commands if command.startswith(PLAYED)]


WITH_COMMANDS = [page for page in PAGES if shown_commands(page) or blocks(page, "python")]


def test_the_documentation_shows_commands():
    assert sum(len(shown_commands(page)) for page in WITH_COMMANDS) >= 12


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_commands_of_a_page_work_one_after_the_other_and_its_python_too(page, tmp_path, monkeypatch):
    folder = tmp_path / "examples"
    monkeypatch.setenv("BERTH_STATE", str(tmp_path / "state"))
    shutil.copytree(EXAMPLES, folder)
    monkeypatch.chdir(folder)  # `berth up` reads the files of a page, too
    path = f"{programs()}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)  # jobs run `berth train`
    # Pages that speak of a reader's own Philly download get a small made-up file of that shape.
    (folder / "philly.csv.xz").write_bytes(lzma.compress(PHILLY.encode()))
    with ExitStack() as served:
        for command in shown_commands(page):
            if command.startswith("berth up"):  # it stays up for the rest of the page
                options = shlex.split(command.partition("#")[0].rstrip(" &"))[2:]
                served.callback(ForkedUp(tmp_path / "state", *options).start().clear)
            elif command.startswith("berth view"):
                assert "http://127.0.0.1:" in first_line(f"{command} --no-open --port 0", folder)
            else:
                output = transcripts.run(command, folder, programs())
                assert "[exit" not in output, f"{page.name}: {command}\n{output}"
                shown = "" if page.name == MEASURED_HERE else shown_outputs(page).get(command, "")
                assert missing_words(shown, output) == [], f"{page.name}: {command}\n{output}"
                assert stale_counts(shown, output) == [], f"{page.name}: {command}\n{output}"
        for program in scripts(page):
            (folder / "page.py").write_text(program)
            output = transcripts.run("python page.py", folder, programs())
            assert "[exit" not in output, f"{page.name}: {program}\n{output}"


def shown_outputs(page: Path) -> dict[str, str]:
    """What a page shows of the output of each command."""
    return {
        command: output
        for block in blocks(page, "console")
        for command, output in transcripts.commands(block)
    }


def missing_words(shown: str, printed: str) -> list[str]:
    """Pieces of the shown output (between lines of `...`) that were not printed; numbers may differ, words may not."""
    pieces = [masked(piece) for piece in re.split(r"^ *\.\.\.$", shown, flags=re.MULTILINE)]
    whole = masked(printed)
    return [piece for piece in pieces if piece not in whole]


def stale_counts(shown: str, printed: str) -> list[str]:
    """Shown lines that count moments and are printed otherwise: these numbers depend on no machine."""
    return [line for line in shown.splitlines() if " moments of " in line and line not in printed]


def masked(text: str) -> str:
    """Words in one line, with numbers, tables' lines and marks of the best value left out."""
    words = re.sub(r"[─│*]", " ", text).split()
    return " ".join("#" if re.search(r"\d", word) else word for word in words)


def test_a_changed_word_is_found_and_a_changed_number_is_not():
    assert missing_words("12 jobs in 3h\n...\nwrote a.html", "14 jobs in 5m10s\nmore\nwrote a.html") == []
    assert missing_words("12 jobs in 3h", "14 tasks in 3h") == ["# jobs in #"]


def test_a_changed_count_of_moments_is_found():
    assert stale_counts("a: 4 moments of 6 scenarios", "a: 4 moments of 6 scenarios\n") == []
    assert stale_counts("a: 4 moments of 6 scenarios", "a: 5 moments of 6 scenarios\n") != []


def scripts(page: Path) -> list[str]:
    """The Python of a page: its blocks one after the other; a block that is a whole file begins another program."""
    found: list[str] = []
    for block in blocks(page, "python"):
        if found and "from __future__" not in block:
            found[-1] += f"\n\n{block}"
        else:
            found.append(block)
    return found


def test_every_reason_is_explained_and_no_other():
    page = (ROOT / "docs" / "guides" / "why.md").read_text()
    reported = re.findall(r"^\| `([a-z-]+)` \|", page, flags=re.MULTILINE)
    assert sorted(reported) == sorted(reasons.CODES.values())


@pytest.mark.parametrize(
    ("page", "example"),
    [("own-model.md", "own_model.py"), ("traces.md", "own_trace.py")],
    ids=lambda name: name,
)
def test_a_guide_shows_its_example_as_it_is(page, example):
    code = (EXAMPLES / example).read_text().partition('"""\n\n')[2]  # without the docstring
    assert f"```python\n{code}```" in (ROOT / "docs" / "guides" / page).read_text()


def first_line(command: str, folder: Path) -> str:
    """What a command says first that goes on until it is ended."""
    words = [sys.executable, "-m", *shlex.split(command)]
    with forking():
        process = subprocess.Popen(
            words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    with process:
        line = next(line for line in process.stdout if "http" in line)
        process.terminate()
        process.communicate()
    return line


def test_the_documentation_is_built_without_a_warning(tmp_path):
    subprocess.run([sys.executable, ROOT / "docs" / "generate.py"], check=True)
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    public = (tmp_path / "site" / "reference" / "python.html").read_text()
    assert "find_plan" in public
    assert "def find_plan(" in re.sub(r"<[^>]+>", "", public)
    assert "/jobs/{job}/cancel" in (tmp_path / "site" / "reference" / "api.html").read_text()
