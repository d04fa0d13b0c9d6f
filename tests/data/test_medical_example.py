"""The worked example of ``docs/medical.md``: from DICOM and NIfTI files to predictions, with nothing of a
patient in anything that is made of them.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'proxyfl[medical]'")
pytest.importorskip("nibabel", reason="nibabel is not installed: pip install 'proxyfl[medical]'")
pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from calling import invoke, known_place
from proxyfl.core.errors import DataError
from proxyfl.data.given import read_given
from proxyfl.runs.run import Run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "medical.md").read_text(encoding="utf-8")
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "medical_clinic.py"))
MADE = ("clinic", "clinic-new", "scans")


def commands() -> list[list[str]]:
    lines = [
        line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
    ]
    return [shlex.split(line)[1:] for line in lines]


def test_from_medical_files_to_predictions_without_anything_of_a_patient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_place(monkeypatch, tmp_path)
    EXAMPLE["main"]()
    given = commands()
    assert [words[0] for words in given] == "data run eval predict run predict deploy deploy".split()
    told = {}
    for words in given:
        done = invoke(*words)
        assert done.exit_code == 0, done.output
        told[" ".join(words[:3])] = done.output
    assert "20 labelled in 2 classes, 48 unlabelled" in told["data check folder:clinic"]
    assert float(re.search(r"accuracy ([\d.]+) %", told["eval runs/xrays --data"])[1]) > 90  # chance is 50
    assert "of 20 test images" in told["eval runs/xrays --data"]
    assert Run(Path("runs/scans")).metrics[-1]["accuracy"] > 0.9
    new = json.loads(invoke("predict", "runs/xrays", "clinic-new", "--json").stdout)
    assert sum(Path(one["image"]).parent.name == one["class"] for one in new) > 18
    slices = [f"scans/{scan:03}.nii.gz#{level}" for scan in (1, 3, 5) for level in (1, 4)]
    seen = json.loads(invoke("predict", "runs/scans", *slices, "--json").stdout)
    assert [one["image"] for one in seen] == slices
    assert [one["class"] for one in seen] == ["healthy", "ill"] * 3
    at_site = told["deploy check clinic"]
    assert re.search(r"all classes +19 +5\nunlabelled: 48", at_site)

    name = EXAMPLE["PATIENT"].encode()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    ours = {file for file in files if file.relative_to(tmp_path).parts[0] not in MADE}
    assert name in next(file for file in files if file.suffix == ".dcm").read_bytes()
    assert {"last.safetensors", "config.toml", "federation.toml"} <= {file.name for file in ours}
    for part in name.split(b"^"):
        assert not [file for file in ours if part in file.read_bytes()]
        assert not [command for command, output in told.items() if part.decode() in output]


def test_a_slice_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    EXAMPLE["write_scans"](tmp_path, 1, EXAMPLE["np"].random.default_rng(0))
    with pytest.raises(DataError, match="6 slices"):
        read_given([f"{tmp_path}/000.nii.gz#6"], 1, 8)
    with pytest.raises(DataError, match="does not exist"):
        read_given([f"{tmp_path}/001.nii.gz#1"], 1, 8)
