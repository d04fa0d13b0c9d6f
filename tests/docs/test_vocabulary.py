"""No word of an early dialect of this project comes back: CONTRIBUTING has the words to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

WORDS = r"told|troubles?|vouch\w*|shel(f|ves)|ledgers?|seal(s|ed|ing)?|mend(s|ed|ing)?|rehears\w*"
"""Words that stand nowhere, neither in sentences nor in names."""
PHRASES = (
    r"go(es|ing)? on|went on|(keep|keeps|kept) (\w+ )?back|hostile|strangers?|processor time|hand(s|ed)? out"
    r"|(is|are) no [a-z]+ of|play(s|ed|ing)?|dealt|whoever|nobody is|has no account|beyond any use"
)
"""Besides, what stands in no sentence that a user sees."""
SPOKEN = {"a seal, among the classes of CIFAR-100": "sea seal shark"}
NAMES = {"stranger", "strangers", "strangers_refused", "hostile"}
"""Values that programs depend on: of logs, metrics and settings."""


def test_pages_have_the_words_of_the_vocabulary() -> None:
    banned = re.compile(rf"\b({WORDS}|{PHRASES})\b", re.IGNORECASE)
    found = [
        f"{page.relative_to(ROOT)}: {hit[0]}"
        for page in PAGES
        for hit in banned.finditer(
            re.sub(r"`[^`]*`|```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
    ]
    assert not found


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT / "src")))
def test_sources_have_the_words_of_the_vocabulary(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for spoken in SPOKEN.values():
        text = text.replace(spoken, "")
    found = [hit[0] for hit in re.finditer(rf"(?<![a-z])({WORDS})(?![a-z])", text, re.IGNORECASE)]
    said = [f"{hit[0]} in: {each}" for each in _seen(text) for hit in re.finditer(rf"\b({PHRASES})\b", each)]
    assert not [*found, *said]


def _seen(text: str) -> Iterator[str]:
    """Sentences of a module that a user sees: its texts, but for docstrings and single names."""
    tree = ast.parse(text)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if node.value not in NAMES and " " in node.value:
                yield node.value
