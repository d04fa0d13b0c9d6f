"""The tables of the page about scenarios: who is defined where, and results beside the lower bound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from method_pages import refreshed, results
from proxyfl.methods import registry
from proxyfl.methods.fixmatch import FixMatch
from proxyfl.methods.registry import Recipe
from scenario_tables import measured, methods

DOCS = Path(__file__).parents[2] / "docs"
HEAD = "scenario,method,seed,dtype,rounds,mean_last,last,best,megabytes,commit\n"
ROWS = """\
server,server-only,1,fp32,15,0.90,0.9,0.9,0,a
server,server-only,2,fp32,15,0.80,0.8,0.8,0,a
server,server-only,3,fp32,15,0.70,0.7,0.7,0,a
server,semifl,1,fp32,15,0.95,0.9,0.9,75,a
server,semifl,2,fp32,15,0.85,0.9,0.9,75,a
server,semifl,3,fp32,15,0.75,0.9,0.9,75,a
server,sage,1,fp32,15,0.10,0.1,0.1,75,a
partial,semifl,1,fp32,15,0.10,0.1,0.1,75,a
"""


def test_methods_are_listed_with_accuracy_what_they_send_and_why_they_are_not_defined(tmp_path: Path) -> None:
    rows = ROWS + "server,semifl+gpt,1,fp32,15,0.2,0.2,0.2,75,a\n"
    (tmp_path / "scenarios.csv").write_text(HEAD + rows)
    lines = methods(tmp_path / "digits.csv").splitlines()
    assert "| `semifl` | – | 85.0 ▲ | – |" in lines
    assert "| `server-only` | – | 80.0 | – |" in lines
    assert "| `sage` |  | 10.0 (1) |  |" in lines
    assert "| `semifl+gpt` | – | 20.0 (1) | – |" in lines
    assert any("- `semifl`: the size of the fix set" in line for line in lines)
    assert any(line.startswith("- `feddure` with `server`: its regulators") for line in lines)
    assert any(
        line.startswith("- `server-only`, `flfl`, `semifl` with `clients` and `partial`: ") for line in lines
    )


def test_a_method_that_is_being_written_makes_no_page_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    before = methods(Path("none.csv"))
    for name in ("_recipes", "_shown"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    registry.register(Recipe("fresh", "as new-method writes it", FixMatch))
    assert methods(Path("none.csv")) == before


def test_results_stand_beside_the_lower_bound_of_their_scenario(tmp_path: Path) -> None:
    (tmp_path / "scenarios.csv").write_text(HEAD + ROWS)
    lines = measured("server", tmp_path / "digits.csv").splitlines()
    assert lines[2:4] == [
        "| `semifl` | 85.0 ± 10.0 % | 3 | fp32 | +5.0 [+5.0, +5.0]: better, few seeds | 75 |",
        "| `server-only` | 80.0 ± 10.0 % | 3 | fp32 | the bound | 0 |",
    ]
    assert "| -80.0 (too few seeds) |" in lines[4]
    assert lines[-1].startswith("3 pairs are few"), "one method with a single seed does not hide it"
    assert "| `semifl` | 10.0 % | 1 | fp32 | no common seed | 75 |" in measured("partial", tmp_path / "d.csv")
    assert measured("clients", tmp_path / "digits.csv") == "Not measured yet."


def test_runs_are_compared_within_a_precision(tmp_path: Path) -> None:
    """Two seeds in bf16 do not join the one in fp32, whose bound is another."""
    rows = ROWS + "".join(f"server,sage,{seed},bf16,15,0.85,0.9,0.9,75,a\n" for seed in (2, 3))
    (tmp_path / "scenarios.csv").write_text(HEAD + rows)
    lines = measured("server", tmp_path / "digits.csv").splitlines()
    assert "| `sage` | 85.0 ± 0.0 % | 2 | bf16 | no common seed | 75 |" in lines
    (tmp_path / "scenarios.csv").write_text(HEAD + rows + "server,server-only,2,bf16,15,0.5,0.5,0.5,0,a\n")
    lines = measured("server", tmp_path / "digits.csv").splitlines()
    assert "| `sage` | 85.0 ± 0.0 % | 2 | bf16 | +35.0 (too few seeds) | 75 |" in lines
    assert "| `server-only` | 80.0 ± 10.0 % | 3 | fp32 | the bound | 0 |" in lines


def test_variants_of_a_method_stand_beside_it_and_not_among_the_methods(tmp_path: Path) -> None:
    made = [("semifl (slow)", 0.9), ("semifl+gpt", 0.96)]
    rows = "".join(f"server,{name},1,fp32,15,{value},0.9,0.9,75,a\n" for name, value in made)
    (tmp_path / "scenarios.csv").write_text(HEAD + ROWS + rows)
    page = refreshed("<!-- scenarios server semifl -->\n<!-- /scenarios -->", tmp_path / "digits.csv")
    first, second, third = page.splitlines()[3:6]
    assert "`semifl+gpt` | 96.0 % | 1 | fp32 | +1.0" in first
    assert "`semifl` (slow) | 90.0 % | 1 | fp32 | -5.0" in second
    assert "`semifl` | 85.0 ± 10.0 % | 3 | fp32 | the method" in third
    assert "(slow)" not in measured("server", tmp_path / "digits.csv")


def test_a_page_is_filled_and_a_method_is_found_in_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "scenarios.csv").write_text(HEAD + ROWS)
    page = refreshed("<!-- scenarios server -->\n<!-- /scenarios -->", tmp_path / "digits.csv")
    assert "| `server-only` | 80.0 ± 10.0 % | 3 | fp32 | the bound | 0 |" in page
    assert "| `semifl` | 85.0 ± 10.0 % |" in results("semifl", tmp_path / "digits.csv")


def test_the_page_gives_a_reason_for_every_method_below_its_bound() -> None:
    page = (DOCS / "scenario-results.md").read_text(encoding="utf-8")
    tables = re.findall(r"<!-- scenarios \w+ -->\n(.*?)<!-- /scenarios -->", page, re.DOTALL)
    assert len(tables) == 3
    low = {row.split("`")[1] for table in tables for row in table.splitlines() if re.search(r"\| -\d", row)}
    reasons = page.partition("## Below the lower bound, and why")[2]
    assert low
    assert low == {row.split("`")[1] for row in reasons.splitlines() if row.startswith("| `")}
