"""The documentation site: every page is in it, every link leads somewhere, nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import docstrings
import links
import site_pages
from proxyfl import __all__ as public
from proxyfl.methods import registry

ROOT = Path(__file__).parents[2]
NAV = {
    name: pages
    for part in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    for name, pages in part.items()
}
REFERENCE = {page for entry in NAV["Reference"] for page in entry.values()}
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site") / "pages"
    site_pages.gather(place)
    return place


@pytest.fixture(scope="module")
def html(pages: Path) -> Path:
    assert site_pages.build(pages) == 0
    return pages.parent / "html"


def test_no_page_but_the_reference_has_more_than_1500_words(pages: Path) -> None:
    """Words of tables, code and outputs count, too; the bars of tables and other signs do not."""
    guides = {name for page in pages.rglob("*.md") if (name := str(page.relative_to(pages))) not in REFERENCE}
    assert {name for name in guides if words(pages / name) > 1500} == set()


def words(page: Path) -> int:
    text = COMMENT.sub("", page.read_text(encoding="utf-8"))
    return sum(any(map(str.isalnum, word)) for word in text.split())


@pytest.mark.slow
def test_links_lead_somewhere_and_nothing_is_fetched(html: Path) -> None:
    assert links.broken(html) == []


@pytest.mark.slow
def test_every_notebook_has_a_page_with_its_outputs(html: Path) -> None:
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        page = (html / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        assert f"examples/{notebook.name}" in page
    assert list((html / "notebooks").glob("*.png"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('<a href="other.html#place">', []),
        ('<a href="other.html">', []),
        ('<a href="folder/">', []),
        ('<a href="https://example.org/x">', []),
        ('<img src="data:,">', []),
        ('<a href="none.html">', ["page.html: none.html leads nowhere"]),
        ('<a href="../outside.html">', ["page.html: ../outside.html leads nowhere"]),
        ('<a href="other.html#no">', ["page.html: other.html#no names no place in that page"]),
        ('<a href="#no">', ["page.html: #no names no place in that page"]),
        ('<img src="https://example.org/x.png">', ["page.html: fetches https://example.org/x.png"]),
    ],
)
def test_what_the_link_checker_finds(tmp_path: Path, body: str, told: list[str]) -> None:
    site = tmp_path / "site"
    (site / "folder").mkdir(parents=True)
    (tmp_path / "outside.html").touch()
    (site / "folder" / "index.html").touch()
    (site / "other.html").write_text('<h1 id="place">x</h1>')
    (site / "page.html").write_text(body)
    assert links.broken(site) == told


@pytest.mark.slow
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
