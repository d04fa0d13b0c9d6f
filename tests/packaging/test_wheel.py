"""The wheel is what users install: it must carry everything and run outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds only the wheel, and borrows the dependencies."""
    home = tmp_path_factory.mktemp("env") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_wheel_carries_presets_and_types_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"proxyfl/py.typed", "proxyfl/presets/digits.toml", "proxyfl/presets/cifar100.toml"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "src/"))]


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
