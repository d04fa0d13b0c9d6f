"""What finished runs say about the cells of an item: one record per run, from its folder or from a CSV."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import write_bytes
from proxyfl.paper.plan import Case, Known, weights_hash
from proxyfl.paper.scales import TUNING_SEEDS
from proxyfl.results import outcome
from proxyfl.results.formats import csv_text
from proxyfl.results.settings import changed, plain, settings_of
from proxyfl.runs.batch import Job
from proxyfl.runs.run import Run
from proxyfl.runs.settings import identity


@dataclass(frozen=True)
class Result:
    """One run as a cell of an item. ``column`` is the paper's, ``data`` what the run was on.

    ``settings`` are those that differ from the preset's, ``curve`` is the accuracy after each round; labels
    and excluded images are means over the ``last_rounds``. ``commit`` is the program's when the run began.
    ``start_hash`` is that of the weights it started from, if not the seed's, ``final_hash`` that of its last.
    """

    item: str
    scale: str
    row: str
    column: str
    method: str
    data: str
    alpha: float
    ratio: float
    seed: int
    rounds: int
    last_rounds: int
    curve: tuple[float, ...]
    pseudo_accuracy: float | None
    excluded_visits: float | None
    seconds: float
    megabytes: float
    dtype: str
    preset: str
    settings: str
    identity: str
    commit: str
    confident_share: float | None = None
    cpu_seconds: float | None = None
    start_hash: str = ""
    start_accuracy: float | None = None
    final_hash: str = ""

    @property
    def mean_last(self) -> float:
        return statistics.fmean(self.curve[-self.last_rounds :])

    @property
    def last(self) -> float:
        return self.curve[-1]

    @property
    def best(self) -> float:
        return max(self.curve)

    def value(self, metric: str) -> float:
        return float(getattr(self, metric.replace("-", "_")))

    def rounds_to(self, target: float) -> int | None:
        return next((number for number, value in enumerate(self.curve, 1) if value >= target), None)


STARTS = "starts"
"""The folder beside exported results that has the weights which runs start from."""

Results = Mapping[tuple[str, str], Sequence[Result]]
"""By row and column, each over its seeds."""


def recorded(folder: Path) -> Known:
    """The runs of every exported table in a folder. Other files there are left alone."""
    found = Known()
    found.starts = folder / STARTS
    for file in sorted(folder.glob("*.csv")) if folder.is_dir() else ():
        with contextlib.suppress(ConfigError):
            found.update((result.identity, result) for cell in from_csv(file).values() for result in cell)
    return found


def gather(
    wanted: Iterable[Case], seeds: Iterable[int], folder: Path, known: Known | None = None
) -> dict[tuple[str, str], list[Result]]:
    """The finished runs of the cases, from the folder or known. Seeds on which protocols were chosen are left
    out.
    """
    found: dict[tuple[str, str], list[Result]] = {}
    known = known or Known()
    seeds = [seed for seed in seeds if seed not in TUNING_SEEDS]
    for case in wanted:
        for seed in seeds:
            job = case.job(seed, folder, known=known)
            if there := known.find(job.config):
                row, column = case.key
                placed = dataclasses.replace(there, item=case.item.name, row=row, column=column)
                found.setdefault(case.key, []).append(placed)
            elif job.finished:
                found.setdefault(case.key, []).append(result(case, job))
    return found


def keep_starts(
    exported: Results, wanted: Iterable[Case], seeds: Iterable[int], folder: Path, results: Path
) -> list[Path]:
    """Copy the weights that exported runs start from beside the results; gives the new files."""
    files, runs = [], [run for cell in exported.values() for run in cell]
    used = {run.final_hash if run.item == "warm" else run.start_hash for run in runs}
    cases = {case.column.key: case if case.warming else case.start for case in wanted}
    for job in (case.job(seed, folder) for case in cases.values() if case for seed in seeds):
        if job.finished and (digest := weights_hash(job.path)) in used:
            file = results / STARTS / f"{digest}.safetensors"
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(file, (job.path / "models" / "last.safetensors").read_bytes())
                files.append(file)
    return files


def result(case: Case, job: Job) -> Result:
    """A finished run as a cell."""
    run = Run(job.path)
    found, lines, config = outcome.read(run), run.metrics, run.config
    summary, tail = found.summary, found.tail
    if summary.measured < len(lines):
        raise RunError(
            f"{job.path} measured accuracy in {summary.measured} of its {len(lines)} rounds, and the paper's "
            "tables need it in all; run it again with federation.evaluate_every = 1"
        )
    pseudo = [line.get("pseudo") or {} for line in lines[-tail:]]
    return Result(
        item=case.item.name, scale=case.scale.name, row=case.row.label, column=case.column.key,
        method=config.method.name, data=config.data.name, alpha=case.column.alpha, ratio=case.ratio,
        seed=config.seed, rounds=len(lines), last_rounds=tail,
        curve=tuple(value for _, value in found.curve),
        pseudo_accuracy=_mean(pseudo, "accuracy"), excluded_visits=_mean(pseudo, "excluded_visits"),
        seconds=summary.seconds, megabytes=summary.megabytes, dtype=config.compute.dtype,
        preset=config.preset, settings=changed(settings_of(job.config)), identity=identity(config),
        commit=found.commit,
        confident_share=_mean(pseudo, "selected_share"), cpu_seconds=summary.cpu_seconds,
        start_hash=found.start_hash, start_accuracy=run.environment.get("start_accuracy"),
        final_hash=weights_hash(job.path),
    )  # fmt: skip


def _mean(records: Sequence[Mapping[str, float]], key: str) -> float | None:
    values = [record[key] for record in records if key in record]
    return statistics.fmean(values) if values else None


NUMBERS = {"alpha": float, "ratio": float, "seed": int, "rounds": int, "last_rounds": int}
MEASURED = ("mean_last", "last", "best")
OPTIONAL = ("pseudo_accuracy", "excluded_visits", "confident_share", "cpu_seconds", "start_accuracy")
FIELDS = [field.name for field in dataclasses.fields(Result) if field.name != "curve"]
HEADER = [*FIELDS, *MEASURED, "curve"]


def to_csv(results: Results) -> str:
    """One row per run, the accuracies from 0 to 1."""
    runs = [run for cell in results.values() for run in cell]
    rows = ([_written(getattr(run, name)) for name in (*FIELDS, *MEASURED)] for run in runs)
    curves = (" ".join(f"{value:.6g}" for value in run.curve) for run in runs)
    return csv_text(HEADER, ([*row, curve] for row, curve in zip(rows, curves, strict=True)))


def _written(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else plain(value)


def from_csv(path: Path) -> dict[tuple[str, str], list[Result]]:
    """Back from :func:`to_csv`."""
    found: dict[tuple[str, str], list[Result]] = defaultdict(list)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                result = _read(row)
                found[result.row, result.column].append(result)
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not a table of 'proxyfl paper export': {error}") from error
    return dict(found)


def _read(row: Mapping[str, str]) -> Result:
    values: dict[str, Any] = {name: row[name] for name in FIELDS}
    values |= {name: kind(row[name]) for name, kind in NUMBERS.items()}
    values |= {name: float(row[name]) if row[name] else None for name in OPTIONAL}
    values |= {name: float(row[name]) for name in ("seconds", "megabytes")}
    return Result(**values, curve=tuple(map(float, row["curve"].split())))
