"""No relative link in the README or the documentation is dead in a checkout, where docs/reference/ is not built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "docs" / "reference"  # made by docs/generate.py, not committed
PAGES = sorted(
    [*ROOT.glob("*.md"), *(path for path in (ROOT / "docs").rglob("*.md") if BUILT not in path.parents)]
)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Python-Markdown makes them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def dead_links(page: Path, text: str) -> list[str]:
    dead = []
    for target, anchor in LINK.findall(CODE.sub("", text)):
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or file == BUILT or BUILT in file.parents:
            dead.append(target)
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            dead.append(f"{target}#{anchor}")
    return dead


def test_a_dead_link_is_found():
    page = ROOT / "README.md"
    text = (
        "[a](docs/index.md) [b](docs/none.md) [c](docs/quickstart.md#install) [d](docs/quickstart.md#nowhere)"
    )
    assert dead_links(page, text) == ["docs/none.md", "docs/quickstart.md#nowhere"]
    assert dead_links(ROOT / "docs/index.md", "[e](reference/commands.md)") == ["reference/commands.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_relative_link_is_dead(page):
    assert dead_links(page, page.read_text()) == []
