"""Runs on vectors: real data sets are learnt from few labels; a run is the same however it is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn import datasets

import proxyfl
from proxyfl.core.errors import ConfigError
from proxyfl.runs.settings import identity, resolve
from toybox import Stopped, Told, same_bits


def written(folder: Path, name: str, labelled: int) -> str:
    """One of scikit-learn's data sets as an npz file: a third to test, elsewhere so many labels per class."""
    data = getattr(datasets, f"load_{name}")()
    order = np.random.default_rng(0).permutation(len(data.target))
    vectors, labels = data.data[order], data.target[order]
    held = len(labels) // 3
    train = labels[held:].copy()
    for label in range(len(data.target_names)):
        train[np.flatnonzero(train == label)[labelled:]] = -1
    np.savez(
        folder / f"{name}.npz",
        x_train=vectors[held:], y_train=train, x_test=vectors[:held], y_test=labels[:held],
    )  # fmt: skip
    return f"npz:{folder / f'{name}.npz'}"


def experiment(place: str, method: str = "proxyfl", **settings: Any) -> proxyfl.Experiment:
    return proxyfl.Experiment(method, place, dtype="fp32", method__gpt__epochs=20, **settings)


@pytest.mark.parametrize(
    ("name", "labelled", "rounds", "bound"),
    [
        ("breast_cancer", 10, 4, 0.86),
        ("wine", 8, 8, 0.85),
        pytest.param("digits", 12, 10, 0.75, marks=pytest.mark.slow),
    ],
)
def test_real_vectors_are_learnt_from_few_labels(tmp_path, name, labelled, rounds, bound):
    place = written(tmp_path, name, labelled)
    federation = experiment(place, rounds=rounds, clients=3, train__epochs=2).federation(workers=0)
    assert federation.config.model.name == "mlp"
    *_, report = federation.rounds()
    assert report.accuracy is not None
    assert report.accuracy > bound


@pytest.mark.slow
def test_a_stopped_run_and_two_workers_end_in_the_same_bits(tmp_path):
    place = written(tmp_path, "wine", 8)
    made = experiment(place, rounds=3, clients=3, train__epochs=1)
    made.run(tmp_path / "whole", workers=0)
    made.run(tmp_path / "pool", workers=2)
    with pytest.raises(Stopped):
        made.run(tmp_path / "stopped", [Told(stop_after=1)], workers=0)
    proxyfl.resume(tmp_path / "stopped", workers=0)
    whole, pool, stopped = (
        load_file(tmp_path / run / "models" / "last.safetensors") for run in ("whole", "pool", "stopped")
    )
    assert same_bits(whole, pool)
    assert same_bits(whole, stopped)
    model = proxyfl.Run(tmp_path / "whole").model("last")
    assert (model.card.channels, model.card.image_size, len(model.card.mean)) == (13, 0, 13)
    wine = datasets.load_wine().data
    assert torch.equal(model(wine), model(torch.from_numpy(wine)))
    with pytest.raises(proxyfl.ProxyFLError, match=r"12 features, .*13"):
        model(wine[:, 1:])


def test_a_network_for_images_is_refused_with_the_cure(tmp_path):
    place = written(tmp_path, "wine", 8)
    told = "model 'resnet8' cannot take vectors, .* holds vectors of 13 features; choose mlp or linear"
    with pytest.raises(ConfigError, match=told):
        experiment(place, model__name="resnet8").federation()
    data = proxyfl.load_dataset(place)
    with pytest.raises(ConfigError, match=told):
        proxyfl.Federation(data, proxyfl.partition(data, clients=2, per_class=4, scheme="iid"), "resnet8")


def test_settings_of_vectors_count_only_where_they_are_changed():
    usual = identity(resolve("digits"))
    assert identity(resolve("digits", {"vectors": {"noise": 0.1}, "model": {"hidden": []}})) == usual
    assert identity(resolve("digits", {"vectors": {"noise": 0.3}})) != usual
    assert identity(resolve("digits", {"model": {"name": "mlp", "hidden": [32]}})) != identity(
        resolve("digits", {"model": {"name": "mlp"}})
    )
    with pytest.raises(ConfigError, match=r"vectors\.mix = 1\.5 is above 1"):
        proxyfl.Vectors(mix=1.5)
