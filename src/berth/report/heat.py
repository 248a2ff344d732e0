"""Colours of heat maps: one for each value, from blue-green (better) over none to orange-red (worse).

The content security policy of a report allows no inline styles, so a colour is a class, and the page carries the
rules of all classes. Lightness stays away from that of the text in both colour schemes, so figures remain legible;
the hues also differ for readers who don't see red and green apart.
"""

from __future__ import annotations

import math

STEPS = 24  # classes on either side
FURTHEST = 2.5  # ratios beyond this, or below its inverse, have the last colour
_TICKS = 4  # labels on either side of 1


def heat_level(ratio: float, *, less_is_better: bool = True) -> int:
    """Return the class of a ratio, from -STEPS (better) to STEPS (worse), by equal steps of its logarithm."""
    if ratio <= 0:
        return -STEPS if less_is_better else STEPS
    level = math.log(ratio) / math.log(FURTHEST) * STEPS
    bounded = round(max(-STEPS, min(STEPS, level)))
    return bounded if less_is_better else -bounded


def heat_class(ratio: float, *, less_is_better: bool = True) -> str:
    """Return the CSS class of a ratio."""
    level = heat_level(ratio, less_is_better=less_is_better)
    return f"heat-{'b' if level < 0 else 'w'}{abs(level)}"


def heat_style() -> str:
    """Return the rules of all classes, for light and for dark pages."""
    light = "".join(_rule(level, 97.0, 30.0) for level in range(-STEPS, STEPS + 1))
    dark = "".join(_rule(level, 14.0, -13.0) for level in range(-STEPS, STEPS + 1))
    return f"\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _rule(level: int, start: float, towards: float) -> str:
    share = abs(level) / STEPS
    name = f"heat-{'b' if level < 0 else 'w'}{abs(level)}"
    hue, saturation = (172, 60) if level < 0 else (16, 80)
    lightness = start - towards * share
    return f".{name}{{background:hsl({hue} {saturation * min(1.0, 0.25 + share):.0f}% {lightness:.1f}%)}}"


def legend(*, less_is_better: bool = True) -> str:
    """Return the scale of colours with ratios below it, as HTML."""
    low, high = -math.log(FURTHEST), math.log(FURTHEST)
    ratios = [math.exp(low + (high - low) * at / (2 * STEPS)) for at in range(2 * STEPS + 1)]
    swatches = "".join(
        f'<span class="{heat_class(one, less_is_better=less_is_better)}"></span>' for one in ratios
    )
    ticks = (FURTHEST ** (at / _TICKS) for at in range(-_TICKS, _TICKS + 1))
    labels = "".join(f"<span>{tick:.2f}</span>" for tick in ticks)
    below, above = ("better", "worse") if less_is_better else ("worse", "better")
    return (
        f'<div class="scale" role="img" aria-label="colours by ratio, {1 / FURTHEST:g} to {FURTHEST:g}">'
        f"{swatches}</div>"
        f'<div class="scale-labels">{labels}</div>'
        f'<p class="quiet">Ratio to the first policy: below 1 is {below}, above 1 {above}. A dashed frame and ~ mark '
        "what is within the noise of the seeds.</p>"
    )
