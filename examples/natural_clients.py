"""Three hospitals with images of their own: folders client=NAME say which client holds which images.

python examples/natural_clients.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import proxyfl

HOSPITALS = {"north": 120, "south": 60, "west": 300}


def write(folder: Path) -> None:
    """Each hospital has labelled a quarter of its images."""
    digits = load_digits()
    images = (digits.images * 255 / 16).astype(np.uint8)
    start = 0
    for name, count in HOSPITALS.items():
        for place in range(start, start + count):
            label = str(digits.target[place]) if place % 4 == 0 else "unlabelled"
            file = folder / f"client={name}" / label / f"{place}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[place]).save(file)
        start += count


def main(folder: Path, rounds: int = 4, workers: int | None = None) -> None:
    write(folder / "scans")
    settings = {"rounds": rounds, "train__epochs": 1}
    experiment = proxyfl.Experiment("fixmatch", f"folder:{folder / 'scans'}", **settings)
    run = experiment.run(folder / "run", workers=workers)
    sizes = run.partition.sizes.tolist()
    for name, size in zip(run.environment["clients"], sizes, strict=True):
        print(f"{name} trains on {size} images")
    print(run.summary)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
