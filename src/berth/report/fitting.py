"""A table that never splits a word: on a terminal that is too narrow for its columns each row is a block of lines."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_NARROW = (0, 1, 0, 0)  # padding: top, right, bottom, left
_INDENT = " " * 4


class FittingTable(Table):
    """A table of rich that, where rich would split words, gives up padding first and its columns next."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render as a table, or as one block for each row with the names of the columns in it."""
        cells = [[_text(cell) for cell in (column.header, *column.cells)] for column in self.columns]
        whole = [max(text.cell_len for text in column) for column in cells]
        paddings = sum(self._get_padding_width(at) for at in range(len(whole)))
        if self._extra_width + sum(whole) + paddings <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        words = [
            width
            if column.no_wrap
            else max(text.__rich_measure__(console, options).minimum for text in texts)
            for column, texts, width in zip(self.columns, cells, whole, strict=True)
        ]
        fitted = copy(self)  # rendered again on another console, this table is as it was made
        if fitted._splits(words, console, options):
            fitted.padding = _NARROW
        if fitted._splits(words, console, options):
            spare = options.max_width - self._extra_width - sum(words) - len(words) + (not self.pad_edge)
            if spare < 0:
                yield from self._blocks(cells)
                return
            shares = zip(self.columns, _shared(words, whole, spare), strict=True)
            fitted.columns = [replace(column, width=width) for column, width in shares]
        yield from Table.__rich_console__(fitted, console, options)

    def _splits(self, words: Sequence[int], console: Console, options: ConsoleOptions) -> bool:
        """Whether rich would give a column less than its longest word, or than its cells if they are not wrapped."""
        widths = self._calculate_column_widths(
            console, options.update_width(options.max_width - self._extra_width)
        )
        paddings = [self._get_padding_width(at) for at in range(len(words))]
        return any(
            width - padding < word for width, padding, word in zip(widths, paddings, words, strict=True)
        )

    def _blocks(self, cells: Sequence[Sequence[Text]]) -> RenderResult:
        if self.title:
            yield Text(str(self.title), style=self.title_style or "")
        names = [column[0].plain.replace("\n", "") for column in cells]
        for row in zip(*(column[1:] for column in cells), strict=True):
            yield row[0]
            for name, text in zip(names[1:], row[1:], strict=True):
                if text.plain.strip():
                    yield Text(_INDENT).append(f"{name} ".lstrip(), style="dim").append_text(text)
        yield Text()


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _shared(words: Sequence[int], whole: Sequence[int], spare: int) -> list[int]:
    """Return widths from those of the longest words up to those of whole cells; the narrowest need is met first."""
    widths = list(words)
    wanting = sorted(range(len(words)), key=lambda at: whole[at] - words[at])
    for rank, at in enumerate(wanting):
        more = min(whole[at] - words[at], spare // (len(wanting) - rank))
        widths[at] += more
        spare -= more
    return widths
