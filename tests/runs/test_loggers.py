"""TensorBoard, MLflow and Weights & Biases: the real packages are told what metrics.jsonl holds."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyfl import Experiment, Run
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import ServerState
from proxyfl.federation.loop import RoundReport
from proxyfl.runs import loggers
from proxyfl.runs.experiment import resume
from toybox import Stopped, Told, little_config


def train(path: Path, name: str, stop_after: int | None = None) -> None:
    """A run of three rounds, or its first ones."""
    config = little_config("fixmatch-gpl", rounds=3, data__subset=150)
    with loggers.find(name)(path, config) as logger:
        observers = [logger, Told(stop_after)]
        if path.exists():
            resume(path, observers)
        else:
            Experiment(config=config).run(path, observers)


def killed_and_resumed(path: Path, name: str, pause: float = 0.0) -> Run:
    with pytest.raises(Stopped):
        train(path, name, stop_after=2)
    time.sleep(pause)
    train(path, name)
    return Run(path)


def accuracy(run: Run) -> list[tuple[int, float]]:
    return [(line["round"], pytest.approx(line["accuracy"])) for line in run.metrics]


def test_tensorboard(tmp_path: Path) -> None:
    event = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = killed_and_resumed(tmp_path / "run", "tensorboard")
    read = event.EventAccumulator(str(run.path / "tensorboard"))
    read.Reload()
    assert [(e.step, e.value) for e in read.Scalars("accuracy")] == accuracy(run)
    assert {"losses/supervised", "pseudo/selected_share", "seconds/train"} <= set(read.Tags()["scalars"])


@pytest.mark.slow
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = killed_and_resumed(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlruns.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("proxyfl").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["method.name"] == "fixmatch-gpl"
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert sorted({(each.step, each.value) for each in history}) == accuracy(run)


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    # Its offline folders are named by the second: a continuation within the same one would replace the first.
    run = killed_and_resumed(tmp_path / "run", "wandb", pause=1.1)
    until = time.monotonic() + 60  # its own process writes the file, and may still be at it
    while len(told := _steps(run.path)) < len(run.metrics) and time.monotonic() < until:
        time.sleep(0.1)
    assert told == accuracy(run)


def _steps(folder: Path) -> list[tuple[int, float]]:
    lines = [line for file in sorted(folder.rglob("*.wandb")) for line in _history(file)]
    return sorted({(int(line["_step"]), float(line["accuracy"])) for line in lines})


def _records(file: Path) -> Iterator[bytes]:
    """A LevelDB log after a head of 7 bytes: blocks of 32 KiB with pieces of (crc, length, kind)."""
    raw, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(raw):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", raw, place + 4)
        record += raw[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def _history(file: Path) -> list[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    lines = []
    for data in _records(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            lines.append({"_step": record.history.step.num, **items})
    return lines


class Fragile(loggers.Logger):
    """A tool that fails at one of its three tasks."""

    extra, cure = "fragile", "hold it gently"

    def __init__(self, fails_at: str) -> None:
        super().__init__(Path("runs/one"), little_config())
        self.fails_at, self.calls = fails_at, list[str]()

    def _do(self, task: str) -> None:
        self.calls.append(task)
        if task == self.fails_at:
            raise OSError("the line is dead\nand gone")

    def open(self, first_round: int) -> None:
        self._do("open")

    def tell(self, round: int, values: dict[str, float]) -> None:
        self._do(f"tell {round}")

    def close(self, *, failed: bool) -> None:
        self._do(f"close {failed}")


def three_rounds(logger: loggers.Logger) -> None:
    metrics = {"accuracy": 0.5, "traffic": {"bytes_up": 1, "bytes_down": 2}}
    with logger:
        for round in (1, 2, 3):
            logger.round_started(round, [0])
            logger.round_finished(RoundReport(ServerState(round, {}), metrics, {"train": 1.0}))


def test_a_tool_that_goes_away_is_told_once_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Fragile("tell 2")
    three_rounds(logger)
    assert logger.calls == ["open", "tell 1", "tell 2"]
    warning = "warning: Fragile failed (OSError: the line is dead and gone); training continues without it\n"
    assert capsys.readouterr().err == warning


def test_a_tool_that_cannot_be_closed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    three_rounds(Fragile("close False"))
    warning = (
        "warning: Fragile failed (OSError: the line is dead and gone); the run's own records are complete\n"
    )
    assert capsys.readouterr().err == warning


def test_a_tool_that_cannot_be_started_names_the_cure() -> None:
    logger = Fragile("open")
    with pytest.raises(ConfigError) as caught:
        three_rounds(logger)
    said = str(caught.value)
    assert "dead and gone); hold it gently" in said
    assert "'proxyfl resume runs/one' with or without --log fragile" in said
    assert logger.calls == ["open"]


def test_an_address_that_mlflow_does_not_know_ends_a_run_before_its_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://x")
    with pytest.raises(ConfigError, match=r"MLflow .*MLFLOW_TRACKING_URI"):
        train(tmp_path / "run", "mlflow")
    assert Run(tmp_path / "run").metrics == []


def test_an_unknown_logger_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord'; .*'tensorboard'"):
        loggers.find("tensorbord")


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(Exception, match=r"proxyfl\[wandb\]"):
        train(tmp_path / "run", "wandb")
