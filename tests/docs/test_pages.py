"""The method pages: complete, and what is generated in them is what the code and the results say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from proxyfl.methods import registry

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
SECTIONS = ["Idea", "Parameters", "Good to know", "Deviations", "Run it"]
HEADER = "method,seed,mean_last,last,best\n"

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture
def refresh() -> ModuleType:
    """``docs/refresh.py``, a fresh copy for each test."""
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def measured(refresh: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ``refresh`` looks for results; there are none yet."""
    monkeypatch.setattr(refresh, "RESULTS", tmp_path / "results.csv")
    return tmp_path / "results.csv"


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


@by_page
def test_parameters_and_results_of_a_page_are_generated(page: Path, refresh: ModuleType) -> None:
    text = page.read_text(encoding="utf-8")
    assert [block[1] for block in refresh.BLOCK.finditer(text)] == ["parameters", "results"]
    assert "## Parameters" not in refresh.BLOCK.sub("", text)


def test_every_method_is_on_a_page_with_its_results() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    results = {name for names in re.findall(r"<!-- results (.+?) -->", pages) for name in names.split()}
    for recipe in registry.recipes():
        if recipe.method.__module__.startswith("proxyfl.methods."):  # no plug-in of another test
            assert f"`{recipe.name}`" in pages
            assert recipe.name in results


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


def test_without_results_a_method_is_not_measured_yet(refresh: ModuleType, measured: Path) -> None:
    assert refresh.results("sage").splitlines()[-1] == "| `sage` | not measured yet | | | |"


def test_results_are_means_and_deviations_over_seeds(refresh: ModuleType, measured: Path) -> None:
    rows = "sage,1,0.5,0.25,0.75\nsage,2,0.7,0.25,0.85\n"
    measured.write_text(HEADER + rows)
    assert refresh.results("sage feddb").splitlines()[-2:] == [
        "| `sage` | 60.0 ± 14.1 % | 25.0 ± 0.0 % | 80.0 ± 7.1 % | 2 |",
        "| `feddb` | not measured yet | | | |",
    ]
