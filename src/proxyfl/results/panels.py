"""Runs laid out: which rows and columns a table has and what stands in them, in no format yet.

Where one setting varies, methods are rows and its values columns; else every cell has a row of its own.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from proxyfl.core.errors import RunError
from proxyfl.core.records import MEASURES
from proxyfl.core.text import duration
from proxyfl.results.cells import METRICS, Spread, span
from proxyfl.results.compare import TARGET_SHARE, Cell, Comparison, Contender, Group
from proxyfl.results.layout import NONE, Column, Compared, Field, Panel, difference_panel, stacked
from proxyfl.results.settings import plain
from proxyfl.runs.run import Run


@dataclass(frozen=True)
class Question:
    """What a table is to tell: by which accuracy, rounds to which in a group, and differences from whom."""

    metric: str
    targets: Mapping[Group, float]
    baseline: Contender
    against: Contender | None = None

    @property
    def target(self) -> float | None:
        """That of all groups; None where they have different ones."""
        every = set(self.targets.values())
        return every.pop() if len(every) == 1 else None


def question(
    comparison: Comparison, metric: str = "mean-last", target: float | None = None, against: str = ""
) -> Question:
    """A question with its defaults filled in."""
    named = comparison.contender(against) if against else None
    targets = {
        group: comparison.default_target(group) if target is None else target for group in comparison.groups
    }
    return Question(metric, targets, named or comparison.baseline(targets), named)


def panels(comparison: Comparison, asked: Question) -> list[Panel]:
    """Accuracy and rounds first; then differences from the method asked for, and the gain of the best."""
    grid = len(comparison.settings) == 1
    first = [_accuracy_grid, _rounds_grid] if grid else [_listing]
    made = [make(comparison, asked) for make in first]
    made += [_differences(comparison, asked, asked.against)] if asked.against else []
    made.append(_gains(comparison, asked))
    return [panel for panel in made if panel.rows]


def speed_up(comparison: Comparison, cell: Cell, asked: Question) -> float | None:
    """How many times fewer rounds to the target than the baseline of the same group needs."""
    base = comparison.cells.get((asked.baseline, cell.group))
    aim = asked.targets[cell.group]
    ours, theirs = cell.rounds_to(aim), base.rounds_to(aim) if base else None
    return theirs / ours if ours and theirs else None


def _accuracy_grid(comparison: Comparison, asked: Question) -> Panel:
    marks = {group: comparison.ranks(group, asked.metric) for group in comparison.groups}

    def show(cell: Cell) -> Field:
        return Field(cell.spread(asked.metric).text(), marks[cell.group].get(cell.contender, 0))

    caption = [_accuracy_caption(comparison, _metric_in_words(comparison, asked.metric))]
    return _grid(
        comparison,
        "accuracy",
        _title(asked.metric),
        show,
        [*caption, *_remarks(comparison, best=asked.metric == "best")],
    )


def _rounds_grid(comparison: Comparison, asked: Question) -> Panel:
    def show(cell: Cell) -> Field:
        rounds, times = _rounds(cell, asked), speed_up(comparison, cell, asked)
        return Field(rounds if times is None else f"{rounds} ({_times(times)})")

    if asked.target is not None:
        title = f"Rounds to {_percent(asked.target)} accuracy (speed-up over {asked.baseline})"
        return _grid(comparison, "rounds", title, show, [_rounds_caption()])
    title = f"Rounds to {_percent(TARGET_SHARE)} of the best accuracy (speed-up over {asked.baseline})"
    panel = _grid(comparison, "rounds", title, show, [_rounds_caption()])
    aims = [f"to {_percent(asked.targets[group])}" for group in comparison.groups]
    heads = [Column(f"{head.heading}: {aim}") for head, aim in zip(panel.columns[1:], aims, strict=True)]
    return dataclasses.replace(panel, columns=(panel.columns[0], *heads))


def _grid(
    comparison: Comparison, name: str, title: str, show: Callable[[Cell], Field], caption: Iterable[str]
) -> Panel:
    rows = []
    for contender in comparison.contenders:
        found = (comparison.cells.get((contender, group)) for group in comparison.groups)
        rows.append((Field(str(contender)), *(show(cell) if cell else Field(NONE) for cell in found)))
    columns = [Column("method", left=True), *(Column(comparison.describe(g)) for g in comparison.groups)]
    return Panel(name, title, tuple(columns), 1, tuple(rows), tuple(caption))


def _listing(comparison: Comparison, asked: Question) -> Panel:
    """Every cell with all that is known of it, group by group."""
    metrics = list(dict.fromkeys([asked.metric, *METRICS]))
    headings = [_heading(comparison, metric) for metric in metrics]
    one = asked.target is not None
    aims = [f"rounds to {_percent(asked.target)}"] if asked.target is not None else ["target", "rounds to it"]
    columns = [*_key_columns(comparison), *map(Column, ("seeds", *headings, *aims, "speed-up"))]

    def show(cell: Cell) -> list[Field]:
        times = speed_up(comparison, cell, asked)
        accuracy = [
            Field(cell.spread(metric).text(), comparison.ranks(cell.group, metric).get(cell.contender, 0))
            for metric in metrics
        ]
        aim = [] if one else [_percent(asked.targets[cell.group])]
        end = [*aim, _rounds(cell, asked), NONE if times is None else _times(times)]
        return [Field(str(len(cell.seeds))), *accuracy, *map(Field, end)]

    caption = [
        _accuracy_caption(comparison, ""),
        _rounds_caption(),
        f"Speed-up: over {asked.baseline}.",
        *([] if one else [f"Target: {_percent(TARGET_SHARE)} of the group's best mean of last rounds."]),
        *_remarks(comparison, best=True),
    ]
    blocks = [
        [(*map(Field, _about(cell)), *show(cell)) for cell in comparison.in_group(group)]
        for group in comparison.groups
    ]
    title = _title("mean-last")
    return stacked("accuracy", title, columns, 1 + len(comparison.settings), blocks, caption)


def _differences(comparison: Comparison, asked: Question, other: Contender) -> Panel:
    blocks: list[list[Compared]] = []
    for group in comparison.groups:
        base = comparison.cells.get((other, group))
        rivals = [cell for cell in comparison.in_group(group) if base and cell.contender != other]
        blocks.append([(_about(cell), cell.against(base, asked.metric)) for cell in rivals if base])
    title, metric = f"Difference from {other} (points)", _metric_in_words(comparison, asked.metric)
    return difference_panel("differences", title, _key_columns(comparison), blocks, metric)


def _gains(comparison: Comparison, asked: Question) -> Panel:
    """The best of each group against the second best."""
    keys = [*(comparison.names[key] for key in comparison.settings), "best", "second best"]
    rows: list[Compared] = []
    for group in comparison.groups:
        gain = comparison.gain(group, asked.metric)
        if gain is not None:
            rows.append(([*map(plain, group), str(gain.best), str(gain.second)], gain.paired))
    said = (
        "Gain: over the seeds that both have. The best method was chosen on the "
        "same runs, so gains are biased upwards."
    )
    panel = difference_panel(
        "gain",
        "Best against second best (points)",
        [Column(key, left=True) for key in keys],
        [rows],
        _metric_in_words(comparison, asked.metric),
        what="gain",
    )
    return dataclasses.replace(panel, caption=(said, *panel.caption))


def _about(cell: Cell) -> list[str]:
    return [str(cell.contender), *map(plain, cell.group)]


def _key_columns(comparison: Comparison) -> list[Column]:
    return [Column("method", left=True), *(Column(comparison.names[key]) for key in comparison.settings)]


def _accuracy_caption(comparison: Comparison, metric: str) -> str:
    counts = {len(cell.seeds) for cell in comparison.cells.values()}
    spread = "one seed" if counts == {1} else f"mean ± standard deviation over {span(counts)} seeds"
    return f"{metric[0].upper()}{metric[1:]}; {spread}." if metric else f"{spread.capitalize()}."


def _remarks(comparison: Comparison, *, best: bool) -> list[str]:
    """What a reader has to know before believing the numbers."""
    lines = []
    if best:
        lines.append(_how_chosen(comparison))
    bounds = [str(each) for each in comparison.contenders if each.oracle]
    if 0 < len(bounds) < len(comparison.contenders):
        lines.append(f"Not ranked, because it uses more labels than a method may: {', '.join(bounds)}.")
    if comparison.follow:
        leading = " and ".join(comparison.names[key] for key in comparison.settings)
        lines.append(f"Settings that change along with {leading}: {', '.join(comparison.follow)}.")
    if len(comparison.seed_sets) > 1:
        lines.append("Not every cell has the same seeds: rely on paired differences rather than means.")
    if len(comparison.tails) > 1:
        low, *_, high = comparison.tails
        lines.append(f"The last rounds are {low} to {high}, depending on keep.last_rounds of each run.")
    unfinished = sum(not outcome.finished for cell in comparison.cells.values() for outcome in cell.outcomes)
    if unfinished:
        lines.append(f"{unfinished} of the runs {'is' if unfinished == 1 else 'are'} not finished.")
    return lines


def _how_chosen(comparison: Comparison) -> str:
    """On which images the best rounds were chosen, and what that does to their accuracy."""
    ways = {each.summary.chosen_on for cell in comparison.cells.values() for each in cell.outcomes}
    if ways == {"validation"}:
        return "Best round: chosen on validation images."
    some = " where runs have no validation images" if "validation" in ways else ""
    return f"Best round: chosen on the test data{some}, so its accuracy is optimistic."


def _metric_in_words(comparison: Comparison, metric: str) -> str:
    if metric in ("last", "best"):
        return f"{metric} round"
    measure = _measure(metric)
    return f"{f'{measure}, ' if measure else ''}mean of the {_tail(comparison)} rounds"


def _measure(metric: str) -> str:
    """The name of what is measured beside accuracy; empty for accuracies."""
    found = MEASURES.get(metric.replace("-", "_"))
    return found.name if found else ""


def _title(metric: str) -> str:
    measure = _measure(metric)
    return f"{measure[0].upper()}{measure[1:]} on test images (%)" if measure else "Test accuracy (%)"


def _heading(comparison: Comparison, metric: str) -> str:
    return f"mean {_tail(comparison)}" if metric == "mean-last" else _measure(metric) or metric


def _tail(comparison: Comparison) -> str:
    return f"last {comparison.tails[0]}" if len(comparison.tails) == 1 else "last"


def _rounds_caption() -> str:
    return (
        f"Rounds: median over seeds of the first round that reaches the target; {NONE}: not every seed does."
    )


def _rounds(cell: Cell, asked: Question) -> str:
    rounds = cell.rounds_to(asked.targets[cell.group])
    return NONE if rounds is None else f"{rounds:g}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio < 10 else f"{ratio:.0f}×"


def _percent(share: float) -> str:
    return f"{Spread(share).text().rstrip('0').rstrip('.')} %"


def summary_panel(runs: Mapping[str, Sequence[Run]], *, short: bool) -> Panel:
    """One row per method, in the order given: accuracies, and time and traffic of a run on average. Headings
    are ``short`` for a terminal.
    """
    found = {method: [run.summary for run in each] for method, each in runs.items()}
    if empty := [method for method, each in found.items() if not each]:
        raise RunError(f"there is no run of {empty[0]}")
    tails = {
        min(min(run.config.keep.last_rounds, run.summary.measured) for run in each) for each in runs.values()
    }
    tail = f"last {tails.pop()}" if len(tails) == 1 else "last"
    long = f"accuracy, mean of {tail} rounds (%)", "last round (%)", "best round (%)"
    shown = (f"mean {tail}", "last", "best") if short else long
    headings = ["method", *shown, "rounds", "time", "MB" if short else "sent (MB)"]
    rows = []
    for method, each in found.items():
        accuracies = [
            Spread.of([getattr(summary, name) for summary in each]).text()
            for name in ("mean_last", "last", "best")
        ]
        seconds = statistics.fmean(summary.seconds for summary in each)
        megabytes = statistics.fmean(summary.megabytes for summary in each)
        rounds = span(summary.rounds for summary in each).replace(" to ", "–")
        rows.append((method, *accuracies, rounds, duration(seconds), f"{megabytes:.1f}"))
    counts = {*map(len, runs.values())}
    caption = "Test accuracy in %, one seed; MB: megabytes sent up and down."
    if counts != {1}:
        many = f"mean ± standard deviation over {span(counts)} seeds"
        caption = f"Test accuracy in %, {many}; time and MB sent per run."
    columns = [Column(heading, left=not place) for place, heading in enumerate(headings)]
    return Panel("summary", "", tuple(columns), 1, tuple(tuple(map(Field, row)) for row in rows), (caption,))
