"""Eight wards with images of their own, one of which mixed up its labels: which client hurts?

python examples/odd_client.py

Given a folder, it keeps the run there: proxyfl show FOLDER/run --clients
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import proxyfl
from proxyfl.results.clients import ranked

WARDS, ODD = 8, 5


def write(file: Path) -> None:
    """Digits, dealt to the wards as they come; ward 5 has a label at random for each of its images."""
    digits, draw = load_digits(), np.random.default_rng(0)
    order = draw.permutation(len(digits.images))
    images, labels = (digits.images[order] / 16 * 255).astype(np.uint8), digits.target[order]
    wards = np.arange(len(labels) - 400) % WARDS
    labels[400:][wards == ODD] = draw.permutation(labels[400:][wards == ODD])
    np.savez(
        file, train_images=images[400:], train_labels=labels[400:], clients=[f"ward {k}" for k in wards],
        test_images=images[:400], test_labels=labels[:400],
    )  # fmt: skip


def main(folder: Path, rounds: int = 6, workers: int | None = None) -> None:
    folder.mkdir(exist_ok=True)
    write(folder / "wards.npz")
    settings = {"rounds": rounds, "label_ratio": 0.3, "train__epochs": 2, "data__validation": 0.2}
    experiment = proxyfl.Experiment("fixmatch", f"npz:{folder / 'wards.npz'}", **settings)
    run = experiment.run(folder / "run", workers=workers)
    for client in ranked(run):
        print(f"{client.name}: score {client.score:.1f}; {'; '.join(client.words) or 'nothing unusual'}")
    print(run.clients().groupby("name")["cosine"].mean().round(2).to_dict())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path((sys.argv[1:] or [place])[0]))
