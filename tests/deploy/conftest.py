"""One deployment of three sites with sample data, and a known terminal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs proxyfl[flower]")
pytest.importorskip("flwr", reason="needs proxyfl[flower]")

from calling import known_place
from proxyfl.deploy import scaffold


@pytest.fixture(autouse=True)
def known_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known_place(monkeypatch, tmp_path)


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment with sample data. Not to be changed: see ``own_trial``."""
    folder = tmp_path_factory.mktemp("deploy") / "trial"
    plan = scaffold.Plan(scaffold.site_names("3"), hosts=("fl.example.org", "10.0.0.5"), sample=True)
    scaffold.create(folder, plan)
    return folder


@pytest.fixture
def own_trial(trial: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trial, tmp_path / "trial"))
