"""docs/architecture.md and docs/hooks.md say what is there: files, steps of a round, hooks."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path

import pytest

from proxyfl.methods.base import Addon, Method

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "proxyfl"
TEXT, HOOKS = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("architecture.md", "hooks.md"))


def section(title: str, text: str = TEXT) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(title: str, text: str = TEXT) -> list[str]:
    """Of the table in a section."""
    return [line for line in section(title, text).splitlines() if line.startswith("| `")]


@functools.cache
def defined() -> set[str]:
    """Names of all classes and functions."""
    texts = (file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py"))
    return {name for text in texts for name in re.findall(r"^ *(?:class|def) (\w+)", text, re.MULTILINE)}


def test_a_round_is_at_most_eight_steps_of_code_that_exists() -> None:
    steps = section("One round in eight steps")
    numbers = re.findall(r"^(\d+)\. ", steps, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert len(numbers) <= 8
    called = re.findall(r"`([A-Za-z_.]+)(?:\([^`]*\))?`", steps)
    named = {word for code in called if not code.endswith((".py", ".jsonl")) for word in code.split(".")}
    assert {"Federation", "play_round", "sample_clients", "ClientTrainer", "Guard", "Fold"} <= named
    assert not named - defined(), named - defined()


@pytest.mark.parametrize("row", rows("Packages"))
def test_the_files_of_a_package_exist(row: str) -> None:
    folder, _, words = row.strip("| ").partition("` | ")
    package = SOURCE / folder.strip("`")
    assert package.is_dir()
    for name in re.findall(r"`([a-z_]+(?:\.py|/))`", words):
        assert (package / name).exists(), name


def test_no_package_is_left_out() -> None:
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == set(re.findall(r"^\| `([a-z]+)/` \|", section("Packages"), re.MULTILINE))


def test_the_table_of_hooks_names_hooks() -> None:
    hooks = {
        name for row in rows("The hooks", HOOKS) for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])
    }
    known = {name for kind in (Method, Addon) for name, _ in inspect.getmembers(kind)}
    assert hooks
    assert not hooks - known
