"""A command line as a user would type it, in a terminal of known width."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from proxyfl.cli import app

TINY = ["--rounds", "1", "--clients", "4", "--per-round", "2", "--subset", "120"]
TINY += ["--set", "train.epochs=1", "--set", "model.name=mlp"]
"""Options of a run that takes a fraction of a second."""

SETTINGS = [
    "partition.clients=4",
    "federation.per_round=2",
    "data.subset=150",
    "train.epochs=1",
    "model.name=mlp",
]
FLAGS = [word for assignment in SETTINGS for word in ("--set", assignment)]
"""The same for commands that make many runs."""


def invoke(*words: object) -> Result:
    # Errors that are no ProxyFLError are bugs: they must reach the test.
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def known_place(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """An empty folder, 160 columns, and nothing of the user's own environment."""
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("PROXYFL_RUNS", "PROXYFL_DATA", "PROXYFL_PLUGINS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.chdir(folder)
