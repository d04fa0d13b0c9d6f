"""A comparison as CSV, numbers in full: one row per cell, or one per run."""

from __future__ import annotations

from typing import Any

from proxyfl.core.records import MEASURES
from proxyfl.results.cells import METRICS
from proxyfl.results.compare import Cell, Comparison
from proxyfl.results.formats import csv_text
from proxyfl.results.panels import Question, speed_up
from proxyfl.results.settings import changed, plain


def cells_to_csv(comparison: Comparison, asked: Question) -> str:
    """One row per cell, numbers in full: accuracies from 0 to 1."""
    own = list(dict.fromkeys(key for contender in comparison.contenders for key, _ in contender.own))
    extra = _measures(comparison)
    header = [
        "method", *own, *comparison.settings, "seeds", "which_seeds",
        *(f"{metric.replace('-', '_')}_{part}" for metric in METRICS for part in ("mean", "std")),
        "target", "rounds_to_target", "baseline", "speed_up", "metric", "rank", "gain",
        *(f"{name}_{part}" for name in extra for part in ("mean", "std")),
    ]  # fmt: skip
    if asked.against:
        header += ["against", "difference", "low", "high", "pairs", "verdict"]
    rows = []
    for cell in (cell for group in comparison.groups for cell in comparison.in_group(group)):
        mine = dict(cell.contender.own)
        spreads = [cell.spread(metric) for metric in METRICS]
        row: list[Any] = [cell.contender.method, *(plain(mine[key]) if key in mine else "" for key in own)]
        row += [*map(plain, cell.group), len(cell.seeds), " ".join(map(str, cell.seeds))]
        row += [number for spread in spreads for number in (spread.mean, spread.std)]
        aim = asked.targets[cell.group]
        row += [aim, cell.rounds_to(aim), asked.baseline, speed_up(comparison, cell, asked)]
        ranked, gain = comparison.ranked(cell.group, asked.metric), comparison.gain(cell.group, asked.metric)
        leads = gain is not None and gain.best == cell.contender
        place = ranked.index(cell) + 1 if cell in ranked else None
        row += [asked.metric, place, gain.paired.mean if gain and gain.paired and leads else None]
        row += [number for each in map(cell.spread, extra) for number in (each.mean, each.std)]
        rows.append([*row, *_difference(comparison, cell, asked)])
    return csv_text(header, rows)


def _measures(comparison: Comparison) -> list[str]:
    """What every run has measured beside accuracy."""
    outcomes = [outcome for cell in comparison.cells.values() for outcome in cell.outcomes]
    return [name for name in MEASURES if all(name in outcome.measures for outcome in outcomes)]


def _difference(comparison: Comparison, cell: Cell, asked: Question) -> list[Any]:
    if not asked.against:
        return []
    base = comparison.cells.get((asked.against, cell.group))
    found = cell.against(base, asked.metric) if base and base is not cell else None
    if found is None:
        return [asked.against, *[None] * 5]
    return [asked.against, found.mean, found.low, found.high, found.pairs, found.verdict]


def runs_to_csv(comparison: Comparison, asked: Question) -> str:
    """One row per run, numbers in full."""
    own = list(dict.fromkeys(key for contender in comparison.contenders for key, _ in contender.own))
    keys, extra = [*own, *comparison.settings], _measures(comparison)
    header = [
        "run", "method", *keys, "seed", "finished", "rounds", "mean_last", "last_rounds", "last", "best",
        "best_round", "target", "rounds_to_target", "seconds", "megabytes", "preset", "changed", "commit",
        *extra,
    ]  # fmt: skip
    rows: list[list[Any]] = []
    for cell in (cell for group in comparison.groups for cell in comparison.in_group(group)):
        aim = asked.targets[cell.group]
        for outcome in cell.outcomes:
            found = outcome.summary
            rows.append([
                outcome.name, outcome.method, *(plain(outcome.settings.get(key, "")) for key in keys),
                outcome.seed, plain(outcome.finished), found.rounds, found.mean_last, outcome.tail,
                found.last, found.best, found.best_round, aim,
                outcome.rounds_to(aim), found.seconds, found.megabytes,
                outcome.settings["preset"], changed(outcome.settings), outcome.commit,
                *(outcome.measures[name] for name in extra),
            ])  # fmt: skip
    return csv_text(header, rows)
