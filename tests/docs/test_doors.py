"""The doors for what one brings oneself: the examples in their docstrings run."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import proxyfl
from calling import invoke, known_place
from proxyfl import models
from proxyfl.aggregation import build as aggregators
from proxyfl.core.errors import ConfigError, DataError, MethodError
from proxyfl.core.plugins import load_plugin
from proxyfl.data import sources
from proxyfl.methods import registry
from proxyfl.methods.fedavg import FedAvg
from proxyfl.models import registry as model_registry
from proxyfl.testing.toy import toy_dataset
from toybox import TINY, Stopped, Told

SOURCE = Path(proxyfl.__file__).parents[1]
SMALL = "--rounds 2 --clients 4 --per-round 2 --subset 120 --set train.epochs=1 --name mine --runs .".split()
EXAMPLES = {
    "register_method": ["--method", "risingmatch+prox"],
    "register_addon": ["--method", "fedavg+smooth", "--set", "method.smooth.weight=0.2"],
    "register_model": ["--set", "model.name=perceptron"],
    "register_dataset": ["--data", "quadrants", "--method", "fedavg"],
    "register_aggregator": ["--method", "fedavg", "--set", "aggregation.rule=middle"],
}


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered in a test is forgotten after it."""
    monkeypatch.setattr(sources, "SOURCES", dict(sources.SOURCES))
    monkeypatch.setattr(model_registry, "_factories", dict(model_registry._factories))
    monkeypatch.setattr(aggregators, "_rules", dict(aggregators._rules))
    for name in ("_recipes", "_shown", "_addons"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


def example(door: str) -> str:
    """The indented block of a docstring."""
    text = (inspect.getdoc(getattr(proxyfl, door)) or "").partition("::\n\n")[2]
    lines = text.splitlines()
    end = next(place for place, line in enumerate(lines) if line and not line.startswith("    "))
    return textwrap.dedent("\n".join(lines[:end]))


def call(*words: str) -> str:
    done = invoke(*words)
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    known_place(monkeypatch, tmp_path)
    return tmp_path


@pytest.mark.parametrize("door", EXAMPLES)
def test_the_example_of_a_docstring_trains_as_a_plugin(door: str, place: Path) -> None:
    (place / "mine.py").write_text(example(door))
    call("--plugin", "mine.py", "run", *EXAMPLES[door], *SMALL)
    assert len(proxyfl.Run(place / "mine").metrics) == 2


@pytest.mark.slow
def test_all_examples_together_train_in_two_processes(tmp_path: Path) -> None:
    files = [tmp_path / f"{door}.py" for door in EXAMPLES]
    for file in files:
        file.write_text(example(file.stem))
    plugins = [word for file in files for word in ("--plugin", file.name)]
    mine = "--data quadrants --method risingmatch+smooth --set model.name=perceptron --workers 2".split()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PROXYFL")}
    line = [sys.executable, "-m", "proxyfl", *plugins, "run", *mine, *SMALL]
    environment = {**clean, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(proxyfl.Run(tmp_path / "mine").metrics) == 2


def test_a_registered_data_set_is_listed_checked_loaded_and_resumed(place: Path) -> None:
    (place / "mine.py").write_text(example("register_dataset"))
    plugin = ("--plugin", "mine.py")
    listed = call(*plugin, "data", "ls")
    row = next(line for line in listed.splitlines() if line.startswith("quadrants "))
    assert "yes" in row
    assert "Which quadrant is bright?" in row
    assert "400 training and 100 test images" in call(*plugin, "data", "check", "quadrants")
    load_plugin(str(place / "mine.py"))
    experiment = proxyfl.Experiment("fedavg", data="quadrants", **TINY)
    with pytest.raises(Stopped):
        experiment.run(place / "mine", [Told(stop_after=1)], workers=0)
    call(*plugin, "resume", "mine")
    assert len(proxyfl.Run(place / "mine").metrics) == 2


def pair(shape: tuple[int, ...], classes: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.full(shape, 7, np.uint8), np.arange(shape[0]) % classes


@pytest.mark.parametrize("shape", [(6, 8, 8), (6, 8, 8, 1), (6, 1, 8, 8)])
def test_arrays_may_have_their_channels_first_last_or_none(shape: tuple[int, ...]) -> None:
    proxyfl.register_dataset("mine", classes=("a", "b", "c"), flip=True)(lambda: (pair(shape), pair(shape)))
    data = proxyfl.load_dataset("mine")
    assert data.train.images.shape == (6, 1, 8, 8)
    assert (data.name, data.classes, data.flip) == ("mine", ("a", "b", "c"), True)
    assert data.mean == pytest.approx((7 / 255,))


def test_tensors_and_whole_data_sets_are_accepted() -> None:
    drawn = toy_dataset(20, classes=4)
    tensors = (drawn.train.images, drawn.train.labels), (drawn.test.images, drawn.test.labels)
    proxyfl.register_dataset("tensors")(lambda: tensors)
    proxyfl.register_dataset("whole")(lambda: drawn)
    pairs = [list(zip(images.numpy()[:, 0], labels.tolist(), strict=True)) for images, labels in tensors]
    proxyfl.register_dataset("items")(lambda: pairs)
    for name in ("tensors", "whole", "items"):
        data = proxyfl.load_dataset(name)
        assert torch.equal(data.train.images, drawn.train.images)
        assert data.name == name


@pytest.mark.parametrize("given", [None, pair((6, 8, 8)), (pair((6, 8, 8)),), (pair((6, 8, 8)), 3)])
def test_what_a_data_set_function_must_give(given: Any) -> None:
    proxyfl.register_dataset("mine")(lambda: given)
    with pytest.raises(DataError, match="mine: "):
        proxyfl.load_dataset("mine")


def test_names_of_data_sets_that_cannot_be() -> None:
    for name in ("digits", "folder"):
        with pytest.raises(ConfigError, match="known already"):
            proxyfl.register_dataset(name)(lambda: toy_dataset())
    for wrong in ("", "a:b", toy_dataset):
        with pytest.raises(ConfigError, match="name"):
            proxyfl.register_dataset(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--plugin"):
        proxyfl.load_dataset("quadrants")


def test_a_network_takes_its_class_name_where_none_is_given() -> None:
    @proxyfl.register_model
    class Flat(nn.Module):
        def __init__(self, classes: int, channels: int, width: int) -> None:
            super().__init__()
            self.classifier = nn.Linear(64 * channels, classes)

    assert isinstance(Flat, type)
    assert isinstance(models.build("flat", 10, 1), Flat)
    with pytest.raises(ConfigError, match="cannot name a model"):
        proxyfl.register_model(lambda classes, channels, width: nn.Flatten())


def test_an_addon_without_a_name_is_refused() -> None:
    for name in ("", "a+b"):
        addon = type("Nameless", (proxyfl.Addon,), {"name": name})
        with pytest.raises(MethodError, match="name"):
            proxyfl.register_addon(addon)


def test_words_that_pictures_do_not_know_are_refused() -> None:
    mine = dataclasses.replace(registry.find("fedavg"), name="mine", method=FedAvg)
    proxyfl.register_method(mine, proxyfl.Shown("labelled only", 13, "black", "dash-dot", "s"))
    assert registry.shown("mine").rank == 13
    for wrong in ({"colour": "blu"}, {"line": "wavy"}, {"marker": "?"}):
        with pytest.raises(MethodError, match=next(iter(wrong))):
            proxyfl.Shown(**wrong)  # type: ignore[arg-type]
