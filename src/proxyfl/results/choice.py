"""Which value of a setting is best for each method: chosen on validation images, reported on test images."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.results.outcome import Outcome
from proxyfl.results.settings import METHOD, distinguished_by, plain
from proxyfl.runs.short_names import COMMON


def choose(outcomes: Sequence[Outcome], keys: Iterable[str]) -> tuple[list[Outcome], list[str]]:
    """Of the runs that differ in these settings and the seed alone, those with the best values: by the mean
    accuracy over seeds and last rounds on validation images, where all of them have some. Notes say what was
    chosen; runs no longer differ in these settings.
    """
    named = list(dict.fromkeys(COMMON.get(key, key) for key in keys))
    known = dict.fromkeys(key for outcome in outcomes for key in outcome.settings)
    for key in named:
        if key not in known:
            raise ConfigError(f"no run has a setting '{key}' to choose; {nearest(key, known)}")
    rivals: dict[Hashable, dict[tuple[object, ...], list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        rest = {key: value for key, value in outcome.settings.items() if key not in named}
        values = tuple(outcome.settings.get(key) for key in named)
        rivals[distinguished_by(rest)][values].append(replace(outcome, settings=rest))
    kept: list[Outcome] = []
    notes: list[str] = []
    for variants in rivals.values():
        best, how = _best(variants)
        kept += variants[best]
        if len(variants) > 1:
            chosen = ", ".join(f"{key} = {plain(value)}" for key, value in zip(named, best, strict=True))
            notes.append(f"{variants[best][0].settings[METHOD]}: {chosen}, of {len(variants)} choices, {how}")
    return kept, notes


def _best(variants: dict[tuple[object, ...], list[Outcome]]) -> tuple[tuple[object, ...], str]:
    """The values of the best variant, and by what."""
    held = all(outcome.validation is not None for each in variants.values() for outcome in each)

    def mean(values: tuple[object, ...]) -> float:
        scores = [run.validation if held else run.summary.mean_last for run in variants[values]]
        return statistics.fmean(score for score in scores if score is not None)

    best = max(variants, key=mean)
    where = "validation images" if held else "the test data, so its accuracy is optimistic"
    return best, f"chosen on {where}"
