"""Measurements instead of images: a table of numbers, most rows without a diagnosis, from file to prediction.

python examples/vectors.py [FOLDER]
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import proxyfl


def write(file: Path) -> None:
    """A row per patient: thirty measurements, a diagnosis for every tenth one, and a test split."""
    data = load_breast_cancer()
    rng = np.random.default_rng(0)
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow(["patient", *data.feature_names, "diagnosis", "split"])
        for patient in rng.permutation(len(data.target)):
            test = rng.random() < 0.3
            known = test or rng.random() < 0.1
            diagnosis = data.target_names[data.target[patient]] if known else ""
            table.writerow([patient, *data.data[patient], diagnosis, "test" if test else "train"])


def main(folder: Path, rounds: int = 10, workers: int | None = None) -> None:
    write(folder / "patients.csv")
    experiment = proxyfl.Experiment(
        "proxyfl", f"table:{folder / 'patients.csv'}", rounds=rounds,
        data__keys="label=diagnosis,without=patient", vectors__strong_noise=0.3,
    )  # fmt: skip
    print(f"network {experiment.config.model.name}, {experiment.config.partition.clients} clients")
    run = experiment.run(folder / "run", workers=workers)
    print(run.summary)
    model = run.model("last")
    print(f"takes {model.card.channels} features: {', '.join(model.card.features[:3])}, …")
    print(f"the first patient is {model.card.classes[int(model(load_breast_cancer().data[:1]).argmax())]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else place))
