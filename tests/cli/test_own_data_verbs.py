"""A clinic's folder as it comes: imbalance, unlabelled JPEGs of many sizes, a damaged file, two hospitals."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calling import invoke
from proxyfl import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
ELSEWHERE = """
import runpy, sys
sys.modules["proxyfl"] = sys.modules["torch"] = None  # as if they were not installed
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def scans(folder: Path, count: int, bright: bool, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(count):
        high, wide = rng.integers(16, 40, 2)
        pixels = rng.integers(0, 120, (high, wide, 3), dtype=np.uint8)
        pixels[: high // 2] += np.uint8(120 * bright)
        Image.fromarray(pixels).convert("L" if place % 3 == 0 else "RGB").save(folder / f"{place:03}.jpg")


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for hospital in ("north", "south"):
        root = tmp_path / "clinic" / f"client={hospital}"
        scans(root / "well", 25, False, rng)
        scans(root / "ill", 5, True, rng)
        scans(root / "unlabelled", 40, hospital == "north", rng)
    (tmp_path / "clinic" / "client=north" / "well" / "003.jpg").write_bytes(b"\xff\xd8 broken")
    return tmp_path / "clinic"


def test_check_explains_what_was_found_and_how_to_go_on(clinic: Path, tmp_path: Path) -> None:
    done = invoke("data", "check", f"folder:{clinic}", "-o", tmp_path / "sheet.png")
    assert done.exit_code == 0, done.stderr
    for words in (
        "127 training images: 47 labelled in 2 classes, 80 unlabelled (63 %)",  # without the damaged one
        "12 test images",
        "2 clients: north, south",
        "shorter side in pixels: 16 to 38, median 23  ▇█▇▆▅▄▇▅▃▂▁▁",
        f"with: proxyfl run folder:{clinic}",
        "chosen from the data: images of",
    ):
        assert words in done.stdout, done.stdout
    with Image.open(tmp_path / "sheet.png") as sheet:  # three bars; two rows of each class and of neither
        assert sheet.height == (40 + 3 * 26) + (74 + 6 * (64 + 6) - 6)


def test_a_clinics_folder_is_run_and_evaluated(clinic: Path, tmp_path: Path) -> None:
    quick = ("--rounds", 1, "--set", "train.epochs=1", "--method", "fixmatch", "--workers", 0)
    done = invoke("run", f"folder:{clinic}", *quick, "--name", "a", "--runs", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "note: chosen from the data: " in done.stderr
    assert "note: labelled images: ill 8, well 39; 80 images are unlabelled" in done.stderr
    shown = invoke("show", tmp_path / "a").stdout
    assert "north" in shown
    assert "south" in shown
    tested = invoke("eval", tmp_path / "a")
    assert "of 12 test images" in tested.stdout
    again = invoke("eval", tmp_path / "a", "--data", f"folder:{clinic}")
    assert "of 59 test images" in again.stdout, again.stderr  # neither unlabelled nor damaged ones
    assert "this is not a test" in again.stderr
    with pytest.warns(UserWarning, match="20 × 30 pixels are resized"):
        assert Run(tmp_path / "a").model()(np.zeros((20, 30, 3), np.uint8)).shape == (1, 2)


def test_a_model_card_counts_labels_and_names_no_folder_of_the_machine(clinic: Path, tmp_path: Path) -> None:
    quick = ("--rounds", 1, "--set", "train.epochs=1", "--method", "fedavg", "--workers", 0)
    assert invoke("run", f"folder:{clinic}", *quick, "--name", "a", "--runs", tmp_path).exit_code == 0
    assert invoke("export", tmp_path / "a", "--to", "torchscript", "-o", tmp_path / "m.pt").exit_code == 0
    page = (tmp_path / "m.md").read_text()
    assert "Labels: 47 of 127 training images" in page
    assert "Clients: 2, as the data names them" in page
    assert 'data.name = "folder:clinic"' in page
    assert str(tmp_path) not in page


def test_a_bare_path_is_answered_with_the_name_of_the_data(clinic: Path, monkeypatch) -> None:
    monkeypatch.chdir(clinic.parent)
    np.savez("scans.npz", images=np.zeros((4, 8, 8), np.uint8), labels=np.arange(4) % 2)
    for words, name in (
        (("run", "clinic"), "folder:clinic"),
        (("data", "check", "scans.npz"), "npz:scans.npz"),
    ):
        assert f"your own data there is called {name}" in invoke(*words).stderr


def test_a_config_can_be_copied_for_own_data(clinic: Path, tmp_path: Path) -> None:
    done = invoke("config", "copy", f"folder:{clinic}", tmp_path / "mine.toml")
    assert done.exit_code == 0, done.stderr
    assert 'scheme = "natural"' in (tmp_path / "mine.toml").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_from_a_messy_clinic_to_predictions_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk of docs/your-data.md: check, run, report, eval on new data, export, predict elsewhere."""
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, EXAMPLES / "messy_clinic.py", "clinic"], check=True)
    seen = invoke("data", "check", "folder:clinic", "-o", "clinic.png").stdout
    assert "2,135 training images: 135 labelled in 3 classes, 2,000 unlabelled (94 %)" in seen
    assert invoke("data", "check", "table:clinic.csv").stdout.splitlines()[:5] == seen.splitlines()[:5]
    quick = ("--rounds", 2, "--set", "data.image_size=16", "--set", "train.epochs=1", "--method", "fixmatch")
    done = invoke("run", "folder:clinic", *quick, "--name", "a", "--workers", 0)
    assert done.exit_code == 0, done.stderr
    compared = invoke("compare", "fedavg,fixmatch", "--data", "folder:clinic", "--seeds", 1, *quick[:-2])
    assert compared.exit_code == 0, compared.stderr
    report = invoke("report", "runs/a")
    assert report.exit_code == 0, report.stderr
    tested = invoke("eval", "runs/a", "--data", "folder:clinic-new")
    assert "of 120" in tested.stdout, tested.stdout
    assert invoke("export", "runs/a", "-o", "model.onnx").exit_code == 0
    page = Path("model.md").read_text()
    assert "nodule" in page
    assert "Data set: folder:clinic\n" in page
    files = sorted(map(str, Path("clinic-new").glob("*/*.jpg")))
    ours = csv.DictReader(invoke("predict", "runs/a", *files, "--csv").stdout.splitlines())
    words = [sys.executable, "-c", ELSEWHERE, EXAMPLES / "predict_onnx.py", "model.onnx", *files]
    theirs = subprocess.run(words, capture_output=True, text=True, check=False)
    assert theirs.returncode == 0, theirs.stderr
    classes = ("clear", "fluid", "nodule")
    found = [max(classes, key=lambda name: float(row[name])) for row in ours]
    assert [line.split(",")[1] for line in theirs.stdout.splitlines()] == found
    assert len(found) == 120
