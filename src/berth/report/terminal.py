"""Terminal output: tables, bars, JSON. Rich is imported when something is printed, so that commands start fast."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BLOCKS = " ▏▎▍▌▋▊▉█"


def console() -> Console:
    """Standard output; plain and 80 columns wide when it is not a terminal (so piped output is stable)."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 80
    return Console(width=width, highlight=False, soft_wrap=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table whose first `left` columns are words and the others numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
    )
    for index, column in enumerate(columns):
        result.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell) for cell in row))
    return result


def bar(value: float, largest: float, width: int = 24) -> str:
    """A horizontal bar in eighths of a character; anything above zero shows at least a sliver."""
    if largest <= 0 or value <= 0:
        return ""
    eighths = max(1, round(width * 8 * value / largest))
    return "█" * (eighths // 8) + (_BLOCKS[eighths % 8] if eighths % 8 else "")


def area(values: Sequence[float], height: int = 6) -> list[str]:
    """A filled curve, one character per value and `height` lines, the top one first."""
    steps = " ▁▂▃▄▅▆▇█"
    largest = max(values, default=0.0)
    eighths = [max(1, round(8 * height * value / largest)) if value > 0 else 0 for value in values]
    rows = reversed(range(height))
    return ["".join(steps[min(8, max(0, level - 8 * row))] for level in eighths) for row in rows]


def print_json(data: Any) -> None:
    """One JSON document on standard output, keys in the order given, no NaN."""
    json.dump(data, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
