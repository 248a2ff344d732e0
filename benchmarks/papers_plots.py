"""The picture of docs/papers.md: small heat maps in tones that read on a light page and on a dark one."""

from __future__ import annotations

import math
from typing import Any

from papers_ratios import Ratio, Study
from svg import DARK, picture, ratio_text, text

NUMERATOR = "dally, tuned"
_CELL_W, _CELL_H, _GAP_X, _GAP_Y, _LEFT, _TOP, _COLUMNS = 40, 20, 26, 46, 46, 70, 5
_BETTER, _WORSE, _NOISE = (74, 178, 148), (232, 132, 86), (213, 215, 219)  # all with dark figures on them
_FURTHEST = math.log(4.0)


def pictures(data: dict[str, Any]) -> dict[str, str]:
    """The SVGs by file name: one for each kind of arrivals."""
    if "schedulers" not in data:
        return {}
    study = Study(data, "schedulers")
    kinds = dict.fromkeys(arrivals for arrivals, _, _ in study.cells)
    return {f"assets/papers-{kind}.svg": heat_maps(study, kind) for kind in kinds}


def heat_maps(study: Study, arrivals: str) -> str:
    """One map for each other policy: racks down, congestion across."""
    others = [policy for policy in study.policies if policy != NUMERATOR]
    cells = [where for where in study.cells if where[0] == arrivals]
    racks, congestions = (list(dict.fromkeys(where[axis] for where in cells)) for axis in (1, 2))
    map_w, map_h = _CELL_W * len(congestions), _CELL_H * len(racks)
    parts = [
        text(0, 14, f"Mean JCT of {NUMERATOR} / another, {arrivals} arrivals", 13, weight=600),
        text(
            0,
            32,
            "racks down, congestion across; below 1 dally is better; grey: within the noise of the seeds",
        ),
    ]
    for number, policy in enumerate(others):
        x = _LEFT + number % _COLUMNS * (map_w + _GAP_X)
        y = _TOP + number // _COLUMNS * (map_h + _GAP_Y)
        parts.append(text(x, y - 5, f"/ {policy}", 11, weight=600))
        for ratio in study.ratios(NUMERATOR, policy, "mean_jct_s", arrivals):
            _, rack, congestion = ratio.where
            parts.append(
                _cell(x + congestions.index(congestion) * _CELL_W, y + racks.index(rack) * _CELL_H, ratio)
            )
        parts += [
            text(x + (at + 0.5) * _CELL_W, y + map_h + 12, f"x{value:g}", anchor="middle")
            for at, value in enumerate(congestions)
        ]
        if number % _COLUMNS == 0:
            parts += [
                text(x - 6, y + (at + 0.7) * _CELL_H, str(value), anchor="end")
                for at, value in enumerate(racks)
            ]
    width = _LEFT + _COLUMNS * (map_w + _GAP_X)
    height = _TOP + math.ceil(len(others) / _COLUMNS) * (map_h + _GAP_Y)
    return picture(width, height, parts)


def _cell(x: float, y: float, ratio: Ratio) -> str:
    box = f'<rect x="{x}" y="{y}" width="{_CELL_W - 1}" height="{_CELL_H - 1}" fill="{_tone(ratio)}"/>'
    return box + text(x + (_CELL_W - 1) / 2, y + 14, ratio_text(ratio.median), 10.5, "middle", DARK)


def _tone(ratio: Ratio) -> str:
    """From pale to full by the logarithm of the ratio."""
    if ratio.verdict == "noise":
        return _hex(_NOISE)
    share = min(1.0, abs(math.log(max(ratio.median, 1e-9))) / _FURTHEST)
    full = _BETTER if ratio.median < 1 else _WORSE
    red, green, blue = (round(255 - (255 - part) * (0.25 + 0.75 * share)) for part in full)
    return _hex((red, green, blue))


def _hex(colour: tuple[int, int, int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)
