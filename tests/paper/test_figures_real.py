"""The paper's figures from tiny real runs; their data recomputed from the runs' files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

import toybox
from proxyfl import Experiment
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.paper import figures
from proxyfl.paper.figures import proxies

TINY = {**toybox.TINY, "subset": 150}
GPT = {"method__tau": 0.2, "method__gpt__epochs": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs by name: FixMatch at two alphas and ProxyFL with two seeds, the oracle with one."""
    folder = tmp_path_factory.mktemp("figures")

    def run(name, method, seed, **settings):
        return Experiment(method, seed=seed, **{**TINY, **settings}).run(folder / f"{name}-{seed}", workers=0)

    return {
        "gpl": [run("gpl", "fixmatch-gpl", seed, alpha=0.1, method__tau=0.14) for seed in (1, 2)],
        "gpl-even": [run("even", "fixmatch-gpl", 1, alpha=10.0, method__tau=0.14)],
        "proxyfl": [run("proxyfl", "proxyfl", seed, alpha=0.1, **GPT) for seed in (1, 2)],
        "corrected": [run("corrected", "gpl-all-corrected", 1, alpha=0.1, method__corrected=0.5)],
    }


def lines(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def check_files(files, path):
    png, svg, data = files
    assert files == tuple(Path(f"{path}.{kind}") for kind in ("png", "svg", "csv"))
    with Image.open(png) as picture:
        assert picture.format == "PNG"
        assert picture.width > 900
        assert np.asarray(picture.convert("L")).std() > 5
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    return rows(data)


def test_excluded_images(made, tmp_path):
    files = figures.excluded_bars({10.0: made["gpl-even"], 0.1: made["gpl"]}, tmp_path / "excluded")
    found = check_files(files, tmp_path / "excluded")
    assert [(row["alpha"], row["counted"], row["seed"]) for row in found] == [
        ("0.1", "visits", "1"), ("0.1", "visits", "2"), ("10.0", "visits", "1"),
        ("0.1", "different images", "1"), ("0.1", "different images", "2"), ("10.0", "different images", "1"),
    ]  # fmt: skip
    for name, first in (("excluded_visits", 0), ("excluded_images", 3)):
        a, b = ([line["pseudo"][name] for line in lines(run)] for run in made["gpl"])
        values = [(a[0] + a[1]) / 2, (b[0] + b[1]) / 2]
        assert [float(row["value"]) for row in found[first : first + 2]] == pytest.approx(values)
        assert float(found[first]["mean"]) == pytest.approx(sum(values) / 2)
        assert float(found[first]["std"]) == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        assert found[first + 2]["std"] == ""
    assert 0 < float(found[3]["value"]) <= float(found[0]["value"])


def test_accuracies_with_and_without_low_confidence(made, tmp_path):
    runs = {
        "without": {0.1: made["gpl"], 10.0: made["gpl-even"]},
        "ProxyFL": {0.1: made["proxyfl"]},
    }
    found = check_files(figures.low_confidence_bars(runs, tmp_path / "low"), tmp_path / "low")
    assert len(found) == 10
    for row in found:
        group = runs[row["label"]][float(row["alpha"])]
        run = next(each for each in group if each.path.name == row["run"])
        assert int(row["seed"]) == run.config.seed
        one, two = (
            line["accuracy"] if row["measure"] == "test accuracy" else line["pseudo"]["accuracy"]
            for line in lines(run)
        )
        assert float(row["value"]) == pytest.approx(100 * (one + two) / 2)


def test_oracle_curves(made, tmp_path):
    runs = {"left out": made["gpl"], "50 % corrected": made["corrected"]}
    found = check_files(figures.oracle_curves(runs, tmp_path / "oracle", every=2), tmp_path / "oracle")
    assert [(row["method"], row["seed"], row["round"], float(row["accuracy"])) for row in found] == [
        (label, str(run.config.seed), str(line["round"]), line["accuracy"])
        for label, each in runs.items()
        for run in each
        for line in lines(run)
    ]


def test_recall(made, tmp_path):
    found = check_files(figures.recall_curves(made["proxyfl"], tmp_path / "recall"), tmp_path / "recall")
    expected = [(run.config.seed, line) for run in made["proxyfl"] for line in lines(run)]
    assert len(found) == 4
    for row, (seed, line) in zip(found, expected, strict=True):
        pseudo = line["pseudo"]
        assert (int(row["seed"]), int(row["round"])) == (seed, line["round"])
        for column, name in (
            ("set_recall", "set_recall"), ("low_accuracy", "low_accuracy"), ("visits", "excluded_visits"),
            ("mean_set_size", "set_size"),
        ):  # fmt: skip
            assert row[column] == (str(pseudo[name]) if name in pseudo else "")


def test_recall_needs_category_sets(made, tmp_path):
    with pytest.raises(RunError, match=r"no category sets .*\+icpl"):
        figures.recall_curves(made["gpl"], tmp_path / "recall")


def test_tuning_epochs(made, tmp_path):
    files = figures.tuning_epochs({2: made["proxyfl"]}, made["gpl-even"], tmp_path / "tuning")
    found = check_files(files, tmp_path / "tuning")
    assert [(row["epochs"], row["seed"]) for row in found] == [
        ("without tuning", "1"),
        ("2", "1"),
        ("2", "2"),
    ]
    for row, run in zip(found, [*made["gpl-even"], *made["proxyfl"]], strict=True):
        one, two = (line["accuracy"] for line in lines(run))
        assert float(row["value"]) == pytest.approx(100 * (one + two) / 2)


def test_proxies_of_clients_averages_and_tuned_ones_share_one_embedding(made, tmp_path, monkeypatch):
    seen = []

    def noted(given):
        seen.append(given)
        return np.stack([np.arange(len(given)), -np.arange(len(given))], 1).astype(float)

    monkeypatch.setattr(proxies, "embed", noted)
    run = made["proxyfl"][0]
    files = figures.proxy_map(run, tmp_path / "proxies", round=2, tuned=True)
    found = check_files(files, tmp_path / "proxies")
    kept = load_file(run.path / "snapshots" / "round-00000002.safetensors")
    assert len(seen) == 1
    parts = [kept["proxies/clients"][0], kept["proxies/clients"][1], kept["proxies/average"]]
    parts.append(kept["proxies/tuned"])
    assert np.array_equal(seen[0], np.concatenate([part.numpy() for part in parts]))
    clients = lines(run)[1]["clients"]
    owners = [str(client) for client in clients for _ in range(10)] + [""] * 20
    assert [row["client"] for row in found] == owners
    assert [row["kind"] for row in found] == ["client"] * 20 + ["average"] * 10 + ["tuned"] * 10
    assert [row["class"] for row in found] == [str(label) for label in range(10)] * 4
    assert [(float(row["x"]), float(row["y"])) for row in found] == [(k, -k) for k in range(40)]


@pytest.mark.slow
def test_without_a_round_the_first_is_drawn_the_same_each_time(made, tmp_path):
    first, again, named = (
        figures.proxy_map(made["gpl"][0], tmp_path / name, round)
        for name, round in (("a", None), ("b", None), ("c", 1))
    )
    assert len(check_files(first, tmp_path / "a")) == 30
    for one, two, three in zip(first, again, named, strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes()


def test_what_a_run_does_not_have_is_said(made, tmp_path):
    with pytest.raises(RunError, match=r"no tuned proxies; .*\+gpt"):
        figures.proxy_map(made["gpl"][0], tmp_path / "a", tuned=True)
    with pytest.raises(RunError, match=r"no snapshot of round 7; .*1, 2"):
        figures.proxy_map(made["gpl"][0], tmp_path / "a", round=7)
    assert not list(tmp_path.iterdir())


def test_without_scikit_learn_the_error_names_the_extra(made, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.manifold", None)
    with pytest.raises(ProxyFLError, match=r"pip install 'proxyfl\[data\]'"):
        figures.proxy_map(made["gpl"][0], tmp_path / "a")
