"""A table of measurements from the first look to an exported model: no verb takes it for images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import proxyfl
from calling import invoke
from extras import extra

datasets = extra("sklearn.datasets")
KEYS = "data.keys=label=cultivar,without=bottle"


@pytest.fixture(scope="module")
def cellar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bottles in a table, every third one with its cultivar; the same with all of them; a short run."""
    root, wine = tmp_path_factory.mktemp("cellar"), datasets.load_wine()
    for name, known in (("wine", 3), ("new", 1)):
        rows = [",".join(["bottle", *wine.feature_names, "cultivar"])]
        for bottle, (values, label) in enumerate(zip(wine.data, wine.target, strict=True)):
            cultivar = "abc"[label] if bottle % known == 0 else ""
            rows.append(",".join([str(bottle), *map(str, values), cultivar]))
        (root / f"{name}.csv").write_text("\n".join(rows), encoding="utf-8")
    done = invoke(
        *("run", f"table:{root / 'wine.csv'}", "--set", KEYS, "--rounds", "3", "--workers", "0"),
        *("--runs", root, "--name", "run", "--method", "fedavg"),
    )
    assert done.exit_code == 0, done.stderr
    assert "network mlp, width 1" in done.stderr
    assert "vectors are unlabelled" in done.stderr
    assert "images" not in done.stderr
    return root


def test_check_tells_of_features_and_draws_bars(
    cellar: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = invoke(
        *("data", "check", f"table:{cellar / 'wine.csv'}", "--keys", KEYS.partition("=")[2]),
        *("-o", tmp_path / "sheet.png"),
    )
    assert done.exit_code == 0, done.stderr
    assert "166 training vectors: 48 labelled in 3 classes, 118 unlabelled (71 %)" in done.stdout
    assert "13 features: alcohol, malic_acid" in done.stdout
    (said,) = caplog.messages
    assert "12 of 178 held out" in said
    assert "vectors cannot be drawn" in done.stdout
    assert f"with: proxyfl run table:{cellar / 'wine.csv'} --set {KEYS}" in done.stdout
    with Image.open(tmp_path / "sheet.png") as drawn:
        assert (46, 96, 160) in {colour for _, colour in drawn.getcolors(1 << 16) or ()}


def test_a_model_is_tested_and_asked_on_tables_and_arrays(cellar: Path, tmp_path: Path) -> None:
    done = invoke("eval", cellar / "run")
    assert (done.exit_code, "12 test vectors" in done.stdout) == (0, True), done.stdout
    done = invoke("eval", cellar / "run", "--data", f"table:{cellar / 'new.csv'}")
    assert (done.exit_code, "178 test vectors" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "this is not a test" not in done.stderr
    done = invoke("eval", cellar / "run", "--data", f"table:{cellar / 'wine.csv'}")
    assert "warning: the run was trained on vectors in" in done.stderr
    wine = datasets.load_wine().data
    np.savez(tmp_path / "some.npz", vectors=wine)
    answers = [
        json.loads(invoke("predict", cellar / "run", file, "--json").stdout)
        for file in (cellar / "new.csv", tmp_path / "some.npz")
    ]
    ours = proxyfl.Run(cellar / "run").model("last")(wine)
    for answer in answers:
        told = torch.tensor([list(row["probabilities"].values()) for row in answer])
        assert torch.allclose(told, ours, atol=1e-6)
    assert answers[0][0]["vector"] == f"{cellar / 'new.csv'}, line 2"
    assert (ours.argmax(1) == torch.from_numpy(datasets.load_wine().target)).float().mean() > 0.85
    done = invoke("predict", cellar / "run", cellar / "run")
    assert (done.exit_code, "the model takes vectors" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("form", ["torchscript", pytest.param("onnx", marks=pytest.mark.slow)])
def test_an_exported_model_takes_the_numbers_as_they_are(cellar: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / {"torchscript": "model.pt", "onnx": "model.onnx"}[form]
    done = invoke("export", cellar / "run", "--to", form, "-o", file)
    assert done.exit_code == 0, done.stderr
    assert "the same class for 12 of 12" in done.stdout
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "pipeline_tag: tabular-classification" in page
    assert "float32 vectors of shape (N, 13)" in page
    wine = datasets.load_wine().data.astype(np.float32)
    if form == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(file))
        theirs = torch.from_numpy(session.run(None, {"vectors": wine})[0])
    else:
        theirs = torch.jit.load(str(file))(torch.from_numpy(wine))
    ours = proxyfl.Run(cellar / "run").model("last")(wine)
    assert torch.allclose(theirs, ours, atol=1e-5)


def test_reports_and_pictures_are_drawn(cellar: Path, tmp_path: Path) -> None:
    for words in (
        ("report", cellar / "run", "-o", tmp_path / "report.html"),
        ("show", cellar / "run"),
        ("validate", cellar / "run"),
    ):
        done = invoke(*words)
        assert done.exit_code == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000
