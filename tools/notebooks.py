"""Make the notebooks of ``examples/`` from the scripts beside them, with what their cells give.

python tools/notebooks.py [NAME …]    run these notebooks (all of them) and write the .ipynb files

A script is the source: ``# %%`` begins a cell, ``# %% [markdown]`` one of text, as Jupyter's editors read it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
MARK = re.compile(r"^# %%( \[markdown\])?\n", re.M)
PATIENCE = 600
"""Seconds that one cell may take."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="as in 01_first_federation")
    for script in [EXAMPLES / f"{name}.py" for name in parser.parse_args().names] or scripts():
        print(script.stem, flush=True)
        with tempfile.TemporaryDirectory() as place:
            nbformat.write(executed(notebook(script), Path(place)), script.with_suffix(".ipynb"))
    return 0


def scripts() -> list[Path]:
    """The scripts that are notebooks: those that begin with a cell."""
    return [file for file in sorted(EXAMPLES.glob("*.py")) if MARK.match(file.read_text(encoding="utf-8"))]


def notebook(script: Path) -> Any:
    """A notebook of a script's cells, without outputs."""
    _, *parts = MARK.split(script.read_text(encoding="utf-8"))
    cells = []
    for place, (kind, source) in enumerate(zip(parts[::2], parts[1::2], strict=True), 1):
        text, made = source.strip(), nbformat.v4.new_code_cell
        if kind:
            text, made = re.sub(r"^# ?", "", text, flags=re.M), nbformat.v4.new_markdown_cell
        cells.append(made(text, id=f"cell-{place}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def executed(made: Any, place: Path) -> Any:
    """The notebook with what its cells give when they run in a folder. An error in a cell is one here."""
    where = {"metadata": {"path": str(place)}}
    options = {"timeout": PATIENCE, "record_timing": False, "coalesce_streams": True}
    NotebookClient(made, resources=where, **options).execute()
    made.metadata.pop("language_info", None)  # it names a version of Python
    for cell in made.cells:
        if cell.cell_type == "code":  # progress is for who waits, not for who reads
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return made


if __name__ == "__main__":
    sys.exit(main())
