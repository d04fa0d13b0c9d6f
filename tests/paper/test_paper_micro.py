"""Every table and figure made end to end at scale micro: from a run of every method, and from all runs."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Answer
from paper_runs import micro_cases, train
from PIL import Image

from proxyfl import Run
from proxyfl.paper import plan
from proxyfl.paper.catalogue import ITEMS

Call = Callable[..., Answer]
WHOLE = (
    "table1",
    "table3",
    "table4",
    "table5",
    "table9",
    "fig1b",
    "fig2a",
    "fig2b",
    "fig5b",
    "fig5c",
    "fig6",
)
"""Items whose first column has a run in every row, where there is one of every method."""

SHOWN = [name for name, item in ITEMS.items() if item.has_data and (not item.rows or micro_cases(name))]
PICTURES = {"fig7": [f"fig7-{data}" for data in ("cifar10", "cifar100", "svhn", "cinic10")]}


def show(call: Call, name: str, runs: Path, out: Path) -> str:
    """What is printed. Pictures are there in three formats, and show something."""
    words = ["paper", "show", name, "--scale", "micro", "--runs", runs]
    words += ["--output", out / name] if ITEMS[name].picture else []
    answer = call(*words)
    assert answer.exit_code == 0, answer.stderr
    if ITEMS[name].picture:
        stems = PICTURES.get(name, [name])
        files = [out / f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "csv")]
        assert sorted(out.iterdir()) == sorted(files)
        for stem in stems:
            assert_drawn(name, out / stem)
    return answer.stdout


def assert_drawn(name: str, path: Path) -> None:
    """Ink of several colours on the PNG, the figure's name in the SVG, rows without gaps in the CSV."""
    with Image.open(path.with_suffix(".png")) as picture:
        inks = picture.convert("RGB").quantize(16).getcolors()
        assert len(inks) > 4
        assert max(count for count, _ in inks) < 0.99 * picture.width * picture.height
    assert name.replace("fig", "Figure ") in path.with_suffix(".svg").read_text(encoding="utf-8")
    with path.with_suffix(".csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(rows[0])}


@pytest.mark.parametrize("name", ["table2", "fig2a"])
def test_an_item_is_made_of_few_runs(name: str, call: Call, quick: Path, tmp_path: Path) -> None:
    assert_made(name, call, quick, tmp_path / "pictures")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_an_item_is_made_of_the_runs_that_are_there(
    name: str, call: Call, one_of_each: Path, tmp_path: Path
) -> None:
    assert_made(name, call, one_of_each, tmp_path / "pictures")


def assert_made(name: str, call: Call, folder: Path, pictures: Path) -> None:
    text = show(call, name, folder, pictures)
    item = ITEMS[name]
    if not item.rows:
        return
    runs = {case.key: Run(job.path) for case in micro_cases(name) if (job := case.job(1, folder)).finished}
    assert runs
    first = {label for label, column in runs if column == item.columns[0].key}
    assert name not in WHOLE or first == {row.label for row in item.rows}
    if item.measures:
        assert "Scale micro: not comparable" in text
    if {"accuracy", "test"} & {*item.measures} and item.kind not in ("rounds", "cost"):
        shown = {line.split("  ")[0]: line for line in text.splitlines()[::-1]}  # the first of equal ones
        for row in first:
            accuracy = 100 * runs[row, item.columns[0].key].summary.mean_last
            assert f"{accuracy:.2f}" in shown[row].split()
    elif item.kind == "rounds" and name in WHOLE:
        assert " (×1.00)" in next(line for line in text.splitlines() if line.startswith("LPL "))


def test_an_item_without_runs_at_a_scale_names_those_that_have_it(call: Call, tmp_path: Path) -> None:
    absent = {name for name, item in ITEMS.items() if item.has_data} - {*SHOWN}
    assert absent == {"warm", "control", "labels", "epochs", "clients", "skew"}
    for verb in ("run", "show", "export"):
        answer = call("paper", verb, "labels", "--scale", "micro", "--runs", tmp_path)
        assert answer.exit_code != 0
        assert "choose --scale mini" in answer.stderr.replace("\n", " ")


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
