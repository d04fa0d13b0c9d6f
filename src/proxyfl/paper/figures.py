"""The paper's figures, drawn from the finished runs of their cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.errors import RunError
from proxyfl.paper.captions import name_of
from proxyfl.paper.catalogue import PROXYFL, UNTUNED, Column, Item
from proxyfl.paper.plan import Case
from proxyfl.paper.scales import TITLES, Scale
from proxyfl.report import figures
from proxyfl.report.bubbles import partition_bubbles
from proxyfl.report.curves import accuracy_curves
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare

POINTS = 10
"""Points along a curve, as the paper has them."""


@dataclass(frozen=True)
class Picture:
    """What a figure is drawn from: the runs of each row and column, in the order of the catalogue."""

    item: Item
    size: Scale
    runs: Mapping[tuple[str, str], Sequence[Run]]
    columns: Sequence[Column]
    path: Path
    root: Path | None = None

    def title(self, column: Column | None = None) -> str:
        """Short, so that a legend has room beside it: which figure, of which data, at which scale."""
        data = self.size.protocols[(column or self.columns[0]).data].preset
        scale = "" if self.size.comparable else f", scale {self.size.name}"
        return f"{name_of(self.item)}: {TITLES[data]}{scale}"

    def row(self, label: str, column: Column) -> Sequence[Run]:
        return self.runs.get((label, column.key), ())

    def by_row(self, column: Column) -> dict[str, Sequence[Run]]:
        found = {row.label: self.row(row.label, column) for row in self.item.rows}
        return {label: runs for label, runs in found.items() if runs}

    def by_alpha(self, label: str) -> dict[float, Sequence[Run]]:
        found = {column.alpha: self.row(label, column) for column in self.columns}
        return {alpha: runs for alpha, runs in found.items() if runs}


def draw(
    item: Item,
    size: Scale,
    wanted: Sequence[Case],
    seeds: Sequence[int],
    folder: Path,
    path: Path,
    root: Path | None = None,
) -> list[Path]:
    """A figure of the runs that are finished, as PNG, SVG and CSV; gives the files."""
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for case in wanted:
        for job in (case.job(seed, folder) for seed in seeds):
            if job.finished:
                runs[case.key].append(Run(job.path))
    if item.rows and not runs:
        raise RunError(
            f"{item.name} has no finished run in {folder}; make some with "
            f"'proxyfl paper run {item.name} --scale {size.name}'"
        )
    columns = list(dict.fromkeys(case.column for case in wanted)) or list(item.columns)
    return [*DRAWN[item.name](Picture(item, size, runs, columns, path, root))]


def _low_confidence(picture: Picture) -> Sequence[Path]:
    found = {row.label: picture.by_alpha(row.label) for row in picture.item.rows}
    bars = {label: runs for label, runs in found.items() if runs}
    return figures.low_confidence_bars(bars, picture.path, picture.title())


def _excluded(picture: Picture) -> Sequence[Path]:
    runs = picture.by_alpha(picture.item.rows[0].label)
    return figures.excluded_bars(runs, picture.path, picture.title())


def _oracle(picture: Picture) -> Sequence[Path]:
    runs = picture.by_row(picture.columns[0])
    title = picture.title()
    return figures.oracle_curves(runs, picture.path, title, every=_every(runs))


def _convergence(picture: Picture) -> Sequence[Path]:
    column = picture.columns[0]
    runs = {row.method: each for row in picture.item.rows if (each := picture.row(row.label, column))}
    return accuracy_curves(runs, picture.path, picture.title(), every=_every(runs))


def _every(runs: Mapping[str, Sequence[Run]]) -> int:
    """So many rounds between the points of a curve."""
    rounds = max(run.config.federation.rounds for each in runs.values() for run in each)
    return max(1, rounds // POINTS)


def _proxies(picture: Picture, *, tuned: bool = False) -> Sequence[Path]:
    run = picture.row(PROXYFL.label, picture.columns[0])[0]
    title = picture.title()
    return figures.proxy_map(run, picture.path, round=1, tuned=tuned, title=title)


def _tuned_proxies(picture: Picture) -> Sequence[Path]:
    return _proxies(picture, tuned=True)


def _recall(picture: Picture) -> Sequence[Path]:
    runs = picture.row(PROXYFL.label, picture.columns[0])
    return figures.recall_curves(runs, picture.path, picture.title())


def _partition(picture: Picture) -> Sequence[Path]:
    """Who holds what is decided by the settings: nothing needs to be trained."""
    column = picture.columns[0]
    config = Case(picture.item, picture.size, PROXYFL, column).config
    made = prepare(config, picture.root)
    source = (made.partition, made.dataset.train.labels, made.dataset.classes)
    return partition_bubbles(source, picture.path, picture.title())


def _tuning(picture: Picture) -> Sequence[Path]:
    """A picture for each data set that has runs."""
    files: list[Path] = []
    for column in picture.columns:
        runs = picture.by_row(column)
        without = runs.pop(UNTUNED, ())
        by_epochs = {int(label.removeprefix("Q = ")): each for label, each in runs.items()}
        if by_epochs and without:
            path = picture.path.with_name(f"{picture.path.stem}-{column.data}")
            files += figures.tuning_epochs(by_epochs, without, path, picture.title(column))
    if not files:
        raise RunError(
            f"figure 7 needs runs with tuning and without; go on with 'proxyfl paper run fig7 "
            f"--scale {picture.size.name}'"
        )
    return files


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
