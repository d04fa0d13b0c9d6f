"""Fill the generated parts of the pages: tables from the code, results and pictures from ``results/``.

python tools/refresh.py            rewrite the pages
python tools/refresh.py --check    exit with 1 when a page is out of date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import paper_pages
from badges import badges
from method_pages import RESULTS, refreshed

ROOT = Path(__file__).parents[1]
DOCS, MEASURED = ROOT / "docs", ROOT / "results"
README = ROOT / "README.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, say what is out of date")
    check = parser.parse_args().check
    stale = []
    for page in [*sorted((DOCS / "methods").glob("*.md")), *sorted(DOCS.glob("*.md")), README]:
        old = page.read_text(encoding="utf-8")
        of_paper = page.name.startswith("paper")
        if page == README:
            new = paper_pages.refreshed(old, MEASURED, "docs/images")
        else:
            new = paper_pages.refreshed(old, MEASURED) if of_paper else refreshed(old, RESULTS)
        if of_paper and not check:
            paper_pages.draw_pictures(new, MEASURED, DOCS / "images")
        if new != old:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    for name, picture in badges().items():
        file = ROOT / "docs" / "images" / name
        if not file.exists() or file.read_text(encoding="utf-8") != picture:
            stale.append(name)
            if not check:
                file.write_text(picture, encoding="utf-8")
    if stale:
        print(("out of date: " if check else "rewrote: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
