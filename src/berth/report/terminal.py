"""Terminal output: tables, bars, JSON. Rich is imported when something is printed, so that commands start fast."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and ends of lines
_BLOCKS = " ▏▎▍▌▋▊▉█"


def console() -> Console:
    """Standard output; when it is not a terminal it is plain and $COLUMNS wide, or 80, so piped output is stable."""
    from berth.report.printable import PrintableConsole

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else 80
    return PrintableConsole(width=width, highlight=False, soft_wrap=False)


def printable(text: str) -> str:
    """Text with control characters escaped: ids of a trace must not send sequences to the terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, narrow: bool = False
) -> Table:
    """A table whose first `left` columns are words and the others numbers; `narrow`: with smaller gaps."""
    from rich import box
    from rich.text import Text

    from berth.report.fitting import FittingTable

    result = FittingTable(
        title=title or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0) if narrow else (0, 1),
    )
    for index, column in enumerate(columns):
        result.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        result.add_row(*(Text(printable(cell)) for cell in row))
    return result


STATES = {
    "running": "green",
    "starting": "cyan",
    "evicting": "yellow",
    "stopping": "yellow",
    "delayed": "yellow",
    "failed": "bold red",
    "lost": "bold red",
    "drained": "yellow",
    "up": "green",
    "finished": "green",
    "cancelled": "dim",
}


def state_text(state: str) -> Text:
    """The state of a job or a machine, in its colour."""
    from rich.text import Text

    return Text(state, STATES.get(state, ""))


NO_BREAK = "\N{NO-BREAK SPACE}"  # in a note: a space at which its line is not broken
_GAP, _NARROWEST_NOTE, _NARROWEST_ID = 2, 44, 6


def print_listing(
    out: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    left: int,
    note: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Print rows whose cells are never split, and a note for each: the last column, or below it on a narrow terminal.

    The first `left` columns are words. If rows are wider than the terminal, ids that are too long for their column (the
    one named "job") have a line of their own, and the rest of the row is below; if that is not enough, other words are
    shortened. Where rows are wider even so, nothing is shortened.
    """
    from rich.text import Text

    cells = [[Text(printable(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
    widths = [
        max(len(name), *(row[at].cell_len for row in cells)) if cells else len(name)
        for at, name in enumerate(columns)
    ]
    ids = columns.index("job") if "job" in columns else 0
    # shortened, the widest first
    words = [at for at in range(1, left) if at != ids and columns[at] != "state"]
    widths = _reduced(widths, columns, [ids], out.width)
    shortened = _reduced(widths, columns, sorted(words, key=lambda at: -widths[at]), out.width)
    if _total(shortened) <= out.width:
        widths = shortened
    for row in cells:
        for at in words:
            row[at].truncate(widths[at], overflow="ellipsis")
    taken = _total(widths)
    beside = out.width - taken - _GAP >= _NARROWEST_NOTE
    heads = [Text(name, "dim") for name in columns]
    indent = taken + _GAP if beside else widths[0] + _GAP if widths[0] < 5 else 4
    line = _line(heads, widths, left).append(f"{' ' * _GAP}{note}" if beside and note else "", "dim")
    out.print(line, soft_wrap=True)
    for row, said in zip(cells, notes or [""] * len(cells), strict=True):
        if row[ids].cell_len > widths[ids]:
            alone = [cell if at == ids else Text() for at, cell in enumerate(row[: ids + 1])]
            out.print(_line(alone, widths[: ids + 1], left), soft_wrap=True)
            row[ids] = Text()
        line = _line(row, widths, left)
        lines = textwrap.wrap(
            said, max(20, out.width - indent), break_long_words=False, break_on_hyphens=False
        )
        wrapped = [one.replace(NO_BREAK, " ") for one in lines]
        if beside and wrapped:
            line.append(" " * _GAP + wrapped.pop(0))
        line.rstrip()
        out.print(line, soft_wrap=True)
        for rest in wrapped:
            out.print(Text(" " * indent + rest), soft_wrap=True)


def _total(widths: Sequence[int]) -> int:
    """The width of a whole row."""
    return sum(widths) + _GAP * (len(widths) - 1)


def _reduced(widths: Sequence[int], columns: Sequence[str], order: Sequence[int], most: int) -> list[int]:
    """Return the widths with those in `order` reduced, each as far as needed for rows of at most `most` characters."""
    result = list(widths)
    for at in order:
        least = max(_NARROWEST_ID, len(columns[at]), result[at] - max(0, _total(result) - most))
        result[at] = min(result[at], least)
    return result


def _line(row: Sequence[Text], widths: Sequence[int], left: int) -> Text:
    """The cells of a row side by side."""
    from rich.text import Text

    line = Text()
    for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
        padding = " " * (width - cell.cell_len)
        line.append(" " * _GAP if at else "")
        line.append("" if at < left else padding)
        line.append_text(cell)
        line.append(padding if at < left else "")
    return line


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
