"""The documentation site: every page is in it, every link leads somewhere, nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import docstrings
import site_pages
from proxyfl import __all__ as public
from proxyfl.methods import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site") / "pages"
    site_pages.gather(place)
    assert site_pages.build(place) == 0
    return place.parent / "html"


def test_links_lead_somewhere_and_nothing_is_fetched(html: Path) -> None:
    for page in html.rglob("*.html"):
        if page.name == "404.html":  # its links begin at the address where the site is put
            continue
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|link)[^>]+(?:src|href)="https?://', text), page
        for target in re.findall(r'(?:href|src)="([^"#?:]+)["#?]', text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_reference_has_every_public_name_verb_and_method(html: Path) -> None:
    api = (html / "reference" / "api.html").read_text(encoding="utf-8")
    assert all(f'id="proxyfl.{name}"' in api for name in public)
    assert 'id="proxyfl-run"' in (html / "reference" / "cli.html").read_text(encoding="utf-8")
    settings = (html / "reference" / "settings.html").read_text(encoding="utf-8")
    assert "train.batch" in settings
    methods = (html / "methods" / "index.html").read_text(encoding="utf-8")
    assert all(f"<code>{recipe.name}</code>" in methods for recipe in registry.recipes())


def test_docstrings_become_markdown() -> None:
    text = "See :class:`~a.B` and ``c``::\n\n    x = 1\n\n>>> 1 + 1  # doctest: +SKIP\n2\n\nEnd."
    wanted = "See `B` and `c`:\n\n    x = 1\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd."
    assert docstrings.as_markdown(text) == wanted
