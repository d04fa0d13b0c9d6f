"""A run to read: settings, metrics, models.

Settings and metrics are text: they are read without torch, which is imported where tensors are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxyfl.core.config import Config
from proxyfl.core.errors import DataError, ProxyFLError, RunError
from proxyfl.core.files import read_bounded
from proxyfl.core.records import CPU, choosing
from proxyfl.runs import manifests, metrics_log
from proxyfl.runs.config_file import recorded
from proxyfl.runs.directory import AT_SITES, MODELS, RunDirectory, json_lines, measured, read_json_lines
from proxyfl.runs.schema import require_records, require_rows

if TYPE_CHECKING:
    from proxyfl.core.state import Tensors
    from proxyfl.data.dataset import Dataset
    from proxyfl.data.partition import Partition
    from proxyfl.runs.export import TrainedModel


@dataclass(frozen=True)
class Summary:
    """A run in a line. Accuracy leads with the mean of the last rounds; the best round is ``chosen_on``
    validation images where there are some, else on test data, which makes it optimistic.

    Where not every round was measured, these are the last and the best of the ``measured`` ones.
    """

    rounds: int
    measured: int
    mean_last: float
    last: float
    best: float
    best_round: int
    seconds: float
    cpu_seconds: float
    megabytes: float
    chosen_on: str = "test"


class Run:
    """A recorded run, read from its directory.

    >>> import proxyfl
    >>> run = proxyfl.Run("runs/first")          # doctest: +SKIP
    >>> run.summary.mean_last                    # doctest: +SKIP
    >>> run.model("best")(images)                # doctest: +SKIP
    """

    def __init__(self, path: str | Path) -> None:
        self.directory = RunDirectory(path).require()
        self.path = self.directory.path

    def __repr__(self) -> str:
        try:
            config, played = self.config, len(self.lines)
        except ProxyFLError as error:
            return f"<Run {self.path}: {error}>"
        rounds = f"{played} of {config.federation.rounds} rounds"
        return f"<Run {self.path}: {config.method.name} on '{config.data.name}', {rounds}>"

    @cached_property
    def config(self) -> Config:
        return recorded(self.directory.config)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One record per finished round, verified against the checkpoints."""
        lines = self.lines
        try:
            require_records(lines)
        except ValueError as error:
            raise RunError(f"{self.directory.metrics} is damaged: {error}") from None
        return lines

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The same without validation: in an untrusted run they may contain anything."""
        return json_lines(metrics_log.recorded(self.directory, manifests.marks(self.directory)))

    @property
    def client_rows(self) -> list[dict[str, Any]]:
        """One record per round and client that took part, verified against the checkpoints; empty if
        ``keep.clients`` or differential privacy forbids it. ``seconds`` is the client's own time.
        """
        marks = manifests.marks(self.directory, metrics_log.CLIENTS)
        rows = json_lines(metrics_log.recorded(self.directory, marks, metrics_log.CLIENTS))
        try:
            require_rows(rows)
        except ValueError as error:
            raise RunError(f"{self.directory.client_log} is damaged: {error}") from None
        spent = {line.get("round"): line.get("clients") for line in self.timing} if rows else {}
        return [row | _seconds_in(spent.get(row["round"]), row["client"]) for row in rows]

    @property
    def client_names(self) -> list[str]:
        """The names of clients, if the data or a real federation has them; otherwise empty."""
        hints = self.directory.hints()
        names = hints.get("clients", hints.get("sites"))
        found = [str(name) for name in names] if isinstance(names, list) else []
        enrolled = [line for line in self.events if line.get("event") == "enrolled"]
        joined = {line["client"]: line.get("site") for line in enrolled if type(line.get("client")) is int}
        while found and isinstance(name := joined.get(len(found)), str):  # sites that were added to a run
            found.append(name)
        return found

    @property
    def timing(self) -> list[dict[str, Any]]:
        return read_json_lines(self.directory.timing)

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_json_lines(self.directory.events)

    @property
    def finished(self) -> bool:
        """Whether the last round is committed, that is, its checkpoint exists."""
        last = f"round-{self.config.federation.rounds:08d}"
        return (self.directory.checkpoints / last / "manifest.json").is_file()

    @property
    def state(self) -> str:
        """``running``, ``finished`` or ``stopped``."""
        if self.directory.is_locked():
            return "running"
        return "finished" if self.finished else "stopped"

    @property
    def partition(self) -> Partition:
        """Which client holds which images; a file that does not match the checkpoint is rejected."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        from proxyfl.data.partition import Partition

        path = self.directory.partition
        known = [manifest["run"].get(path.name) for manifest in manifests.of(self.directory)]
        if not known and manifests.folders(self.directory):
            raise RunError(
                f"no checkpoint of {self.path} is intact, so {path} cannot be verified; "
                "restore the run from a copy"
            )
        try:
            content = read_bounded(path)
            if not known or known[0] in (None, hashlib.sha256(content).hexdigest()):
                return Partition.from_tensors(load(content))
        except (OSError, RunError, SafetensorError):
            pass
        raise RunError(f"{path} is damaged; 'proxyfl resume {self.path}' rebuilds it")

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, commit, machine and data at the start of the run."""
        return self.directory.noted()

    @property
    def at_sites(self) -> bool:
        """Whether the images are those of a real federation, according to its notes or newest checkpoint."""
        recorded_data = [manifest["run"].get("data") for manifest in manifests.of(self.directory)]
        return AT_SITES in (self.directory.hints().get("data"), *recorded_data[:1])

    def dataset(self) -> Dataset:
        """The data set, read from where it was when the run started."""
        from proxyfl.runs.simulation import load_dataset

        if self.at_sites:
            raise DataError("the images of a real federation stay at its sites")
        self.directory.noted()  # where it cannot be read, say so instead of looking elsewhere
        return load_dataset(self.config, self.directory.data_root())

    def model(self, which: str = "last", device: str = "cpu", *, network: Any = None) -> TrainedModel:
        """The model of the ``last`` round, or of the ``best``; ``network`` as in :func:`load_model`."""
        from proxyfl.runs.export import load_model

        if which not in MODELS:
            raise RunError(f"a run has a best and a last model, not '{which}'")
        return load_model(self.directory.models / f"{which}.safetensors", device, network=network)

    def snapshot(self, round: int) -> Tensors:
        """Large tensors of one round: proxies, client classifiers, confusion matrix."""
        from proxyfl.core.checksum import read_verified

        path = self.directory.snapshots / f"round-{round:08d}.safetensors"
        if not path.exists():
            known = ", ".join(str(int(file.stem[6:])) for file in sorted(self.directory.snapshots.iterdir()))
            raise RunError(f"{self.path} has no snapshot of round {round}; it has {known or 'none'}")
        return read_verified(path)[0]

    def frame(self) -> Any:
        """The rounds as a pandas data frame, one row each, with the columns of ``proxyfl.results(…).rounds``.

        >>> run.frame().plot(x="round", y="accuracy")  # doctest: +SKIP
        """
        from proxyfl.results.frames import rounds_frame

        return rounds_frame([self])

    def clients(self) -> Any:
        """The clients as a pandas data frame: one row per round and client that took part.

        >>> run.clients().groupby("client").cosine.mean()  # doctest: +SKIP
        """
        from proxyfl.results.frames import clients_frame

        return clients_frame(self)

    def plot(self, path: str | Path = "figure.pdf", metric: str = "accuracy", title: str = "") -> Path:
        """Draw a column of :meth:`frame` against the rounds, as PDF, PNG or SVG; gives the file.

        >>> run.plot("accuracy.png")  # doctest: +SKIP
        """
        from proxyfl.report.plot import plot

        return plot([self], path, metric, title=title)

    @property
    def summary(self) -> Summary:
        lines = self.metrics
        if not lines:
            raise RunError(f"{self.path} has not finished a round yet")
        scored = measured(lines)
        if not scored:
            raise RunError(f"{self.path} has not been evaluated yet (federation.evaluate_every)")
        tail = [line["accuracy"] for line in scored[-self.config.keep.last_rounds :]]
        best = max(scored, key=choosing)
        sent = sum(line["traffic"]["bytes_up"] + line["traffic"]["bytes_down"] for line in lines)
        seconds = [seconds_of(line) for line in self.timing]
        return Summary(
            rounds=len(lines),
            measured=len(scored),
            mean_last=sum(tail) / len(tail),
            last=tail[-1],
            best=best["accuracy"],
            best_round=best["round"],
            seconds=sum(clock for clock, _ in seconds),
            cpu_seconds=sum(cpu for _, cpu in seconds),
            megabytes=sent / 1e6,
            chosen_on="validation" if "validation" in best else "test",
        )


def seconds_of(timing: dict[str, Any]) -> tuple[float, float]:
    """What a line of timing adds up to by the clock, and the processor's time. Timing is not verified: what
    is no duration does not count.
    """
    known = {
        name: value
        for name, value in timing.items()
        if name != "round" and isinstance(value, int | float) and 0 <= value < 1e9
    }
    return sum(value for name, value in known.items() if name != CPU), known.get(CPU, 0)


def _seconds_in(clients: Any, client: int) -> dict[str, float]:
    """A client's seconds in what a line of timing says; timing is not verified."""
    value = clients.get(str(client)) if isinstance(clients, dict) else None
    return {"seconds": value} if isinstance(value, int | float) and 0 <= value < 1e9 else {}


@dataclass(frozen=True)
class Damaged:
    """A run that cannot be opened, and why."""

    path: Path
    reason: str


def open_run(path: Path) -> Run | Damaged:
    """A run, or what is wrong with it: whoever looks at many goes on with the others."""
    try:
        return Run(path)
    except RunError as error:
        return Damaged(path, str(error))


def list_runs(folder: Path) -> list[Run | Damaged]:
    """The runs in a folder, by name."""
    if not folder.is_dir():
        return []
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return [open_run(path) for path in paths if RunDirectory(path).is_rest]


DEPTH = 2
"""Folders below the one that is named in which runs are looked for."""


def runs_below(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Runs in a folder and in the folders in it, by name. Nothing is looked for inside a run."""
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not path.is_dir():
            continue
        if RunDirectory(path).is_rest:
            yield path
        elif depth > 1:
            yield from runs_below(path, depth - 1)
