"""The pictures of docs/waiting.md: small SVGs in tones that read on a light page and on a dark one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from svg import DARK, GREY, picture, ratio_text, text
from waiting_ratios import CELLS, Ratio, Versus
from waiting_runs import CONGESTIONS, LOADS

_BETTER = ("#b9e3c6", "#7cc796", "#43a86b", "#2b8a53")
_WORSE = ("#f6cdb9", "#eda17f", "#dd7650", "#c2512c")
_EVEN = "#d5d7db"
_STEPS = (0.03, 0.1, 0.3)  # of the logarithm, where one tone ends
_DOTS = ("#4c8dd6", "#d6824c", "#5aa873")


def heat_maps(title: str, maps: Sequence[tuple[str, Versus]], columns: int = 5) -> str:
    """One small map for each policy compared with: loads down, congestions across."""
    cell_w, cell_h, gap_x, gap_y, left, top = 33, 17, 18, 42, 34, 44
    map_w, map_h = cell_w * len(CONGESTIONS), cell_h * len(LOADS)
    rows = math.ceil(len(maps) / columns)
    width = left + columns * (map_w + gap_x)
    height = top + rows * (map_h + gap_y)
    parts = [text(0, 14, title, size=13, weight=600)]
    for number, (name, versus) in enumerate(maps):
        x = left + number % columns * (map_w + gap_x)
        y = top + number // columns * (map_h + gap_y)
        parts.append(text(x, y - 5, f"/ {name}", size=11, weight=600))
        for load, congestion in CELLS:
            at_x = x + CONGESTIONS.index(congestion) * cell_w
            at_y = y + LOADS.index(load) * cell_h
            parts.append(_cell(at_x, at_y, cell_w, cell_h, versus.cells[load, congestion]))
        parts += [
            text(x + (i + 0.5) * cell_w, y + map_h + 11, f"x{value:g}", size=9, anchor="middle")
            for i, value in enumerate(CONGESTIONS)
        ]
        if number % columns == 0:
            parts += [
                text(x - 5, y + (i + 0.7) * cell_h, f"{value:g}", size=9, anchor="end")
                for i, value in enumerate(LOADS)
            ]
    return picture(width, height, parts)


def _cell(x: float, y: float, width: float, height: float, ratio: Ratio) -> str:
    noise = ratio.verdict == "even"
    tone = "#5b6069" if noise else DARK
    box = f'<rect x="{x}" y="{y}" width="{width - 1}" height="{height - 1}" fill="{_tone(ratio)}"/>'
    return box + text(x + (width - 1) / 2, y + 12, ratio_text(ratio.mean), 9.5, "middle", tone)


def _tone(ratio: Ratio) -> str:
    if ratio.verdict == "even":
        return _EVEN
    step = sum(abs(math.log(ratio.mean)) > limit for limit in _STEPS)
    return (_BETTER if ratio.mean < 1 else _WORSE)[step]


def dots(title: str, rows: Sequence[str], panels: Sequence[tuple[str, Sequence[Ratio]]]) -> str:
    """Ratios with their intervals, a row for each policy, a colour for each workload; 1 is a line."""
    left, top, line, width = 210, 52, 24, 760
    ratios = [ratio for _, values in panels for ratio in values]
    low = math.log(min(0.95, *(ratio.low for ratio in ratios)))
    high = math.log(max(1.05, *(ratio.high for ratio in ratios)))
    right = width - 16

    def at(value: float) -> float:
        return left + (math.log(value) - low) / (high - low) * (right - left)

    bottom = top + line * len(rows)
    parts = [text(0, 14, title, size=13, weight=600)]
    x = left
    for colour, (name, _) in zip(_DOTS, panels, strict=False):
        parts.append(f'<circle cx="{x}" cy="30" r="4" fill="{colour}"/>' + text(x + 8, 34, name, size=11))
        x += 30 + 7 * len(name)
    for tick in _ticks(math.exp(low), math.exp(high)):
        strong = ' stroke-width="1.5"' if tick == 1 else ' stroke-opacity="0.35"'
        parts.append(
            f'<line x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{top - 8}" y2="{bottom}" stroke="{GREY}"{strong}/>'
        )
        parts.append(text(at(tick), bottom + 13, f"{tick:g}", size=10, anchor="middle"))
    for i, name in enumerate(rows):
        y = top + (i + 0.5) * line
        parts.append(text(left - 12, y + 4, name, size=11, anchor="end"))
        for k, (colour, (_, values)) in enumerate(zip(_DOTS, panels, strict=False)):
            parts.append(_dot(at, values[i], y + (k - 1) * 6, colour))
    return picture(width, bottom + 20, parts)


def _dot(at: object, ratio: Ratio, y: float, colour: str) -> str:
    assert callable(at)
    line = f'<line x1="{at(ratio.low):.1f}" x2="{at(ratio.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
    return line + f'<circle cx="{at(ratio.mean):.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def _ticks(low: float, high: float) -> list[float]:
    every = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2, 3, 5, 10)
    inside = [tick for tick in every if low <= tick <= high]
    return (
        inside
        if len(inside) <= 9
        else [tick for tick in inside if tick in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)]
    )
