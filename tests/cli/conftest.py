"""One tiny run that the tests of the command line look at, and a runner with a known terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from calling import TINY, invoke, known_place

Call = Callable[..., Result]


@pytest.fixture(autouse=True)
def known_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known_place(monkeypatch, tmp_path)


@pytest.fixture
def call() -> Call:
    """``call("run", "digits")`` as a user would type it, in an empty folder."""
    return invoke


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one round. Not to be changed: see ``own_tiny``."""
    runs = tmp_path_factory.mktemp("cli") / "runs"
    result = invoke("run", "digits", *TINY, "--name", "tiny", "--runs", runs)
    assert result.exit_code == 0, result.stderr
    (runs / "told.txt").write_text(result.stdout, encoding="utf-8")
    return runs / "tiny"


@pytest.fixture
def own_tiny(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny run, to be damaged."""
    import shutil

    return Path(shutil.copytree(tiny, tmp_path / "runs" / "tiny"))
