"""A clinic's images as they come, to try ``docs/your-data.md`` with: two hospitals, a rare finding, many
images that nobody labelled, all sizes, grey and colour, a damaged file, a table of labels; new images, too.

python examples/messy_clinic.py clinic
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

FINDINGS = {"clear": 0, "fluid": 6, "nodule": 7}
"""Stands for: which of scikit-learn's handwritten digits plays it."""
COUNTS = {"clear": 50, "fluid": 25, "nodule": 10}
"""Labelled images of each hospital: five clear ones for one nodule."""
Pool = dict[str, np.ndarray]


def scan(drawn: np.ndarray, rng: np.random.Generator) -> Image.Image:
    """A small drawing as a scan: any size, slightly turned, noisy; every third one in colour."""
    wide, high = (int(side) for side in rng.integers(24, 80, 2))
    image = Image.fromarray((drawn * 15).astype(np.uint8)).resize((wide, high), Image.Resampling.BICUBIC)
    turned = np.asarray(image.rotate(float(rng.normal(0, 8))), dtype=float)
    noisy = np.clip(turned + rng.normal(0, 12, turned.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(noisy).convert("RGB" if rng.random() < 1 / 3 else "L")


def write(folder: Path, drawings: np.ndarray, count: int, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(count):
        scan(drawings[rng.integers(len(drawings))], rng).save(folder / f"{place:04}.jpg", quality=90)


def main(place: str, unlabelled: int = 2000, seed: int = 0) -> None:
    rng, digits = np.random.default_rng(seed), load_digits()
    all_of = {name: digits.images[digits.target == digit] for name, digit in FINDINGS.items()}
    labelled: Pool = {name: found[:60] for name, found in all_of.items()}
    others: Pool = {name: found[60:140] for name, found in all_of.items()}
    later: Pool = {name: found[140:] for name, found in all_of.items()}
    root = Path(place)
    for hospital in ("north", "south"):
        here = root / f"client={hospital}"
        for name, count in COUNTS.items():
            write(here / name, labelled[name], count, rng)
        write(here / "unlabelled", np.concatenate([*others.values()]), unlabelled // 2, rng)
    (root / "client=north" / "clear" / "0003.jpg").write_bytes(b"\xff\xd8 cut off")
    for name, drawings in later.items():
        write(root.with_name(f"{root.name}-new") / name, drawings, 40, rng)
    as_table(root, root.with_name(f"{root.name}.csv"))


def as_table(root: Path, file: Path) -> None:
    """The same images as a table: file, label (empty where nobody knows) and client."""
    with file.open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["file", "label", "client"])
        for path in sorted(root.glob("*/*/*.jpg")):
            label = "" if path.parent.name == "unlabelled" else path.parent.name
            rows.writerow([path.relative_to(file.parent), label, path.parts[-3].removeprefix("client=")])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "clinic")
