"""Colours of heat maps follow the value, and figures on them are legible in both colour schemes."""

from __future__ import annotations

import colorsys
import re
from importlib import resources

import pytest

from berth.report.heat import STEPS, heat_class, heat_level, heat_style, legend


def test_the_level_follows_the_ratio_and_the_side_follows_what_is_better():
    ratios = [0.3, 0.4, 0.5, 0.8, 0.97, 1.0, 1.03, 1.25, 2.0, 2.5, 9.0]
    levels = [heat_level(ratio) for ratio in ratios]
    assert levels == sorted(levels)
    assert (levels[0], levels[1], levels[5], levels[-1]) == (-STEPS, -STEPS, 0, STEPS)
    assert [heat_level(ratio, less_is_better=False) for ratio in ratios] == [-level for level in levels]
    assert heat_level(0.8) == -heat_level(1.25)
    assert heat_level(0.0) == -STEPS


def luminance(red: float, green: float, blue: float) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_legible_on_every_colour(scheme):
    """Contrast of at least 4.5 : 1, as the web's accessibility guideline asks for text."""
    light, dark = heat_style().split("@media")
    css = resources.files("berth.report").joinpath("assets", "report.css").read_text()
    inks = re.findall(r"--ink: #(\w\w)(\w\w)(\w\w)", css)
    ink = luminance(*(int(part, 16) / 255 for part in inks[scheme == "dark"]))
    rules = re.findall(r"hsl\((\d+) (\d+)% ([\d.]+)%\)", dark if scheme == "dark" else light)
    assert len(rules) == 2 * STEPS + 1
    for hue, saturation, lightness in rules:
        back = luminance(*colorsys.hls_to_rgb(int(hue) / 360, float(lightness) / 100, int(saturation) / 100))
        brighter, darker = max(ink, back), min(ink, back)
        assert (brighter + 0.05) / (darker + 0.05) >= 4.5


def test_every_class_that_is_used_has_a_rule_and_the_legend_names_ratios():
    style = heat_style()
    for ratio in (0.1, 0.5, 1.0, 1.7, 30.0):
        assert f".{heat_class(ratio)}{{" in style
    scale = legend()
    assert scale.count("heat-") == 2 * STEPS + 1
    assert [text in scale for text in ("0.40", "1.00", "2.50", "below 1 is better")] == [True] * 4
    assert "below 1 is worse" in legend(less_is_better=False)
