"""The report: one HTML file that needs nothing else, neither network nor server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from proxyfl.core.errors import RunError
from proxyfl.core.files import write_output
from proxyfl.core.text import printable
from proxyfl.report.html.gather import COLOURS, gather
from proxyfl.report.html.pieces import Labels
from proxyfl.runs.run import Run

STYLES = ("page.css",)
SCRIPTS = ("dom.js", "charts.js", "maps.js", "sections.js", "list.js", "start.js")


def write_report(
    runs: Sequence[Run], path: str | Path, title: str = "", tell: Callable[[Path, str], None] | None = None
) -> Path:
    """A page about these runs, side by side. Gives the file. With ``tell``, which hears of them, damaged runs
    are left out; otherwise, and where all are damaged, they are an error.
    """
    if not runs:
        raise RunError("there is no run to report on; name one or more")
    return write_output(Path(path), render(gather(runs, title, Labels(), tell)).encode())


def render(data: dict[str, Any]) -> str:
    """The page: its style, script and data inline, and a policy that admits nothing else."""
    rules = f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
    inline = f'<script type="application/json" id="data">{as_json(data)}</script>'
    return shell(
        title=data["title"],
        page="report",
        head=f"{rules}\n<style>{stylesheet()}</style>",
        body=f"{inline}\n<script>{script()}</script>",
    )


def policy() -> str:
    """What a report may load and run: its own style and script."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(stylesheet())}'",
            f"script-src '{_hash(script())}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def shell(*, title: str, page: str, head: str, body: str) -> str:
    """What every page has around it. The policy comes before anything that it rules."""
    return f"""<!doctype html>
<html lang="en" data-page="{page}">
<head>
<meta charset="utf-8">
{head}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{escape(printable(title))}</title>
</head>
<body>
<main id="main">
<p id="loading" class="note" role="status">Loading…</p>
<noscript><p>The charts of this page are drawn by its own script: allow it to run.</p></noscript>
</main>
{body}
</body>
</html>
"""


def as_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def stylesheet() -> str:
    """The style with the palette of all our pictures."""
    palette = "".join(f"--{name}:{colour};" for colour, name in COLOURS.items())
    return f":root{{{palette}}}\n" + "".join(map(_asset, STYLES))


def script() -> str:
    """The script, all of it in one scope of its own."""
    return '"use strict";\n(() => {\n' + "".join(map(_asset, SCRIPTS)) + "})();\n"


def _asset(name: str) -> str:
    return resources.files("proxyfl.report.html").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
