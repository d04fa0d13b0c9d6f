"""Follow every link of a built site that stays in it: pages, pictures, anchors. Nothing is fetched.

python tools/links.py build/site/html    exit with 1 and say which links lead nowhere
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ELSEWHERE = ("http", "https", "mailto", "data", "javascript")
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser loads by itself. Links that a reader may click can lead elsewhere, these cannot."""


class _Page(HTMLParser):
    """A page's links and the places in it that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name"):
                self.places.add(value or "")
            if name in ("href", "src") and value:
                canonical = ("rel", "canonical") in attributes
                self.links.append((value, FETCHED.get(tag) == name and not canonical))


def broken(site: Path) -> list[str]:
    """Links of the site that lead nowhere in it, and what it would fetch from elsewhere."""
    pages = {file.resolve(): _Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    return [told for file in sorted(pages) for told in _faults(file, site.resolve(), pages)]


def _faults(file: Path, site: Path, pages: dict[Path, _Page]) -> Iterator[str]:
    if file.name == "404.html":  # its links begin at the address where the site is put
        return
    for link, fetched in dict.fromkeys(pages[file].links):
        found = urlsplit(link)
        if found.scheme in ELSEWHERE or found.netloc:
            if fetched and found.scheme != "data":
                yield f"{file.relative_to(site)}: fetches {link}"
            continue
        target = (file.parent / unquote(found.path)).resolve() if found.path else file
        target = target / "index.html" if target.is_dir() else target
        if not target.is_relative_to(site) or not target.exists():
            yield f"{file.relative_to(site)}: {link} leads nowhere"
        elif target in pages and unquote(found.fragment) not in pages[target].places:
            yield f"{file.relative_to(site)}: {link} names no place in that page"


def main() -> int:
    faults = broken(Path(sys.argv[1]))
    print("\n".join(faults) or "every link leads somewhere")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
