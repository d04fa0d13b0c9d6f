"""The tables of the page about scenarios: who is defined where, and results beside the lower bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxyfl.methods import registry
from proxyfl.methods.fixmatch import FixMatch
from proxyfl.methods.registry import Recipe
from proxyfl.report.pages import refreshed, results
from proxyfl.report.scenario_tables import measured, methods

HEAD = "scenario,method,seed,rounds,mean_last,last,best,megabytes,commit\n"
ROWS = """\
server,server-only,1,15,0.90,0.9,0.9,0,a
server,server-only,2,15,0.80,0.8,0.8,0,a
server,server-only,3,15,0.70,0.7,0.7,0,a
server,semifl,1,15,0.95,0.9,0.9,75,a
server,semifl,2,15,0.85,0.9,0.9,75,a
server,semifl,3,15,0.75,0.9,0.9,75,a
server,sage,1,15,0.10,0.1,0.1,75,a
partial,semifl,1,15,0.10,0.1,0.1,75,a
"""


def test_methods_are_listed_with_accuracy_what_they_send_and_why_they_are_not_defined(tmp_path: Path) -> None:
    rows = ROWS + "server,semifl+gpt,1,15,0.2,0.2,0.2,75,a\n"
    (tmp_path / "scenarios.csv").write_text(HEAD + rows)
    lines = methods(tmp_path / "digits.csv").splitlines()
    assert "| `semifl` | – | 85.0 ▲ | – |" in lines
    assert "| `server-only` | – | 80.0 | – |" in lines
    assert "| `sage` |  | 10.0 (1) |  |" in lines
    assert "| `semifl+gpt` | – | 20.0 (1) | – |" in lines
    assert "- `semifl`: the size of the fix set up (1 number)" in lines
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
        "| `semifl` | 85.0 ± 10.0 % | 3 | +5.0 [+5.0, +5.0]: better, few seeds | 75 |",
        "| `server-only` | 80.0 ± 10.0 % | 3 | the bound | 0 |",
    ]
    assert "| -80.0 (too few seeds) |" in lines[4]
    assert lines[-1].startswith("3 pairs are few"), "one method with a single seed does not hide it"
    assert "| `semifl` | 10.0 % | 1 | no common seed | 75 |" in measured("partial", tmp_path / "d.csv")
    assert measured("clients", tmp_path / "digits.csv") == "Not measured yet."


def test_a_page_is_filled_and_a_method_is_found_in_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "scenarios.csv").write_text(HEAD + ROWS)
    page = refreshed("<!-- scenarios server -->\n<!-- /scenarios -->", tmp_path / "digits.csv")
    assert "| `server-only` | 80.0 ± 10.0 % | 3 | the bound | 0 |" in page
    assert "| `semifl` | 85.0 ± 10.0 % |" in results("semifl", tmp_path / "digits.csv")
