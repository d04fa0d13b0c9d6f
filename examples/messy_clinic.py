"""Images as a clinic might have them, for ``docs/your-data.md``: two hospitals, a rare finding, many
unlabelled images, different sizes, grey and colour, a damaged file; the same images as a table; new images.

python examples/messy_clinic.py clinic
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

FINDINGS = {"clear": (3, 50), "fluid": (9, 25), "nodule": (8, 10)}
"""The digit of scikit-learn that stands for each finding, and the labelled images of it per hospital."""


def scan(drawn: np.ndarray, rng: np.random.Generator) -> Image.Image:
    """A small drawing as a scan: any size, slightly turned, noisy; every third one in colour."""
    size = rng.integers(24, 80, 2).tolist()
    image = Image.fromarray((drawn * 15).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
    turned = np.asarray(image.rotate(float(rng.normal(0, 8))), dtype=float)
    noisy = np.clip(turned + rng.normal(0, 40, turned.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(noisy).convert("RGB" if rng.random() < 1 / 3 else "L")


def write(folder: Path, drawings: np.ndarray, count: int, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(count):
        scan(drawings[rng.integers(len(drawings))], rng).save(folder / f"{place:04}.jpg", quality=90)


def main(place: str, unlabelled: int = 2000) -> None:
    rng, digits, root = np.random.default_rng(0), load_digits(), Path(place)
    drawn = {name: digits.images[digits.target == digit] for name, (digit, _) in FINDINGS.items()}
    others = np.concatenate([drawings[60:140] for drawings in drawn.values()])
    for hospital in ("north", "south"):
        here = root / f"client={hospital}"
        for name, (_, count) in FINDINGS.items():
            write(here / name, drawn[name][:60], count, rng)
        write(here / "unlabelled", others, unlabelled // 2, rng)
    (root / "client=north" / "clear" / "0003.jpg").write_bytes(b"\xff\xd8 cut off")
    for name, drawings in drawn.items():
        write(root.with_name(f"{root.name}-new") / name, drawings[140:], 40, rng)
    with root.with_name(f"{root.name}.csv").open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["file", "label", "client"])
        for path in sorted(root.glob("*/*/*.jpg")):
            label = "" if path.parent.name == "unlabelled" else path.parent.name
            rows.writerow([path.relative_to(root.parent), label, path.parts[-3].removeprefix("client=")])
    print(f"{root}: images of two hospitals; {root}.csv: the same as a table; {root}-new: new images")
    print(f"continue with: proxyfl data check folder:{root} -o {root}.png")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "clinic")
