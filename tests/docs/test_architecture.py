"""docs/architecture.md says what is there: files, hops of a round, hooks."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from proxyfl.methods.base import Addon, Method

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "proxyfl"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[str]:
    """Of the table in a section."""
    return [line for line in section(title).splitlines() if line.startswith("| `")]


def defined() -> set[str]:
    """Names of all classes and functions."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")]
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)}


def test_a_round_is_at_most_eight_hops_of_code_that_exists() -> None:
    hops = section("One round in eight hops")
    numbers = re.findall(r"^(\d+)\. ", hops, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert len(numbers) <= 8
    called = re.findall(r"`([A-Za-z_.]+)(?:\([^`]*\))?`", hops)
    named = {word for code in called if not code.endswith((".py", ".jsonl")) for word in code.split(".")}
    assert {"Federation", "play_round", "sample_clients", "ClientTrainer", "Guard", "Fold"} <= named
    assert not named - defined(), named - defined()


@pytest.mark.parametrize(
    "row", [line for line in section("The rooms").splitlines() if line.startswith("| `")]
)
def test_the_files_of_a_room_exist(row: str) -> None:
    folder, _, words = row.strip("| ").partition("` | ")
    room = SOURCE / folder.strip("`")
    assert room.is_dir()
    for name in re.findall(r"`([a-z_]+(?:\.py|/))`", words):
        assert (room / name).exists(), name


def test_no_room_is_left_out() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(re.findall(r"^\| `([a-z]+)/` \|", section("The rooms"), re.MULTILINE))


def test_the_table_of_hooks_names_hooks() -> None:
    hooks = {
        name for row in rows("Adding a method") for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])
    }
    known = {name for kind in (Method, Addon) for name, _ in inspect.getmembers(kind)}
    assert hooks
    assert not hooks - known
