"""Micro runs, made once in this process; hand-written results for what is arithmetic."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import Result as Answer
from paper_runs import micro_cases, train

from calling import invoke, known_place
from proxyfl.paper import catalogue, plan
from proxyfl.paper.plan import Case
from proxyfl.paper.results import Result

Call = Callable[..., Answer]
FEW = (
    ("table2", "alpha=0.1,row=FixMatch-GPL,row=GPT,row=GPT + ICPL", (1, 2, 3)),
    ("table1", "data=cifar10,alpha=0.1,row=FedAvg,row=FixMatch-LPL", (1,)),
)
"""Items, parts of them and seeds."""

MORE = (("table6", "alpha=0.1,row=ProxyFL", (1,)), ("table8", "alpha=0.5,row=LPL,row=ProxyFL", (1,)))
"""Other labels and alphas."""


@pytest.fixture(autouse=True)
def known_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known_place(monkeypatch, tmp_path)


@pytest.fixture
def call() -> Call:
    return invoke


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of :data:`FEW`. Not to be changed."""
    folder = tmp_path_factory.mktemp("paper") / "micro"
    for name, only, seeds in FEW:
        train(plan.jobs(micro_cases(name, only), seeds, folder))
    return folder


@pytest.fixture(scope="session")
def one_of_each(quick: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a run of every method in the catalogue, and :data:`MORE`. Not to be changed."""
    folder = Path(shutil.copytree(quick, tmp_path_factory.mktemp("methods") / "micro"))
    methods: dict[str, Case] = {}
    for item in catalogue.ITEMS.values():
        for case in micro_cases(item.name, "alpha=0.1") if item.rows else ():
            methods.setdefault(case.config.method.name, case)
    train(plan.jobs(methods.values(), [1], folder))
    for name, only, seeds in MORE:
        train(plan.jobs(micro_cases(name, only), seeds, folder))
    return folder


@pytest.fixture
def made() -> Callable[..., Result]:
    """A result whose accuracies are written by hand."""

    def make(row: str, column: str, seed: int, curve: Sequence[float], **more: object) -> Result:
        values: dict[str, object] = {
            "item": "table2", "scale": "mini", "row": row, "column": column, "method": "x", "data": "cifar10",
            "alpha": 0.1, "ratio": 0.1, "seed": seed, "rounds": len(curve), "last_rounds": 2,
            "curve": tuple(curve), "pseudo_accuracy": None, "excluded_visits": None, "seconds": 1.0,
            "megabytes": 2.0, "dtype": "fp32", "preset": "cifar10", "settings": "{}", "identity": "ab",
            "commit": "abc1234",
        }  # fmt: skip
        return Result(**{**values, **more})  # type: ignore[arg-type]

    return make
