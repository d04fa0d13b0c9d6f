"""The container's recipe and its federation: they parse, and every command in them is one of proxyfl's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from proxyfl import __version__
from proxyfl.cli import app

ROOT = Path(__file__).parents[2]
INSTRUCTION = re.compile(r"(FROM|ARG|WORKDIR|COPY|RUN|ENV|USER|VOLUME|ENTRYPOINT|CMD) \S")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_recipe_has_known_instructions_and_ends_as_an_ordinary_user() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(INSTRUCTION.match(line) for line in lines), lines
    final = lines[max(place for place, line in enumerate(lines) if line.startswith("FROM")) :]
    assert [line for line in final if line.startswith("USER")] == ["USER proxyfl"]
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    for name in (word for word in copied if not word.startswith(("--", "/"))):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("service", sorted(read("compose.yaml")["services"]))
def test_every_service_runs_a_verb_and_has_a_read_only_root(service: str) -> None:
    found = read("compose.yaml")["services"][service]
    assert found["read_only"] is True
    words = shlex.split(found["command"])
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("proxyfl", words, resilient_parsing=False)


def test_versions_agree() -> None:
    assert read("CITATION.cff")["version"] == __version__


def test_the_workflow_calls_targets_that_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    workflow = read(".github/workflows/ci.yml")
    called = [
        step["run"].split()[1]
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if step.get("run", "").startswith("make ")
    ]
    assert called
    assert set(called) <= set(targets)
