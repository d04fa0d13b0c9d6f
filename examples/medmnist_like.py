"""Arrays as MedMNIST has them, most training images without a label (-1): one file, one command.

python examples/medmnist_like.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import proxyfl


def write(file: Path) -> None:
    """Training, validation and test images with their labels, and the names of the classes."""
    digits = load_digits()
    images = (digits.images * 255 / 16).astype(np.uint8)
    labels = digits.target[:, None].copy()
    train = labels[:1200].copy()
    train[np.arange(1200) % 8 != 0] = -1  # nobody has labelled these
    np.savez_compressed(
        file,
        train_images=images[:1200], train_labels=train,
        val_images=images[1200:1400], val_labels=labels[1200:1400],
        test_images=images[1400:], test_labels=labels[1400:],
        classes=np.array([f"digit {number}" for number in range(10)]),
    )  # fmt: skip


def main(folder: Path, rounds: int = 4, workers: int | None = None) -> None:
    write(folder / "scans.npz")
    experiment = proxyfl.Experiment("fixmatch", f"npz:{folder / 'scans.npz'}", rounds=rounds, train__epochs=1)
    config = experiment.config
    print(
        f"{config.partition.clients} clients, images of {config.data.image_size} pixels, chosen from the data"
    )
    run = experiment.run(folder / "run", workers=workers)
    print(run.summary)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
