from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from proxyfl import __version__
from proxyfl.core import provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose package this program pretends to be."""
    package = tmp_path / "src" / "proxyfl"
    package.mkdir(parents=True)
    (package / "loop.py").write_text("ROUNDS = 1\n")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    provenance.this_commit.cache_clear()
    return tmp_path


def git(place: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", "-C", str(place), *who, *words], capture_output=True, text=True
    ).stdout.strip()


def test_a_checkout_names_its_commit_and_whether_it_has_changed(checkout: Path) -> None:
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "first")
    commit = git(checkout, "rev-parse", "--short", "HEAD")
    assert len(commit) >= 7
    assert provenance.this_commit() == commit
    (checkout / "src" / "proxyfl" / "loop.py").write_text("ROUNDS = 2\n")
    assert provenance.this_commit() == commit, "asked once"
    provenance.this_commit.cache_clear()
    assert provenance.this_commit() == f"{commit}-changed"
    provenance.this_commit.cache_clear()


def test_elsewhere_it_is_the_version(checkout: Path) -> None:
    assert provenance.this_commit() == __version__
    provenance.this_commit.cache_clear()
