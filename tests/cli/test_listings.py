"""Listings are made once, and anew when anything that they follow from has changed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proxyfl.cli import listings
from proxyfl.core import kept, provenance

PROGRAM = """
import sys
from proxyfl.cli import main
sys.argv = ["proxyfl", *sys.argv[1:]]
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[str, int]]:
    """What is printed for some words, and how often it was made."""

    def ask(*words: str, says: str = "a list\n", code: int = 0) -> tuple[str, int]:
        calls = []

        def make() -> None:
            calls.append(words)
            sys.stdout.write(says)
            sys.exit(code)

        with contextlib.suppress(SystemExit):
            listings.kept(words, make)
        return capsys.readouterr().out, len(calls)

    # Who has imported them may have registered more, as other tests here have.
    for name in [name for name in sys.modules if name == "proxyfl.methods"]:
        monkeypatch.delitem(sys.modules, name)
    return ask


def test_the_second_time_the_program_needs_no_torch(cache: Path) -> None:
    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-c", PROGRAM, *words]
        return subprocess.run(call, capture_output=True, text=True, timeout=120)

    assert ask("methods", "--help").returncode == 0
    first, second = ask("methods"), ask("methods")
    assert (first.returncode, second.returncode) == (0, 0)
    assert "fedprox+fixmatch" in first.stdout
    assert second.stdout == first.stdout
    assert (first.stderr, second.stderr) == ("True\n", "False\n")


def test_a_listing_is_made_once(made: Callable[..., tuple[str, int]]) -> None:
    assert made("methods") == ("a list\n", 1)
    assert made("methods") == ("a list\n", 0)
    assert made("methods", "show", "proxyfl", says="µ ≥ 0\n") == ("µ ≥ 0\n", 1)
    assert made("methods", "show", "proxyfl") == ("µ ≥ 0\n", 0)
    for words in (
        ("config", "explain"), ("config", "explain", "train"), ("config", "explain", "--method", "sage"),
        ("methods", "--scenario", "server"), ("comm", "--scenario", "server"),
    ):  # fmt: skip
        assert [made(*words)[1] for _ in range(2)] == [1, 0]


def test_what_failed_is_made_again(made: Callable[..., tuple[str, int]]) -> None:
    for _ in range(2):
        assert made("methods", "show", "nix", code=2)[1] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        (),
        ("--plugin", "mine.py", "methods"),
        ("methods", "--plugin=mine.py"),
        ("methods", "--help"),
        ("methods", "show", "--help"),
        ("comm", "--model", "frozen:onnx:enc.onnx"),
        ("models", "--data", "digits"),
        ("models", "show", "resnet8"),
    ],
)
def test_what_more_than_the_program_decides_is_always_made(
    made: Callable[..., tuple[str, int]], words: tuple[str, ...]
) -> None:
    for _ in range(2):
        assert made(*words)[1] == 1


def test_plugins_of_the_environment_count(
    made: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made("methods")
    monkeypatch.setenv("PROXYFL_PLUGINS", "mine.py")
    assert made("methods", says="and mine\n") == ("and mine\n", 1)


@pytest.mark.parametrize(("name", "value"), [("COLUMNS", "123"), ("FORCE_COLOR", "1"), ("NO_COLOR", "1")])
def test_another_terminal_gets_its_own(
    made: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    made("methods")
    monkeypatch.setenv(name, value)
    assert made("methods")[1] == 1


def test_of_another_state_of_the_source_nothing_is_left(
    made: Callable[..., tuple[str, int]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("methods")
    monkeypatch.setattr(provenance, "source_hash", lambda: "another state")
    assert made("methods", says="one more\n") == ("one more\n", 1)
    assert made("comm")[1] == 1
    assert len([file for file in cache.rglob("*") if file.is_file()]) == 2


def test_every_byte_of_the_source_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path)
    found = []
    for name, content in (("a.py", "0.95"), ("a.py", "0.90"), ("b.py", ""), ("b.md", ""), ("b.toml", "")):
        (tmp_path / name).write_text(content)
        os.utime(tmp_path / name, (1, 1))
        found.append(provenance.source_hash.__wrapped__())
    assert len(set(found)) == 4  # pages are no source


def test_without_a_home_or_with_a_file_that_goes_it_is_made(
    made: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: Exception) -> Callable[[], str]:
        def hashed() -> str:
            raise error

        return hashed

    made("methods")
    for error in (FileNotFoundError(".#comm.py"), RuntimeError("no home directory")):
        monkeypatch.setattr(provenance, "source_hash", fails(error))
        assert made("methods")[1] == 1


def test_without_a_place_it_is_made_each_time(
    made: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place in ("", str(tmp_path / "file")):
        monkeypatch.setenv(kept.VARIABLE, place)
        for _ in range(2):
            assert made("methods")[1] == 1


def test_the_usual_place_is_the_users_cache(
    made: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(kept.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "usual"))
    made("methods")
    assert len(list((tmp_path / "usual" / "proxyfl" / "kept").glob("*/*.txt"))) == 1


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(cache: Path) -> None:
    environment = {**os.environ, "FORCE_COLOR": "1"}
    call = [sys.executable, "-m", "proxyfl", "methods"]
    subprocess.run(call, env=environment, capture_output=True, timeout=120)
    with subprocess.Popen(call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
        shown.stdout.close()
        assert shown.stderr.read() == b""
    assert shown.returncode == 1
