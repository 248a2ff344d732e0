"""Reports words and phrases that this project does not use, with a plain replacement for each.

    python tools/voice_lint.py             every source, document and test name of the checkout
    python tools/voice_lint.py FILE...     only these files

Prints `file:line: "word": use ...` for each and exits with 1 if there are any. A line on which a word is right
carries the comment `voice: ok`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".js", ".html", ".css", ".md", ".yaml", ".yml"}
SCANNED = ("src", "docs", "examples", "benchmarks", "tools", "tests", "README.md", "CONTRIBUTING.md")
SKIPPED = ("docs/assets", "docs/reference", "tools/voice_lint.py", "tests/unit/test_voice_lint.py")
ALLOW = "voice: ok"

_COMPARED = (
    "longer|more|less|better|worse|larger|smaller|faster|slower|wider|higher|lower|later|earlier|shorter|fewer|"
    "older|newer|greater|nearer|farther|cheaper|different|need"
)

# A space in a rule also matches the underscore of a name.
RULES = {
    r"told": "reported, printed, passed, given",
    r"(?<!\.)tells?|telling": "reports, prints, passes, shows",
    r"whom|whoever": "which, that",
    r"(?:job|worker|server|rank|gang|machine|request|thread)s?,? who": "that, which",
    r"process(?:es)?,? who": "that, which",
    r"(?:no|some|every)body": "no job, another job, all users",
    r"anew": "again",
    r"for ever": "forever, indefinitely",
    r"mend(?:s|ed|ing)?": "fix",
    r"dear(?:er|est)?": "(more) expensive",
    r"of late": "recently",
    r"at hand": "available",
    r"(?:stands?|stood|standing)(?! for|-)": "is, is in",
    r"so (?:many|long|often)": "N, this many, this long",
    r"stumbl(?:e|es|ed|ing)": "fails, internal error",
    r"in vain": "without success, timed out",
    rf"(?<!there )(?:is|are|was|were) no(?! (?:{_COMPARED})(?![A-Za-z]))": "is not a",
    r"wall's clock": "wall-clock time",
    r"behind \S+ \S+'s back": "in the background",
    r"book(?:s|ed)": "state, accounting, recorded",
    r"rooms": "packages",
    r"house rules?": "conventions",
    r"out of all proportion": "implausibly large",
    r"of these times": "between 1970 and 2099",
    r"slip of the pen": "typing error",
}
# Whether a word begins is asked once for all rules: inside words, where most characters are, no rule is tried.
_PATTERN = re.compile(
    "(?<![A-Za-z])(?:"
    + "|".join(f"(?P<rule{number}>{rule.replace(' ', '[ _]')})" for number, rule in enumerate(RULES))
    + ")(?![A-Za-z])",
    re.IGNORECASE,
)
_TEST_NAME = re.compile(r"\s*(?:def|async def|class) +(\w*test\w*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Finding:
    """A retired word at a place."""

    path: Path
    line: int
    word: str
    use: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.word}": use {self.use}'


def check_text(text: str, path: Path, *, names_only: bool = False) -> Iterator[Finding]:
    """The retired words of a text; with `names_only`, those in the names of its tests."""
    for number, line in enumerate(text.splitlines(), 1):
        if ALLOW in line:
            continue
        name = _TEST_NAME.match(line)
        checked = line if not names_only else name[1] if name else ""
        for match in _PATTERN.finditer(checked):
            rule = int((match.lastgroup or "rule0").removeprefix("rule"))
            yield Finding(path, number, match[0], list(RULES.values())[rule])


def check_file(path: Path, shown: Path) -> Iterator[Finding]:
    """The retired words of a file; of a test only those in its names."""
    in_tests = shown.parts[:1] == ("tests",)
    if in_tests:
        yield from check_text(shown.stem, shown)
    if not in_tests or path.suffix == ".py":
        yield from check_text(path.read_text(encoding="utf-8"), shown, names_only=in_tests)


def files_of(root: Path) -> Iterator[Path]:
    """Every file to check, relative to the checkout, in order."""
    for name in SCANNED:
        top = root / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            relative = path.relative_to(root)
            if path.suffix in SUFFIXES and path.is_file() and not relative.as_posix().startswith(SKIPPED):
                yield relative


def main(arguments: list[str]) -> int:
    """Prints the findings; 1 if there are any."""
    chosen = [Path(name).resolve().relative_to(ROOT) for name in arguments] or files_of(ROOT)
    findings = [finding for path in chosen for finding in check_file(ROOT / path, path)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
