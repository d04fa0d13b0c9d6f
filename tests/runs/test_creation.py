"""Who may create a run, and what is left when it cannot work."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import proxyfl
from proxyfl.core.errors import ConfigError, MethodError, RunError
from proxyfl.models import registry
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.settings import resolve
from toybox import TINY

HOLD = """
import sys
from pathlib import Path
from proxyfl.runs.directory import RunDirectory
def build(aside):
    aside.config.write_text("a")
    print("building", flush=True)
    sys.stdin.readline()
RunDirectory(Path(sys.argv[1])).create(build)
"""


def test_two_processes_cannot_create_the_same_run(tmp_path: Path) -> None:
    where = tmp_path / "run"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(where)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "building\n"
    with pytest.raises(RunError, match="being created by another process"):
        RunDirectory(where).create(lambda aside: None)
    first.communicate("\n")
    assert (where / "config.toml").read_text() == "a"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_whoever_looks_at_a_run_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / ".lock").touch()
    stop = threading.Event()
    looking = threading.Thread(target=lambda: [run.is_locked() for _ in iter(stop.is_set, True)])
    looking.start()
    try:
        for _ in range(50):
            with run.locked():
                assert run.is_locked()
    finally:
        stop.set()
        looking.join()
    assert not run.is_locked()


class Flat(nn.Module):
    """A network without a layer called classifier."""

    def __init__(self, classes: int, channels: int, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(channels * 64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(images.flatten(1))
        return found


@pytest.mark.parametrize("method", ["proxyfl", "gpt-only", "proto"])
def test_a_network_that_does_not_fit_leaves_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._factories, "flat", Flat)
    experiment = proxyfl.Experiment(method, "digits", model__name="flat", **TINY)
    with pytest.raises(MethodError, match="classifier"):
        experiment.run(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_own_data_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    experiment = proxyfl.Experiment("fedavg", "digits", data__name="folder:mine")
    assert experiment.config.data.name == f"folder:{(tmp_path / 'mine').resolve()}"


def test_label_counts_of_a_preset_do_not_go_to_another_data_set() -> None:
    assert resolve("svhn").labels.ten_percent == 460
    assert resolve("cifar10", {"data": {"name": "svhn"}}).labels.ten_percent == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"federation__quorum": 50}, "federation.quorum = 50 can never be reached"),
        ({"label_ratio": 0.0}, "labels.ratio = 0 leaves no labelled image"),
        ({"config": resolve("digits"), "preset": "cifar10"}, "not both"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        proxyfl.Experiment(**settings)  # type: ignore[arg-type]


def test_a_file_is_not_turned_into_another_fidelity_by_half(tmp_path: Path) -> None:
    file = tmp_path / "clean.toml"
    file.write_text('preset = "digits"\nfidelity = "clean"\n')
    with pytest.raises(ConfigError, match="was written for fidelity 'clean'"):
        proxyfl.Experiment(preset=file, fidelity="code")
