"""Every table and figure made end to end at scale micro: in short from a few runs, and from all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Answer
from paper_runs import micro_cases, train

from proxyfl.paper import plan
from proxyfl.paper.catalogue import ITEMS

Call = Callable[..., Answer]
SHOWN = [name for name, item in ITEMS.items() if item.has_data]
PICTURES = {"fig7": [f"fig7-{data}" for data in ("cifar10", "cifar100", "svhn", "cinic10")]}


def show(call: Call, name: str, runs: Path, out: Path) -> str:
    """What is printed. Pictures are there in three formats, and not empty."""
    words = ["paper", "show", name, "--scale", "micro", "--runs", runs]
    words += ["--out", out / name] if ITEMS[name].picture else []
    answer = call(*words)
    assert answer.exit_code == 0, answer.stderr
    if ITEMS[name].picture:
        stems = PICTURES.get(name, [name])
        files = [out / f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "csv")]
        assert sorted(out.iterdir()) == sorted(files)
        assert all(file.stat().st_size > 60 for file in files)
    return answer.stdout


@pytest.mark.parametrize("name", SHOWN)
def test_an_item_is_made_of_the_runs_that_are_there(
    name: str, call: Call, quick: Path, tmp_path: Path
) -> None:
    text = show(call, name, quick, tmp_path / "pictures")
    if ITEMS[name].rows and ITEMS[name].measures:
        assert "Scale micro: not comparable" in text
        assert "not run yet" in text


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of scale micro."""
    folder = tmp_path_factory.mktemp("paper") / "all"
    train(plan.jobs([case for name in SHOWN for case in micro_cases(name)], [1], folder))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SHOWN)
def test_an_item_is_complete(name: str, call: Call, every: Path, tmp_path: Path) -> None:
    text = show(call, name, every, tmp_path / "pictures")
    assert "not run yet" not in text
    if ITEMS[name].rows:
        answer = call("paper", "export", name, "--scale", "micro", "--runs", every)
        assert len(answer.stdout.splitlines()) == 1 + len(micro_cases(name))
