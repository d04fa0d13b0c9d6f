"""The paper's figures, drawn from the finished runs of their cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.errors import RunError
from proxyfl.paper import figures
from proxyfl.paper.captions import name_of
from proxyfl.paper.catalogue import UNTUNED
from proxyfl.paper.items import Column, Item
from proxyfl.paper.plan import Case, column_title
from proxyfl.paper.questions import PROXYFL
from proxyfl.paper.scales import Scale
from proxyfl.report import plot_style
from proxyfl.report.bubbles import partition_bubbles
from proxyfl.report.curves import accuracy_curves
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare

POINTS = 10
"""Points along a curve, as the paper has them."""

APART = ("fig7",)
"""Figures of several data sets, whose pictures bear a name even where there is but one."""


@dataclass(frozen=True)
class Picture:
    """What a figure of one data set is drawn from: the runs of each row, in columns that have some."""

    item: Item
    size: Scale
    runs: Mapping[tuple[str, str], Sequence[Run]]
    columns: Sequence[Column]
    path: Path
    root: Path | None = None

    @property
    def column(self) -> Column:
        """The first, where a figure has but one."""
        return self.columns[0]

    def title(self, *more: str) -> str:
        """Two lines, so that a legend has room beside them: which figure, and what it is drawn from."""
        alphas = {column.alpha for column in self.columns}
        words = [column_title(self.column.data, self.size)]
        words += [f"α = {alpha:g}" for alpha in alphas if len(alphas) == 1]
        words += [*more, *([] if self.size.comparable else [f"scale {self.size.name}"])]
        return f"{name_of(self.item)}: {self.item.title}\n{', '.join(words)}"

    def row(self, label: str, column: Column) -> Sequence[Run]:
        return self.runs.get((label, column.key), ())

    def by_row(self) -> dict[str, Sequence[Run]]:
        found = {row.label: self.row(row.label, self.column) for row in self.item.rows}
        return {label: runs for label, runs in found.items() if runs}

    def by_alpha(self, label: str) -> dict[float, Sequence[Run]]:
        found = {column.alpha: self.row(label, column) for column in self.columns}
        return {alpha: runs for alpha, runs in found.items() if runs}


def draw(
    item: Item,
    size: Scale,
    wanted: Sequence[Case],
    columns: Sequence[Column],
    seeds: Sequence[int],
    folder: Path,
    path: Path,
    root: Path | None = None,
) -> list[Path]:
    """A figure of the runs that are finished, as PNG, SVG and CSV; gives the files.

    Every data set that has runs is drawn by itself; where they are several its name is added to ``path``.
    """
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for case in wanted:
        for job in (case.job(seed, folder) for seed in seeds):
            if job.path.exists() and job.finished:
                runs[case.key].append(Run(job.path))
    there = [column for column in columns if not item.rows or any(key == column.key for _, key in runs)]
    names = list(dict.fromkeys(column.data for column in there))
    files: list[Path] = []
    for name in names:
        apart = len(names) > 1 or item.name in APART
        place = path.with_name(f"{path.stem}-{name}") if apart else path
        part = [column for column in there if column.data == name]
        files += DRAWN[item.name](Picture(item, size, runs, part, place, root))
    if not files:
        few = "too few finished runs" if runs else "no finished run"
        raise RunError(
            f"{item.name} has {few} in {folder} to be drawn; make more with "
            f"'proxyfl paper run {item.name} --scale {size.name}'"
        )
    return files


def _low_confidence(picture: Picture) -> Sequence[Path]:
    found = {row.label: picture.by_alpha(row.label) for row in picture.item.rows}
    bars = {label: runs for label, runs in found.items() if runs}
    return figures.low_confidence_bars(bars, picture.path, picture.title())


def _excluded(picture: Picture) -> Sequence[Path]:
    runs = picture.by_alpha(picture.item.rows[0].label)
    return figures.excluded_bars(runs, picture.path, picture.title())


def _oracle(picture: Picture) -> Sequence[Path]:
    runs = picture.by_row()
    return figures.oracle_curves(runs, picture.path, picture.title(), every=_every(runs))


def _convergence(picture: Picture) -> Sequence[Path]:
    runs, methods = picture.by_row(), {row.label: row.method for row in picture.item.rows}
    known = plot_style.looks(methods.values())
    looks = {label: known[methods[label]] for label in runs}
    return accuracy_curves(runs, picture.path, picture.title(), every=_every(runs), looks=looks)


def _every(runs: Mapping[str, Sequence[Run]]) -> int:
    """So many rounds between the points of a curve."""
    rounds = max(run.config.federation.rounds for each in runs.values() for run in each)
    return max(1, rounds // POINTS)


def _proxies(picture: Picture, *, tuned: bool = False) -> Sequence[Path]:
    run = picture.row(PROXYFL.label, picture.column)[0]
    return figures.proxy_map(
        run, picture.path, round=1, tuned=tuned, title=picture.title(f"seed {run.config.seed}")
    )


def _tuned_proxies(picture: Picture) -> Sequence[Path]:
    return _proxies(picture, tuned=True)


def _recall(picture: Picture) -> Sequence[Path]:
    runs = picture.row(PROXYFL.label, picture.column)
    return figures.recall_curves(runs, picture.path, picture.title())


def _partition(picture: Picture) -> Sequence[Path]:
    """Who holds what is decided by the settings: nothing needs to be trained."""
    config = Case(picture.item, picture.size, PROXYFL, picture.column).config
    made = prepare(config, picture.root)
    source = (made.partition, made.dataset.train.labels, made.dataset.classes)
    return partition_bubbles(source, picture.path, picture.title())


def _tuning(picture: Picture) -> Sequence[Path]:
    """Nothing where there are no runs with tuning, or none without."""
    runs = picture.by_row()
    without = runs.pop(UNTUNED, ())
    by_epochs = {int(label.removeprefix("Q = ")): each for label, each in runs.items()}
    if not by_epochs or not without:
        return []
    return figures.tuning_epochs(by_epochs, without, picture.path, picture.title())


DRAWN: dict[str, Callable[[Picture], Sequence[Path]]] = {
    "fig1b": _low_confidence,
    "fig2a": _proxies,
    "fig2b": _excluded,
    "fig2c": _oracle,
    "fig5a": _partition,
    "fig5b": _convergence,
    "fig5c": _tuned_proxies,
    "fig6": _recall,
    "fig7": _tuning,
}
