"""What comes after a federation's run: eval on the right images, and all commands of the generated README."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from calling import invoke
from dashboards import require_page
from proxyfl import Run
from proxyfl.cli.deploy_life import show
from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.deploy.settings import Deployment
from proxyfl.runs.directory import AT_SITES, RunDirectory
from proxyfl.runs.experiment import Experiment
from toybox import TINY

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Not in the order of the alphabet, as folders would be."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits that is told to be a federation's, whose classes have names."""
    place = tmp_path_factory.mktemp("trained") / "run"
    Experiment("fedavg", "digits", **{**TINY, "rounds": 2, "subset": 400}).run(place, workers=0)
    run = RunDirectory(place)
    noted = {**json.loads(run.environment.read_text()), "data": AT_SITES}
    run.environment.write_text(json.dumps(noted))
    return place


def named(run: Path, classes: tuple[str, ...] = NAMES) -> None:
    for which in ("best", "last"):
        file = run / "models" / f"{which}.safetensors"
        tensors, metadata = read_verified(file)
        card = {**json.loads(metadata["proxyfl"]), "classes": classes}
        write_verified(file, tensors, {"proxyfl": json.dumps(card)})
    config = run / "config.toml"
    config.write_text(config.read_text().replace('name = "digits"', 'name = "folder:sites"'))


@pytest.fixture
def federation(trial: Path, trained: Path, tmp_path: Path) -> Path:
    """A deployment with a finished run."""
    home = Path(shutil.copytree(trial, tmp_path / "trial"))
    shutil.copytree(trained, home / "run")
    return home


def server_images(home: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(home / "sample" / "test.npz") as content:
        return content["images"], content["labels"]


def accuracy(*words: object) -> str:
    done = invoke("eval", *words)
    assert done.exit_code == 0, done.stderr
    assert "the run recorded" not in done.stdout
    found = re.search(r"accuracy ([0-9.]+ %)", done.stdout)
    assert found
    return found[1]


def recorded(home: Path) -> str:
    return f"{100 * Run(home / 'run').model().card.accuracy:.2f} %"


def test_eval_takes_the_servers_test_images(federation: Path) -> None:
    assert accuracy(federation / "run") == recorded(federation)


def test_eval_matches_classes_by_name(federation: Path, tmp_path: Path) -> None:
    """A folder 'sites' where the user is, which the settings seem to name, has nothing to do with it."""
    named(federation / "run")
    images, labels = server_images(federation)
    for number, name in enumerate(NAMES):
        for folder in (tmp_path / "mine" / name, tmp_path / "sites" / name[::-1]):
            folder.mkdir(parents=True)
            for place in np.flatnonzero(labels == number):
                Image.fromarray(images[place]).save(folder / f"{place}.png")
    order = torch.randperm(len(NAMES), generator=torch.Generator().manual_seed(1)).numpy()
    mixed, expected = np.array(NAMES)[order], recorded(federation)
    arrays = {"images": images, "labels": np.argsort(order)[labels]}
    np.savez(tmp_path / "mixed.npz", classes=mixed, **arrays)
    assert accuracy(federation / "run", "--data", f"folder:{tmp_path / 'mine'}") == expected
    assert accuracy(federation / "run", "--data", f"npz:{tmp_path / 'mixed.npz'}") == expected
    np.savez(tmp_path / "nameless.npz", **arrays)
    for data, fault in (
        (f"npz:{tmp_path / 'nameless.npz'}", "has no array 'classes'"),
        (f"folder:{tmp_path / 'sites'}", "is not in the class list"),
        ("sites", "--data sites: write folder:PATH for class folders, npz:FILE or table:FILE"),
    ):
        done = invoke("eval", federation / "run", "--data", data)
        assert (done.exit_code, fault in done.stderr) == (2, True), done.stderr


def test_eval_leaves_out_what_has_no_label_and_takes_any_names_and_clients(
    federation: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    named(federation / "run")
    images, labels = server_images(federation)
    expected = recorded(federation)
    pixels = np.concatenate([images, images[:3]])
    arrays = {
        "pixels": pixels,
        "what": np.concatenate([np.array(NAMES)[labels], ["", "", ""]]),
        "clients": np.arange(len(pixels)) % 2,
    }
    np.savez(tmp_path / "a.npz", **arrays)
    new = ("--data", f"npz:{tmp_path / 'a.npz'}")
    assert accuracy(federation / "run", *new, "--keys", "images=pixels,labels=what") == expected
    assert f"3 of {len(pixels)} images have no label" in caplog.text
    done = invoke("eval", federation / "run", "--keys", "images=pixels")
    assert (done.exit_code, "--keys names the arrays or columns of --data" in done.stderr) == (2, True)


def test_eval_says_where_the_images_are(federation: Path, tmp_path: Path) -> None:
    named(federation / "run")
    (tmp_path / "sites").mkdir()
    (federation / "run").rename(tmp_path / "run")
    done = invoke("eval", tmp_path / "run")
    assert done.exit_code == 2
    assert "images of this federation are at its sites" in done.stderr
    assert "--data folder:PATH or --data npz:FILE" in done.stderr


def test_images_of_another_size_are_brought_to_the_models(federation: Path, tmp_path: Path) -> None:
    images, labels = server_images(federation)
    larger = images.repeat(2, 1).repeat(2, 2)
    np.savez(tmp_path / "a.npz", images=larger, labels=labels, classes=np.array([*map(str, range(10))]))
    done = invoke("eval", federation / "run", "--data", f"npz:{tmp_path / 'a.npz'}")
    assert done.exit_code == 0
    assert "a.npz, resized to the model's 8 × 8 pixels" in done.stderr


def readme_commands(home: Path) -> list[list[str]]:
    """Commands of the generated README: on lines of their own, and inside sentences."""
    text = (home / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (proxyfl .*)$", text, re.MULTILINE) + re.findall(r"`(proxyfl [^`]+)`", text)
    return [shlex.split(line)[1:] for line in lines]


NEEDS_FLOWER = ("server", "site", "run", "status", "stop", "attach")
LATER = ("add-site", "--renew", "remove-site")


def test_every_command_of_the_readme_works(federation: Path, tmp_path: Path) -> None:
    """As it stands, on a deployment with a finished run; what starts Flower's programs is looked up only."""
    asked = readme_commands(federation)
    verbs = {" ".join(words[:2]) if words[0] == "deploy" else words[0] for words in asked}
    assert verbs >= {
        "deploy check",
        "deploy approve",
        "deploy explain",
        "deploy init",
        "show",
        "report",
        "dashboard",
    }
    data, first = str(federation / "sample" / "site-01.npz"), str(federation / "site-01")
    fitting = {"DATA": data, "site-01": first, "NAME": "site-04"}
    fitting |= {"FILE": str(tmp_path / "kept.tar"), "DIR": str(tmp_path / "elsewhere")}
    for words in sorted(asked, key=lambda words: any(word in LATER for word in words)):
        words = [fitting.get(word, word) for word in words]
        words = [word.replace(original(federation), str(federation)) for word in words]
        if words[0] == "dashboard":
            require_page(words)
            continue
        if words[0] == "deploy" and words[1] in NEEDS_FLOWER:
            words = [*words[:2], "--help"]
        if words[:2] == ["deploy", "approve"]:
            words.append("--yes")  # nobody is there to ask
        done = invoke(*words)
        assert done.exit_code == 0, (words, done.output)


def original(home: Path) -> str:
    """The path that the README was written for: the fixture's deployment was copied."""
    text = (home / "README.md").read_text(encoding="utf-8")
    found = re.search(r"proxyfl deploy run (\S+)", text)
    assert found
    return found[1].rstrip("`")


@pytest.mark.parametrize("test", ["sample/test.npz", ""])
def test_the_result_names_an_eval_that_works_here(
    federation: Path, capsys: pytest.CaptureFixture[str], test: str
) -> None:
    deployment = dataclasses.replace(Deployment.read(federation), test=test)
    show(deployment, [{"event": "finished", "text": "finished"}], quiet=False)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("per class"))
    assert line.endswith("/trial/run" if test else "/trial/run --data folder:PATH")
