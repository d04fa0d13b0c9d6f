"""Rows against the reference row, paired by seed: from results written by hand, and as the verbs tell it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import Result as Answer

from paper_pages import measured
from proxyfl.paper.catalogue import ITEMS, item
from proxyfl.paper.differences import differences
from proxyfl.paper.items import Column
from proxyfl.paper.questions import SAME_MASK
from proxyfl.paper.results import Result
from proxyfl.paper.scales import scale
from proxyfl.results.cells import difference
from proxyfl.results.layout import Panel

Call = Callable[..., Answer]
Values = Mapping[tuple[str, str], Sequence[float]]
Cells = Callable[[Values], dict[tuple[str, str], list[Result]]]
C10, SVHN = Column("cifar10", 0.1), Column("svhn", 0.1)
ABLATION = {
    (SAME_MASK, "cifar10@0.1"): [0.80, 0.82, 0.84],
    ("GPT", "cifar10@0.1"): [0.83, 0.83, 0.90],
    ("ICPL", "cifar10@0.1"): [0.79, 0.83, 0.84],
    ("GPT + ICPL", "cifar10@0.1"): [0.85],
}


@pytest.fixture
def cells(made: Callable[..., Result]) -> Cells:
    """Results of one round each, seeds from 1."""

    def make(values: Values) -> dict[tuple[str, str], list[Result]]:
        return {
            (row, column): [
                made(row, column, seed, [each], last_rounds=1) for seed, each in enumerate(many, 1)
            ]
            for (row, column), many in values.items()
        }

    return make


def lines(panel: Panel) -> list[list[str]]:
    return [[field.text for field in row] for row in panel.rows]


def test_each_row_is_held_against_the_reference_seed_by_seed(cells: Cells) -> None:
    (panel,) = differences(item("table2"), scale("mini"), cells(ABLATION), [C10])
    assert panel.title == f"Table 2: difference from {SAME_MASK} (points), CIFAR-10"
    # One of 27 resamples of three pairs is all the smallest: 3.7 %, more than the tail of 2.5 %.
    assert lines(panel) == [
        ["GPT", "+3.33", "+1.00 to +6.00", "3", "better, few seeds"],
        ["ICPL", "+0.00", "−1.00 to +1.00", "3", "noise"],
        ["GPT + ICPL", "+5.00", "–", "1", "too few seeds"],
    ]
    assert panel.caption[0].startswith("Mean of the last 1 rounds, paired by seed")
    assert "25 % of cases" in panel.caption[1]


def test_data_sets_are_told_apart_where_there_are_several(cells: Cells) -> None:
    more = {(SAME_MASK, "svhn@0.1"): [0.5, 0.5, 0.5], ("GPT", "svhn@0.1"): [0.4, 0.3, 0.2]}
    (panel,) = differences(item("table2"), scale("mini"), cells(ABLATION | more), [C10, SVHN])
    assert [column.heading for column in panel.columns][:3] == ["method", "data", "difference"]
    assert lines(panel)[-1] == ["GPT", "SVHN", "−20.00", "−30.00 to −10.00", "3", "worse, few seeds"]
    assert panel.breaks == {3}
    assert panel.title.endswith("(points), α = 0.1")


def test_two_seeds_make_no_table(cells: Cells) -> None:
    few = {key: values[:2] for key, values in ABLATION.items()}
    assert differences(item("table2"), scale("mini"), cells(few), [C10]) == []
    assert differences(item("table2"), scale("mini"), {}, [C10]) == []


def test_another_accuracy_is_compared_when_asked(made: Callable[..., Result]) -> None:
    results = {
        (row, "cifar10@0.1"): [made(row, "cifar10@0.1", seed, [best, 0.1, 0.1]) for seed in (1, 2, 3)]
        for row, best in ((SAME_MASK, 0.5), ("GPT", 0.6))
    }
    (panel,) = differences(item("table2"), scale("mini"), results, [C10], "best")
    assert lines(panel)[0][1] == "+10.00"
    assert "chosen on the test data" in panel.caption[0].lower()


def test_every_reference_has_a_table(cells: Cells) -> None:
    both = {("GPT + ICPL", "cifar10@0.1"): [0.84, 0.84, 0.84]}
    first, second = differences(item("table2"), scale("mini"), cells(ABLATION | both), [C10])
    assert lines(first)[-1][:2] == ["GPT + ICPL", "+2.00"]
    assert second.title.startswith("Table 2: difference from GPT + ICPL")
    assert lines(second)[0] == [SAME_MASK, "−2.00", "−4.00 to +0.00", "3", "noise"]
    assert [first.name, second.name] == ["table2-differences-1", "table2-differences-2"]


def test_gains_over_one_row_are_paired_too(cells: Cells) -> None:
    values = {("SAGE", "svhn@0.1"): [0.5, 0.6, 0.7], ("SAGE + ProxyFL", "svhn@0.1"): [0.52, 0.61, 0.73]}
    (panel,) = differences(item("table9"), scale("mini"), cells(values), [SVHN])
    assert panel.title == "Table 9: gains (points), SVHN"
    assert lines(panel) == [["gain over SAGE", "+2.00", "+1.00 to +3.00", "3", "better, few seeds"]]


def test_references_are_rows_of_their_items() -> None:
    named = {each.name: each.references for each in ITEMS.values() if each.references}
    assert named == {
        "comparison": ("ProxyFL",), "control": ("ProxyFL",), "table1": ("ProxyFL",),
        "table2": (SAME_MASK, "GPT + ICPL"), "table4": ("ICPL-P",), "table5": ("ICPL-P",),
        "table6": ("ProxyFL",),
    }  # fmt: skip
    for name, references in named.items():
        assert {*references} <= {row.label for row in ITEMS[name].rows}


def test_pages_show_it_below_the_table(cells: Cells) -> None:
    text = measured(item("table2"), scale("mini"), cells(ABLATION))
    assert "| GPT | +3.33 | +1.00 to +6.00 | 3 | better, few seeds |" in text


def test_show_prints_it_and_csv_keeps_to_numbers(quick: Path, call: Call) -> None:
    only = ["--scale", "micro", "--only", "data=cifar10,alpha=0.1", "--seeds", "3", "--runs", quick]
    shown = call("paper", "show", "table2", *only)
    assert "difference from GPT + ICPL (points)" in shown.stdout
    assert "verdict" in shown.stdout
    numbers = call("paper", "show", "table2", *only, "--format", "csv")
    assert "verdict" not in numbers.stdout
    assert "FixMatch-GPL" in numbers.stdout


def test_runs_of_different_precision_are_not_paired(made: Callable[..., Result]) -> None:
    def cell(value: float, dtypes: str) -> list[Result]:
        words = {"b": "bf16", "f": "fp32"}
        rows = enumerate(dtypes, 1)
        return [made("x", "svhn@0.1", seed, [value + seed / 100], dtype=words[kind]) for seed, kind in rows]

    found = difference(cell(0.6, "bbffff"), cell(0.5, "ffffff"), "mean-last")
    assert found is not None
    assert found.pairs == 4
