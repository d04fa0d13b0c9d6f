"""Search for good settings: trials that Optuna chooses, judged by accuracy on validation images.

Each trial is an ordinary run below the search's folder, so that whatever stops a search, it goes on with the
same trial from its last checkpoint. Trials that fall behind are given up after some rounds (pruned).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, RunError, missing_extra, nearest
from proxyfl.core.trees import dotted, parse_assignment
from proxyfl.engines.choose import EngineFactory
from proxyfl.federation.loop import Observer, RoundReport
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.experiment import Experiment, resume
from proxyfl.runs.run import Run
from proxyfl.runs.settings import default_name, identity, meanings

JOURNAL = "journal.jsonl"
"""Optuna's own record of the search, in the search's folder."""

STARTUP = 5
"""Trials that are always trained to their end: the others are compared with them."""

FEWEST = 10
"""Finished trials from which the importance of settings is estimated."""

LOG_FROM = 10.0
"""A range whose ends differ by this factor is searched on a logarithmic scale."""


@dataclass(frozen=True)
class Space:
    """The values of one setting among which to search: a range, or some ``values``."""

    name: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    values: tuple[Any, ...] = ()

    @property
    def log(self) -> bool:
        return not self.values and self.low > 0 and self.high / self.low >= LOG_FROM

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that have to be admissible: all of them, or both ends of the range."""
        ends = (int(self.low), int(self.high)) if self.whole else (self.low, self.high)
        return self.values or ends

    def suggest(self, trial: Any) -> Any:
        if self.values:
            return trial.suggest_categorical(self.name, list(self.values))
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    def __str__(self) -> str:
        if self.values:
            return f"{self.name}={','.join(map(str, self.values))}"
        return f"{self.name}={self.low:g}..{self.high:g}"


def read_space(text: str, config: Config) -> Space:
    """``train.lr=0.01..0.3``, ``train.batch=16,32`` or ``method.tau``, whose range is then the setting's."""
    name, _, wanted = text.partition("=")
    known = dotted(config.to_tree())
    if name not in known:
        raise ConfigError(f"unknown setting '{name}'; {nearest(name, known)}")
    whole, numeric = type(known[name]) is int, type(known[name]) in (int, float)
    if ".." in wanted:
        if not numeric:
            raise ConfigError(f"{name} is not a number; list its values, as in --search {name}=A,B")
        low, _, high = wanted.partition("..")
        try:
            ends = float(low), float(high)
        except ValueError:
            raise ConfigError(
                f"'{wanted}' is not a range; write it as in --search {name}=0.01..0.3"
            ) from None
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
            raise ConfigError(f"'{wanted}' is not a range: it must begin below its end")
        if whole and not (ends[0].is_integer() and ends[1].is_integer()):
            raise ConfigError(f"{name} is a whole number; write its range as in --search {name}=1..5")
        return Space(name, *ends, whole=whole)
    if wanted:
        found = [parse_assignment(f"x={word.strip()}")["x"] for word in wanted.split(",")]
        return Space(name, values=tuple(found))
    return _declared(name, config, whole)


def _declared(name: str, config: Config, whole: bool) -> Space:
    """The whole range that a setting has by its declaration."""
    if isinstance(dotted(config.to_tree())[name], bool):
        return Space(name, values=(False, True))
    span = meanings(config.method.name)[name][1]
    if " | " in span:
        return Space(name, values=tuple(span.split(" | ")))
    low, _, high = span.partition(", ")
    if not (low.startswith("≥ ") and high.startswith("≤ ")):
        raise ConfigError(f"{name} has no bounds of its own; give some, as in --search {name}=0.01..0.3")
    return Space(name, float(low[2:]), float(high[2:]), whole=whole)


@dataclass(frozen=True)
class Trial:
    """One trial: ``score`` is None where it was stopped early or failed, with the ``fault`` in words."""

    number: int
    settings: dict[str, Any]
    score: float | None
    run: str
    fault: str = ""


class Search:
    """A search in a folder. ``make`` gives the config for some settings by dotted name."""

    def __init__(
        self, folder: Path, spaces: Sequence[Space], make: Callable[[dict[str, Any]], Config], seed: int = 1
    ) -> None:
        if not spaces:
            raise ConfigError("nothing to search for; name settings, as in --search train.lr=0.01..0.3")
        base = make({})
        if not base.data.validation:
            raise ConfigError(
                "a search is judged on validation images; hold some out: --set data.validation=0.1"
            )
        for space in spaces:  # what no trial could be trained with is refused before the first
            for value in space.ends:
                make({space.name: value})
        self.folder, self.spaces, self.make, self.seed = folder, spaces, make, seed
        self.study = self._study(base)

    def _study(self, base: Config) -> Any:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(self.folder / JOURNAL))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="tune",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=base.federation.rounds // 4),
        )
        said = {"experiment": identity(base), "search": "; ".join(map(str, self.spaces)), "seed": self.seed}
        if study.user_attrs and study.user_attrs != said:
            raise RunError(
                f"{self.folder} holds another search ({study.user_attrs.get('search')}); give this one a "
                "--name of its own"
            )
        for key, value in said.items():
            study.set_user_attr(key, value)
        return study

    def run(
        self,
        trials: int,
        *,
        data_root: Path | None = None,
        workers: int | None = None,
        engine: EngineFactory | None = None,
        progress: bool = False,
        tell: Callable[[Trial], None] = lambda trial: None,
    ) -> Trial:
        """Go on until there are so many trials; gives the best. One that fails counts, without a score.

        A trial's clients train on all cores, or on another ``engine``, such as ``RayEngine()``.
        """
        optuna = _optuna()

        def train(trial: Any) -> float:
            return self._train(trial, data_root, workers=workers, engine=engine, progress=progress)

        for lost in self.study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            self.study.tell(lost.number, state=optuna.trial.TrialState.FAIL)
            self.study.enqueue_trial(lost.params)
        while len(self._counted()) < trials:
            # A sampler of its own for each trial: one that goes on later draws what it would have drawn.
            self.study.sampler = optuna.samplers.TPESampler(seed=self.seed + len(self._counted()))
            self.study.optimize(train, n_trials=1)
            tell(self.trials()[-1])
        return self.best()

    def _counted(self) -> list[Any]:
        states = _optuna().trial.TrialState
        return list(self.study.get_trials(states=(states.COMPLETE, states.PRUNED)))

    def _train(self, trial: Any, data_root: Path | None, **where: Any) -> float:
        config = self.make({space.name: space.suggest(trial) for space in self.spaces})
        path = self.folder / default_name(config)
        trial.set_user_attr("run", path.name)
        judge = _Judge(trial, config.federation.rounds)
        try:
            if RunDirectory(path).is_rest or RunDirectory(path).aside.exists():
                judge.catch_up(path)
                return score(resume(path, [judge], data_root, **where))
            return score(Experiment(config=config, data_root=data_root).run(path, [judge], **where))
        except RunError as error:  # as where weights are no longer finite: the search goes on elsewhere
            trial.set_user_attr("fault", str(error))
            raise _optuna().TrialPruned from error

    def trials(self) -> list[Trial]:
        """All that counted, in their order."""
        return [
            Trial(
                at,
                dict(each.params),
                each.value if each.state.name == "COMPLETE" else None,
                str(each.user_attrs.get("run", "")),
                str(each.user_attrs.get("fault", "")),
            )
            for at, each in enumerate(self._counted(), 1)
        ]

    def best(self) -> Trial:
        finished = [trial for trial in self.trials() if trial.score is not None]
        if not finished:
            raise RunError(f"no trial in {self.folder} is finished")
        return max(finished, key=lambda trial: (trial.score or 0.0, -trial.number))

    def importances(self) -> dict[str, float]:
        """How much each setting mattered, as shares; empty where there are too few trials to say."""
        if len(self.spaces) < 2 or sum(trial.score is not None for trial in self.trials()) < FEWEST:
            return {}
        importance = _optuna().importance
        found = importance.get_param_importances(
            self.study, evaluator=importance.PedAnovaImportanceEvaluator()
        )
        return {name: float(share) for name, share in found.items()}


def score(run: Run) -> float:
    """Accuracy on validation images, mean of the last rounds."""
    found = [line["validation"]["accuracy"] for line in run.metrics if "validation" in line]
    tail = found[-run.config.keep.last_rounds :]
    return float(sum(tail) / len(tail))


class _Judge(Observer):
    """Follows a run and gives it up where the trials before it were better at the same round."""

    def __init__(self, trial: Any, rounds: int) -> None:
        self.trial, self.rounds = trial, rounds

    def catch_up(self, path: Path) -> None:
        """Tell what an earlier attempt at this trial reached."""
        if RunDirectory(path).is_rest:
            for line in Run(path).lines:
                if "validation" in line:
                    self.trial.report(line["validation"]["accuracy"], line["round"])

    def round_finished(self, report: RoundReport) -> None:
        if report.validation is None:
            return
        self.trial.report(report.validation, report.number)
        if report.number < self.rounds and self.trial.should_prune():
            raise _optuna().TrialPruned


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise missing_extra("optuna", "tune") from None
    return optuna
