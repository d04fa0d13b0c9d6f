"""The README's badges as pictures of our own, so that nobody's browser asks another server for them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
WIDE = 6.6
"""Pixels of a letter; the text is fitted to it."""


def badges() -> dict[str, str]:
    """The name of each picture and its SVG: what pyproject.toml says."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = {
        "version": about["version"],
        "python": about["requires-python"].replace(">=", "≥ "),
        "licence": about["license"],
    }
    return {f"badge-{name}.svg": badge(name, text) for name, text in said.items()}


def badge(name: str, text: str) -> str:
    """A name on grey and what it is on blue."""
    widths = [WIDE * len(words) + 12 for words in (name, text)]
    whole = sum(widths)
    words = "".join(
        f'<text x="{start + width / 2:g}" y="14" textLength="{width - 12:g}">{escape(shown)}</text>'
        for shown, start, width in ((name, 0, widths[0]), (text, widths[0], widths[1]))
    )
    blue = f"M{widths[0]:g} 0h{widths[1] - 3:g}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{widths[1] - 3:g}z"
    font = 'text-anchor="middle" font-family="DejaVu Sans, Verdana, sans-serif" font-size="11"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole:g}" height="20" role="img">'
        f"<title>{escape(f'{name}: {text}')}</title>"
        f'<rect width="{whole:g}" height="20" rx="3" fill="#474d55"/><path d="{blue}" fill="#00598c"/>'
        f'<g fill="#fff" {font}>{words}</g></svg>\n'
    )
