"""The packages are what users install: they carry everything, and the wheel runs outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


@pytest.mark.slow
def test_twine_accepts_both_packages(dist: Path) -> None:
    packages = sorted(map(str, dist.iterdir()))
    line = [sys.executable, "-m", "twine", "check", "--strict", *packages]
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == len(packages) == 2


def test_the_sdist_has_every_file_of_the_repository(dist: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository to compare with")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert [name for name in listed.stdout.splitlines() if name not in packed] == []


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds only the wheel, and borrows the dependencies."""
    home = tmp_path_factory.mktemp("env") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(f"{Path(typer.__file__).parents[1]}\n")
    return home / "bin"


def test_wheel_carries_presets_and_types_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"proxyfl/py.typed", "proxyfl/presets/digits.toml", "proxyfl/presets/cifar100.toml"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "src/"))]


@pytest.mark.slow
def test_installed_wheel_trains_outside_the_checkout(scripts: Path, tmp_path: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PROXYFL"))}
    clean["PROXYFL_WORKERS"] = "0"
    where = subprocess.run(
        [scripts / "python", "-c", "import proxyfl; print(proxyfl.__file__)"],
        cwd=tmp_path, env=clean, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(scripts.parent))
    tiny = "--rounds 1 --clients 4 --per-round 2 --subset 120 --set train.epochs=1 --name first".split()
    done = subprocess.run(
        [scripts / "proxyfl", "run", "digits", *tiny], cwd=tmp_path, env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/first/models/last.safetensors").is_file()
