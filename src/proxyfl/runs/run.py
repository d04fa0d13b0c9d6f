"""A run to read: settings, metrics, models."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from proxyfl.core.config import Config
from proxyfl.core.errors import DataError, RunError
from proxyfl.core.files import read_bounded
from proxyfl.core.seal import read_sealed
from proxyfl.core.state import Tensors
from proxyfl.data.dataset import Dataset
from proxyfl.data.partition import Partition
from proxyfl.federation.loop import CPU
from proxyfl.runs import checkpoint, ledger
from proxyfl.runs.directory import AT_SITES, RunDirectory, json_lines, read_json_lines
from proxyfl.runs.export import TrainedModel, load_model
from proxyfl.runs.plausible import require_records
from proxyfl.runs.settings import load_toml, resolve
from proxyfl.runs.simulation import load_dataset


@dataclass(frozen=True)
class Summary:
    """A run in a line. Accuracy leads with the mean of the last rounds; the best is chosen on test data."""

    rounds: int
    mean_last: float
    last: float
    best: float
    best_round: int
    seconds: float
    cpu_seconds: float
    megabytes: float


class Run:
    """One run's directory, read."""

    def __init__(self, path: str | Path) -> None:
        self.directory = RunDirectory(path).require()
        self.path = self.directory.path

    @cached_property
    def config(self) -> Config:
        return resolve("", load_toml(self.directory.config))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record per finished round, as checkpoints vouch for them."""
        lines = self.lines
        try:
            require_records(lines)
        except ValueError as error:
            raise RunError(f"{self.directory.metrics} is damaged: {error}") from None
        return lines

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The same unchecked: in a stranger's run they may hold anything."""
        return json_lines(ledger.recorded(self.directory, checkpoint.marks(self.directory)))

    @property
    def timing(self) -> list[dict[str, Any]]:
        return read_json_lines(self.directory.timing)

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_json_lines(self.directory.events)

    @property
    def finished(self) -> bool:
        """Whether the last round is committed: its checkpoint is there, which is written last."""
        last = f"round-{self.config.federation.rounds:08d}"
        return (self.directory.checkpoints / last / "manifest.json").is_file()

    @property
    def partition(self) -> Partition:
        """Who holds what; a file that is not what a checkpoint says about it is refused."""
        path = self.directory.partition
        known = [manifest["run"].get(path.name) for manifest in checkpoint.manifests(self.directory)]
        if not known and checkpoint.folders(self.directory):
            raise RunError(
                f"no checkpoint of {self.path} is intact, so nobody vouches for {path}; "
                "put the run back from a copy"
            )
        try:
            content = read_bounded(path)
            if not known or known[0] in (None, hashlib.sha256(content).hexdigest()):
                return Partition.from_tensors(load(content))
        except (OSError, RunError, SafetensorError):
            pass
        raise RunError(f"{path} is damaged; 'proxyfl resume {self.path}' makes it again")

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, commit, machine and data, as they were when the run began."""
        return self.directory.noted()

    def dataset(self) -> Dataset:
        """The data set, where the run says it was."""
        noted = self.environment
        if noted.get("data") == AT_SITES:
            raise DataError("the images of a real federation stay at its sites")
        root = noted.get("data_root")
        return load_dataset(self.config, Path(root) if root and isinstance(root, str) else None)

    def model(self, which: str = "last", device: str = "cpu") -> TrainedModel:
        """The model of the ``last`` round, or of the ``best``."""
        if which not in ("best", "last"):
            raise RunError(f"a run has a best and a last model, not '{which}'")
        return load_model(self.directory.models / f"{which}.safetensors", device)

    def snapshot(self, round: int) -> Tensors:
        """Large tensors of one round: proxies, client classifiers, confusion matrix."""
        path = self.directory.snapshots / f"round-{round:08d}.safetensors"
        if not path.exists():
            known = ", ".join(str(int(file.stem[6:])) for file in sorted(self.directory.snapshots.iterdir()))
            raise RunError(f"{self.path} has no snapshot of round {round}; it has {known or 'none'}")
        return read_sealed(path)[0]

    @property
    def summary(self) -> Summary:
        lines = self.metrics
        if not lines:
            raise RunError(f"{self.path} has not finished a round yet")
        accuracy = [line["accuracy"] for line in lines]
        tail = accuracy[-self.config.keep.last_rounds :]
        best = max(accuracy)
        sent = sum(line["traffic"]["bytes_up"] + line["traffic"]["bytes_down"] for line in lines)
        timing = self.timing
        return Summary(
            rounds=len(lines),
            mean_last=sum(tail) / len(tail),
            last=accuracy[-1],
            best=best,
            best_round=accuracy.index(best) + 1,
            seconds=sum(_seconds(line) for line in timing),
            cpu_seconds=sum(_seconds({CPU: line.get(CPU)}, clock=False) for line in timing),
            megabytes=sent / 1e6,
        )


def _seconds(timing: dict[str, Any], *, clock: bool = True) -> float:
    """What a line of timing adds up to; nobody vouches for it, so what is no duration does not count."""
    durations = [value for name, value in timing.items() if name not in ("round", *([CPU] * clock))]
    return sum(value for value in durations if isinstance(value, int | float) and 0 <= value < 1e9)


def list_runs(folder: Path) -> list[Run]:
    """The runs in a folder, by name."""
    if not folder.is_dir():
        return []
    places = (RunDirectory(path) for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    return [Run(place.path) for place in places if place.config.is_file() and place.checkpoints.is_dir()]
