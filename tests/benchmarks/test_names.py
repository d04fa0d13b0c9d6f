"""Benchmarks run for minutes and are no tests, so nothing else notices when a name they use has moved."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.stem)
def test_what_a_benchmark_takes_from_the_library_is_there(file: Path) -> None:
    for found in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(found, ast.ImportFrom) and str(found.module).partition(".")[0] == "proxyfl":
            module = importlib.import_module(str(found.module))
            for name in (each.name for each in found.names):
                if not hasattr(module, name):
                    importlib.import_module(f"{found.module}.{name}")
