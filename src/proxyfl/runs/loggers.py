"""Observers that tell other people's tools: TensorBoard, MLflow, Weights & Biases. Each is an extra.

Rounds are the steps. A round that is played again after a crash has the same values, so saying them twice
changes nothing; a resumed run goes on in the tool's old run.

A tool that cannot be started is an error before anything is trained. One that fails later is left out with a
warning: the run has its own record and does not need the tool.
"""

from __future__ import annotations

import hashlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, missing_extra, nearest
from proxyfl.core.state import Failure, Update
from proxyfl.core.text import reported
from proxyfl.core.trees import dotted
from proxyfl.federation.loop import Observer, RoundReport
from proxyfl.runs.config_file import to_toml
from proxyfl.runs.directory import RunDirectory

LONGEST_REASON = 300


class Logger(ABC):
    """One tool. It is opened with the first round, since only then is the run's folder there."""

    extra = ""
    cure = ""
    """What most often helps where it cannot be started."""

    def __init__(self, run: Path, config: Config) -> None:
        self.run, self.config = run, config
        self.failed, self.is_open, self.is_lost = 0, False, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.is_open:
            with self._lost_on_failure("the run's own records are complete"):
                self.close(failed=kind is not None)
            self.is_open = False

    def round_started(self, round: int, clients: list[int]) -> None:
        self.failed = 0
        if self.is_open or self.is_lost:
            return
        try:
            self.open(round)
        except ImportError as error:
            raise missing_extra(type(self).__name__, self.extra) from error
        except Exception as error:  # whatever another tool raises
            raise ConfigError(
                f"{type(self).__name__} cannot be started ({_in_words(error)}); {self.cure}, "
                f"then '{RunDirectory(self.run).again}' with or without --log {self.extra}"
            ) from error
        self.is_open = True

    def answered(self, answer: Update | Failure) -> None:
        self.failed += isinstance(answer, Failure)

    def round_finished(self, report: RoundReport) -> None:
        if not self.is_open:
            return
        values = {**scalars(report), "clients failed": float(self.failed)}
        with self._lost_on_failure("training continues without it"):
            self.tell(report.state.round, values)

    @contextmanager
    def _lost_on_failure(self, comfort: str) -> Iterator[None]:
        """A tool that fails is not asked again, also not to close: it may take minutes to fail once more."""
        try:
            yield
        except Exception as error:  # whatever another tool raises
            self.is_open, self.is_lost = False, True
            print(f"warning: {type(self).__name__} failed ({_in_words(error)}); {comfort}", file=sys.stderr)

    @abstractmethod
    def open(self, first_round: int) -> None: ...

    @abstractmethod
    def tell(self, round: int, values: dict[str, float]) -> None: ...

    @abstractmethod
    def close(self, *, failed: bool) -> None: ...


class TensorBoard(Logger):
    """Event files in the run's own folder: ``tensorboard --logdir runs``."""

    extra = "tensorboard"
    cure = "see that the run's folder can be written"

    def open(self, first_round: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier process wrote of rounds that are played again is dropped by the reader.
        self.writer = SummaryWriter(str(self.run / "tensorboard"), purge_step=first_round)
        if first_round == 1:
            self.writer.add_text("config", f"```toml\n{to_toml(self.config)}\n```", 0)

    def tell(self, round: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def close(self, *, failed: bool) -> None:
        self.writer.close()


class MLflow(Logger):
    """A run of the experiment ``proxyfl``, at $MLFLOW_TRACKING_URI or in ``mlruns.db`` beside the runs."""

    extra = "mlflow"
    cure = "set MLFLOW_TRACKING_URI to a server that answers, or unset it for a file beside the runs"

    def open(self, first_round: int) -> None:
        from mlflow import MlflowClient

        beside = f"sqlite:///{self.run.parent.absolute() / 'mlruns.db'}"
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or beside)
        found = self.client.get_experiment_by_name("proxyfl")
        experiment = found.experiment_id if found else self.client.create_experiment("proxyfl")
        mark = f"tags.`proxyfl.run` = '{identity(self.run)}'"
        known = self.client.search_runs([experiment], mark) if first_round > 1 else []
        if known:
            self.id = known[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return
        made = self.client.create_run(
            experiment, tags={"proxyfl.run": identity(self.run)}, run_name=self.run.name
        )
        self.id = made.info.run_id
        for name, value in dotted(self.config.to_tree()).items():
            self.client.log_param(self.id, name, value)

    def tell(self, round: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.id, name, value, step=round)

    def close(self, *, failed: bool) -> None:
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


class Wandb(Logger):
    """A run of the project ``proxyfl`` (or $WANDB_PROJECT). $WANDB_MODE=offline keeps it on this machine."""

    extra = "wandb"
    cure = "log in with 'wandb login' or set WANDB_MODE=offline"

    def open(self, first_round: int) -> None:
        import wandb

        self.wandb = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "proxyfl"),
            id=identity(self.run),
            name=self.run.name,
            dir=str(self.run),
            config=self.config.to_tree(),
            resume="allow",
        )

    def tell(self, round: int, values: dict[str, float]) -> None:
        self.wandb.log(values, step=round)

    def close(self, *, failed: bool) -> None:
        self.wandb.finish(exit_code=int(failed))


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": Wandb}


def find(name: str) -> type[Logger]:
    if name not in LOGGERS:
        raise ConfigError(f"unknown logger '{name}'; {nearest(name, LOGGERS)}")
    return LOGGERS[name]


def find_all(names: str | Iterable[str]) -> list[type[Logger]]:
    """The tools of these names, or of the one."""
    return [find(name) for name in ([names] if isinstance(names, str) else names)]


def checked(observers: Iterable[Observer]) -> list[Observer]:
    """Observers, none of which is the name of a tool."""
    found = [observers] if isinstance(observers, str) else list(observers)
    for each in found:
        if isinstance(each, str):
            cure = f"log='{each}'" if each in LOGGERS else f"log={next(iter(LOGGERS))!r}"
            raise ConfigError(f"observers takes objects, and '{each}' is text; name a tool with {cure}")
        if not all(hasattr(each, hook) for hook in ("round_started", "answered", "round_finished")):
            raise ConfigError(
                f"{type(each).__name__} is not an observer; give it round_started, answered and "
                "round_finished"
            )
    return found


def identity(run: Path) -> str:
    """The same for a run and its continuation; another for a run of the same name elsewhere."""
    return hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:24]


def scalars(report: RoundReport) -> dict[str, float]:
    """A round in numbers: what was measured, losses, quality of pseudo-labels, megabytes, seconds."""
    metrics = report.metrics
    values = {"accuracy": float(metrics["accuracy"])} if "accuracy" in metrics else {}
    for part in ("measures", "validation", "losses", "server", "pseudo", "counts"):
        for name, value in metrics.get(part, {}).items():
            if isinstance(value, (int, float)):
                values[f"{part}/{name}"] = float(value)
    for way in ("up", "down"):
        values[f"traffic/megabytes {way}"] = metrics["traffic"][f"bytes_{way}"] / 1e6
    return values | {f"seconds/{name}": value for name, value in report.timing.items()}


def _in_words(error: Exception) -> str:
    return reported(f"{type(error).__name__}: {error}", LONGEST_REASON)
