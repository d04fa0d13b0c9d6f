"""The notebooks: what their scripts say, with outputs that were really given, and they run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

import notebooks  # noqa: E402

NAMES = [script.stem for script in notebooks.scripts()]
PLACES = re.compile(r"/(?:tmp|home|root|work|usr|var|Users)/")


def stored(name: str) -> Any:
    return nbformat.read(notebooks.EXAMPLES / f"{name}.ipynb", as_version=4)


def gives(cell: Any) -> list[str]:
    """What kinds of outputs a cell has; printed text may come in several parts."""
    return sorted({each.get("name") or min(each["data"]) for each in cell.get("outputs", ())})


def test_there_are_as_many_notebooks_as_scripts() -> None:
    assert sorted(file.stem for file in notebooks.EXAMPLES.glob("*.ipynb")) == NAMES
    assert len(NAMES) == 5


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_script_and_has_outputs(name: str) -> None:
    found, script = stored(name), notebooks.notebook(notebooks.EXAMPLES / f"{name}.py")
    nbformat.validate(found)
    told = [(cell.cell_type, cell.source) for cell in found.cells]
    assert told == [(cell.cell_type, cell.source) for cell in script.cells], "run tools/notebooks.py"
    assert told[0][1].startswith("# ")
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert any(gives(cell) for cell in code)
    assert not PLACES.search(nbformat.writes(found))


def test_the_method_of_the_guide_has_at_most_20_lines() -> None:
    cells = stored("03_own_method").cells
    (source,) = [cell.source for cell in cells if "class Sharp(" in cell.source]
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    script = (notebooks.EXAMPLES / "03_own_method.py").read_text(encoding="utf-8")
    assert len(script.splitlines()) <= 60
    (table,) = [cell.outputs[0].text for cell in cells if "DataFrame(rows)" in cell.source]
    assert ["entropy" in line for line in table.splitlines()] == [True, False, False, False]
    assert ["NaN" in line for line in table.splitlines()[1:]] == [True, False, False]  # its parent has none


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    made = notebooks.executed(notebooks.notebook(notebooks.EXAMPLES / f"{name}.py"), tmp_path)
    assert [gives(cell) for cell in made.cells] == [gives(cell) for cell in stored(name).cells]
