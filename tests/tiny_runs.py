"""Fixtures with tiny real runs, made once, for every picture and table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import toybox
from proxyfl import Experiment, Run
from written_runs import without_seals

TINY = {**toybox.LITTLE, "subset": 150}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """FedAvg with two seeds and ProxyFL with one."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = {"fedavg": (1, 2), "proxyfl": (1,)}
    return {
        method: [Experiment(method, seed=seed, **TINY).run(folder / f"{method}-{seed}") for seed in seeds]
        for method, seeds in wanted.items()
    }


@pytest.fixture
def rewritten(runs: dict[str, list[Run]], tmp_path: Path) -> Callable[..., Run]:
    """A copy of a real run with other numbers in its records."""

    def rewrite(name: str, accuracies: Sequence[float], seconds: float = 1.0, mb: float = 1.0) -> Run:
        path = tmp_path / name
        without_seals(Path(shutil.copytree(runs["fedavg"][0].path, path)))
        line = runs["fedavg"][0].metrics[0]
        line["traffic"] |= {"bytes_up": int(mb * 4e5), "bytes_down": int(mb * 6e5)}
        metrics = [line | {"round": k, "accuracy": value} for k, value in enumerate(accuracies, 1)]
        timing = [{"round": k, "train": seconds - 0.25, "serve": 0.25} for k in range(1, len(metrics) + 1)]
        for file, lines in (("metrics.jsonl", metrics), ("timing.jsonl", timing)):
            (path / file).write_text("".join(json.dumps(each) + "\n" for each in lines))
        return Run(path)

    return rewrite
