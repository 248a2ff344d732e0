"""What the pictures of documentation pages are drawn with: SVG that reads on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

GREY = "#8a8f98"
DARK = "#101418"  # on a tinted cell


def text(
    x: float,
    y: float,
    words: str,
    size: float = 10,
    anchor: str = "start",
    fill: str = GREY,
    weight: int = 400,
) -> str:
    """A line of text."""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}" font-weight="{weight}">{escape(words)}</text>'


def ratio_text(ratio: float) -> str:
    """A ratio in the space of a cell."""
    return f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"


def picture(width: float, height: float, parts: Sequence[str]) -> str:
    """The whole file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" font-family="system-ui, sans-serif" role="img">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
