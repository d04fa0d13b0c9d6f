"""No word of an early dialect of this project comes back: CONTRIBUTING has the words to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import getdoc, isclass
from pathlib import Path

import proxyfl
from docstrings import as_markdown

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src").rglob("*.md")),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

WORDS = re.compile(
    r"(?<![a-z])(told|troubles?|vouch\w*|shel(f|ves)|ledgers?|seal(s|ed|ing)?|mend(s|ed|ing)?|rehears\w*)(?![a-z])",
    re.IGNORECASE,
)
"""They stand nowhere in the source, neither in sentences nor in names."""
PHRASES = re.compile(
    r"(?<![\w.])(go(es|ing)? on|went on|(keep|keeps|kept) (\w+ )?back|hostile|strangers?|processor time"
    r"|hand(s|ed)? out|(?<!there )(is|are) no [a-z]+ of|play(s|ed|ing)?|dealt|whoever|nobody is"
    r"|has no account|beyond any use|to the bit|put (it|them) back|bring \w+( \w+)? back|hand (it|each|over)"
    r"|under way|certificate has ended|as asked)\b",
    re.IGNORECASE,
)
"""Besides, these stand in no sentence that a user sees."""
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
MOST_WORDS = 8
"""That a test may expect in a row."""
NO_SENTENCE = re.compile(r"proxyfl [a-z-]+ |document\.|: nobody; ")
"""Commands, a browser's code, a line of fields."""
ANIMALS = "sea seal shark"
"""Classes of CIFAR-100."""


def test_pages_keep_to_the_vocabulary() -> None:
    assert not [
        f"{page.relative_to(ROOT)}: {hit[0]}"
        for page in PAGES
        for banned in (WORDS, PHRASES)
        for hit in banned.finditer(CODE.sub("", page.read_text(encoding="utf-8")))
    ]


def test_sources_keep_to_the_vocabulary() -> None:
    found = []
    for file in SOURCES:
        text = file.read_text(encoding="utf-8").replace(ANIMALS, "")
        hits = [*WORDS.finditer(text), *(hit for each in _seen(text) for hit in PHRASES.finditer(each))]
        found += [f"{file.relative_to(ROOT)}: {hit[0]} in {hit.string[:80]!r}" for hit in hits]
    assert not found


def test_the_reference_keeps_to_the_vocabulary() -> None:
    """Docstrings of public names and of their members are pages, too."""
    found = []
    for name in proxyfl.__all__:
        thing = getattr(proxyfl, name)
        members = [member for key, member in vars(thing).items() if key[0] != "_"] if isclass(thing) else []
        for text in (as_markdown(getdoc(each) or "") for each in (thing, *members)):
            found += [f"{name}: {hit[0]} in {text[:80]!r}" for hit in PHRASES.finditer(CODE.sub("", text))]
    assert not found


def test_no_test_freezes_a_sentence() -> None:
    """Tests check the fact that matters, so that wording can improve; commands to type are facts."""
    frozen = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = [node.test] if isinstance(node, ast.Assert) else []
            parts += [node.value] if isinstance(node, ast.keyword) and node.arg == "match" else []
            for text in (each for part in parts for each in _texts(part)):
                if len(re.findall("[A-Za-z]{2,}", text)) > MOST_WORDS and not NO_SENTENCE.search(text):
                    frozen.append(f"{file.relative_to(ROOT)}: {text}")
    assert not frozen


def _texts(part: ast.AST) -> Iterator[str]:
    """The texts in an expression; one that is put together counts as a whole."""
    whole = [node for node in ast.walk(part) if isinstance(node, ast.JoinedStr)]
    inner = {id(value) for node in whole for value in node.values}
    for node in whole:
        yield " ".join(value.value for value in node.values if isinstance(value, ast.Constant))
    for node in ast.walk(part):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def _seen(text: str) -> Iterator[str]:
    """What a module may show to a user: its texts of several words, but no docstrings."""
    tree = ast.parse(text)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from [node.value] if " " in node.value else []
