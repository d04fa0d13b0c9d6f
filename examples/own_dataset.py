"""Your own torch Dataset, in which nobody knows the class of most images (label -1), recorded as a run.

python examples/own_dataset.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

import proxyfl


class Scans(Dataset):
    """Every tenth image was labelled by someone; of the others, nobody knows what they show."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = (digits.images * 255 / 16).astype(np.uint8)[:1500]
        self.labels = np.where(np.arange(1500) % 10 == 0, digits.target[:1500], -1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
        return self.images[place], int(self.labels[place])


def main(folder: Path, rounds: int = 4, workers: int | None = None) -> None:
    digits = load_digits()
    test = (digits.images[1500:] / 16, digits.target[1500:])
    data = proxyfl.Dataset.of(Scans(), test=test, name="scans")
    split = proxyfl.partition(data, clients=5, per_class=100, scheme="iid")  # all labels there are

    def build() -> proxyfl.Federation:
        return proxyfl.Federation(
            data, split, method="fixmatch-gpl", width=1, rounds=rounds, per_round=5, workers=workers,
            train=proxyfl.Train(epochs=1, batch=16, lr=0.05),
        )  # fmt: skip

    first = build().record(folder / "scans")
    for report in first.rounds(rounds // 2):
        print(f"round {report.number}: {report.accuracy:.1%}; pseudo-labels: {report.pseudo['visits']:.0f}")
    for report in build().resume(folder / "scans").rounds():
        print(f"round {report.number}: {report.accuracy:.1%}, after a stop")
    print(proxyfl.Run(folder / "scans").summary)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
