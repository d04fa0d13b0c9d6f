"""Docstrings as Markdown, for the site's reference: doctests become code blocks, roles become plain names.

Of a typed setting, signatures show the default; its meaning and range are on the page of settings.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|data|mod|attr|exc):`~?([^`]+)`")
FLAG = re.compile(r"\s*# doctest: \+SKIP\s*$")


class Markdown(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_attribute_instance(self, *, attr: Any, **_: Any) -> None:
        if isinstance(attr.value, griffe.ExprCall) and str(attr.value.function) == "setting":
            attr.value = attr.value.arguments[0]


def as_markdown(text: str) -> str:
    """
    >>> print(as_markdown("See :class:`~a.B`::\\n\\n    x = 1\\n\\n>>> 1 + 1\\n2"))
    See `B`:
    <BLANKLINE>
        x = 1
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if not inside and line.lstrip().startswith(">>> "):
            inside = True
            lines.append("```pycon")
        elif inside and not line.strip():
            inside = False
            lines.append("```")
        lines.append(FLAG.sub("", line) if inside else _plain(line))
    return "\n".join(lines).rstrip("\n")


def _plain(line: str) -> str:
    line = ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2] or found[1]}`", line)
    if line.startswith("    "):
        return line
    return re.sub(r"::$", ":", line).replace("``", "`")
