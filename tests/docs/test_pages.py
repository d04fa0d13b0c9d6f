"""The method pages: complete, and what is generated in them is what the code and the results say."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import operator
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from method_pages import BLOCK, results
from proxyfl.core.config import Config
from proxyfl.methods import registry

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
SECTIONS = ["Idea", "Parameters", "Good to know", "Deviations", "Run it"]
EQUATIONS = "| equation | in the code |"
HEADER = "method,seed,mean_last,last,best\n"

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture
def refresh() -> ModuleType:
    """``tools/refresh.py``, a fresh copy for each test."""
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "tools" / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(refresh: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["refresh.py", *words])
    return int(refresh.main())


def test_no_page_is_out_of_date(
    refresh: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (call(refresh, monkeypatch, "--check"), capsys.readouterr().out) == (0, ""), "run 'make docs'"


def test_a_page_that_is_out_of_date_is_found_and_mended(
    refresh: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (ROOT / "docs" / "methods" / "sage.md").read_text(encoding="utf-8")
    page = tmp_path / "methods" / "sage.md"
    page.parent.mkdir()
    page.write_text(good.replace("| `tau` | 0.95 |", "| `tau` | 0.5 |"), encoding="utf-8")
    assert page.read_text(encoding="utf-8") != good
    monkeypatch.setattr(refresh, "DOCS", tmp_path)
    assert call(refresh, monkeypatch, "--check") == 1
    assert capsys.readouterr().out == "out of date: sage.md\n"
    assert call(refresh, monkeypatch) == 0
    assert page.read_text(encoding="utf-8") == good


@by_page
def test_a_page_has_every_section_in_order(page: Path) -> None:
    titles = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    found = [section for title in titles for section in SECTIONS if title.startswith(section)]
    assert found == SECTIONS


def rows_of(page: Path) -> list[list[str]]:
    """The cells of the rows of a page's table of equations; a bar that is escaped parts no cells."""
    table = page.read_text(encoding="utf-8").partition(EQUATIONS + "\n")[2].partition("\n\n")[0]
    return [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in table.splitlines()[1:]]


def code_names(cell: str) -> list[tuple[str, str]]:
    """What a cell names, each with the file it is in: the one before it, where it has none of its own."""
    found, file = [], ""
    for words in re.findall(r"`(.+?)`", cell):
        named, _, name = words.rpartition(": ")
        file = named or file
        found.append((file, name))
    return found


def exists(file: str, name: str) -> bool:
    """Whether a file has a function, or a class of a method has an attribute, or there is such a setting."""
    module = file.removesuffix(".py").replace("/", ".")
    if " = " in name:
        name = name.partition(" = ")[0]
        classes = [recipe.method.Parameters for recipe in registry.recipes()]
        return any(name == spec.name for cls in classes for spec in dataclasses.fields(cls))
    if re.fullmatch(r"[a-z]+\.[a-z_]+", name):
        return has(Config(), name)
    if "." in name:
        modules = [value for key, value in sys.modules.items() if key.startswith("proxyfl.methods.")]
        return any(has(module, name) for module in modules)
    places = [at for at in ("", "methods/") if (ROOT / "src" / "proxyfl" / at / file).is_file()]
    modules = [importlib.import_module("proxyfl." + at.replace("/", ".") + module) for at in places]
    return any(has(module, name) for module in modules)


def has(place: Any, name: str) -> bool:
    try:
        return operator.attrgetter(name)(place) is not None
    except AttributeError:
        return False


@by_page
def test_equations_stand_beside_code_that_exists(page: Path) -> None:
    rows = rows_of(page)
    assert rows
    for cells in rows:
        assert len(cells) == 2, cells
        names = code_names(cells[1])
        assert names, cells
        for file, name in names:
            assert exists(file, name), f"{file} {name}"


def test_names_that_do_not_exist_are_noticed() -> None:
    assert code_names("`sage.py: local_share`, `gone`, `SAGE.gone`") == [
        ("sage.py", "local_share"), ("sage.py", "gone"), ("sage.py", "SAGE.gone"),
    ]  # fmt: skip
    assert exists("sage.py", "local_share")
    assert exists("", "federation.weighting")
    assert exists("", 'mask = "either"')
    for name in ("SAGE.gone", "federation.gone", "gone = 1"):
        assert not exists("", name)
    assert not exists("sage.py", "gone")
    assert not exists("gone.py", "local_share")


@by_page
def test_parameters_and_results_of_a_page_are_generated(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [block[1] for block in BLOCK.finditer(text)] == ["parameters", "results"]
    assert "## Parameters" not in BLOCK.sub("", text)


def test_every_method_is_on_a_page_with_its_results() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = {name for names in re.findall(r"<!-- results (.+?) -->", pages) for name in names.split()}
    for recipe in registry.recipes():
        if recipe.method.__module__.startswith("proxyfl.methods."):  # no plug-in of another test
            page = ROOT / "docs" / "methods" / f"{registry.shown(recipe.name).page or recipe.name}.md"
            assert f"`{recipe.name}`" in page.read_text(encoding="utf-8")
            assert recipe.name in shown


def test_every_method_is_in_the_readme_and_the_changelog_by_its_family() -> None:
    families = (
        "FedAvg FedAvg-SL FedProx FixMatch FlexMatch FedMatch FedLabel FedLoKe FedDure FedDB SAGE".split()
    )
    for document in ("README.md", "CHANGELOG.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for family in (*families, "SAGE", "prototypes", "ProxyFL"):
            assert re.search(rf"\b{family}\b", text), f"{document} lacks {family}"


def test_every_verb_is_in_the_changelog() -> None:
    from proxyfl.cli import app

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    names = [each.name or each.callback.__name__ for each in app.registered_commands if each.callback]
    names += [str(group.name) for group in app.registered_groups]
    assert len(names) >= 14
    for name in names:
        assert f"`{name}`" in text or f"`proxyfl {name}`" in text, name


def test_without_results_a_method_is_not_measured_yet(tmp_path: Path) -> None:
    rows = results("sage (half 1) feddb", tmp_path / "none.csv").splitlines()[-2:]
    assert rows == [
        "| `sage` (half 1) | not measured yet | | | |",
        "| `feddb` | not measured yet | | | |",
    ]


def test_results_are_means_and_deviations_over_seeds(tmp_path: Path) -> None:
    rows = "sage,1,0.5,0.25,0.75\nsage,2,0.7,0.25,0.85\nsage (half 1),1,0.1,0.2,0.3\n"
    (tmp_path / "results.csv").write_text(HEADER + rows)
    assert results("sage sage (half 1) feddb", tmp_path / "results.csv").splitlines()[-3:] == [
        "| `sage` | 60.0 ± 14.1 % | 25.0 ± 0.0 % | 80.0 ± 7.1 % | 2 |",
        "| `sage` (half 1) | 10.0 % | 20.0 % | 30.0 % | 1 |",
        "| `feddb` | not measured yet | | | |",
    ]
