"""Tables from results that are written by hand: means, differences, gains, rounds, formats."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from proxyfl.core.errors import ConfigError
from proxyfl.paper.catalogue import item
from proxyfl.paper.items import Column
from proxyfl.paper.results import Result, from_csv, to_csv
from proxyfl.paper.rounds import targets
from proxyfl.paper.scales import scale
from proxyfl.paper.tables import tables
from proxyfl.results import formats
from proxyfl.results.cells import median_rounds
from proxyfl.results.formats import to_markdown
from proxyfl.results.layout import Panel

Make = Callable[..., Result]
C10 = Column("cifar10", 0.1)
WARNING = "Scale mini: not comparable with the published column."


def texts(panel: Panel, row: str) -> list[str]:
    return next([field.text for field in line] for line in panel.rows if line[0].text == row)


@pytest.fixture
def ablation(made: Make) -> dict[tuple[str, str], list[Result]]:
    """Two rows of table 2: 85.00 ± 1.41 and 90.00 %; the mean is over the last two rounds."""
    return {
        ("FixMatch-GPL", "cifar10@0.1"): [
            made("FixMatch-GPL", "cifar10@0.1", 1, [0.1, 0.84, 0.84]),
            made("FixMatch-GPL", "cifar10@0.1", 2, [0.1, 0.85, 0.87]),
        ],
        ("GPT + ICPL", "cifar10@0.1"): [made("GPT + ICPL", "cifar10@0.1", 1, [0.2, 0.92, 0.88])],
    }


def test_ours_stands_beside_the_published_number_with_the_difference(ablation: dict) -> None:  # type: ignore[type-arg]
    panel = tables(item("table2"), scale("full"), ablation, [C10])[0]
    assert [column.heading for column in panel.columns] == ["method", "α=0.1: ours", "paper", "diff."]
    assert texts(panel, "FixMatch-GPL") == ["FixMatch-GPL", "85.00 ± 1.41", "84.56", "+0.44"]
    assert texts(panel, "GPT + ICPL") == ["GPT + ICPL", "90.00", "88.56", "+1.44"]
    assert texts(panel, "GPT") == ["GPT", "–", "87.59", "–"]
    assert texts(panel, "FixMatch-GPL with ProxyFL's mask")[1:] == ["–", "–", "–"]


def test_reduced_scales_compare_gaps_and_not_accuracies(ablation: dict) -> None:  # type: ignore[type-arg]
    panel = tables(item("table2"), scale("mini"), ablation, [C10])[0]
    assert [column.heading for column in panel.columns] == ["method", "α=0.1: ours", "gap", "paper's gap"]
    assert texts(panel, "FixMatch-GPL") == ["FixMatch-GPL", "85.00 ± 1.41", "−6.00", "−4.00"], "on seed 1"
    assert texts(panel, "GPT + ICPL") == ["GPT + ICPL", "90.00", "–", "–"]
    assert texts(panel, "GPT") == ["GPT", "–", "–", "−0.97"]
    assert texts(panel, "FixMatch-GPL with ProxyFL's mask")[1:] == ["–", "–", "–"]
    assert any("from GPT + ICPL in points" in line for line in panel.caption)
    assert [line[1].rank for line in panel.rows] == [2, 0, 0, 0, 1]
    assert WARNING in panel.caption
    assert "mean of the last 2 rounds. The paper" in panel.caption[0]
    assert "Mean ± standard deviation over 1 to 2 seeds." in panel.caption
    assert "–: not run yet (3 cells)." in panel.caption


def test_a_data_set_that_the_paper_lacks_has_gaps_of_ours_alone(made: Make) -> None:
    results = {
        ("ProxyFL", "digits@0.1"): [made("ProxyFL", "digits@0.1", 1, [0.9])],
        ("SAGE", "digits@0.1"): [made("SAGE", "digits@0.1", 1, [0.8])],
    }
    panel = tables(item("table1"), scale("mini"), results, [Column("digits", 0.1)])[0]
    assert texts(panel, "SAGE") == ["SAGE", "80.00", "−10.00", "–"]


def test_another_accuracy_can_be_shown(ablation: dict) -> None:  # type: ignore[type-arg]
    best = tables(item("table2"), scale("mini"), ablation, [C10], "best")[0]
    assert texts(best, "GPT + ICPL")[1] == "92.00"
    assert "chosen on the test data" in best.caption[0]
    last = tables(item("table2"), scale("mini"), ablation, [C10], "last")[0]
    assert texts(last, "GPT + ICPL")[1] == "88.00"


def test_full_scale_has_no_warning(ablation: dict) -> None:  # type: ignore[type-arg]
    panel = tables(item("table2"), scale("full"), ablation, [C10])[0]
    assert not [line for line in panel.caption if "not comparable" in line]


def test_an_untried_protocol_is_marked(ablation: dict) -> None:  # type: ignore[type-arg]
    panel = tables(item("table2"), scale("mini"), ablation, [Column("cinic10", 0.1)])[0]
    assert "Untried protocol: CINIC-10." in panel.caption


def test_the_gain_is_over_the_best_method_and_not_over_the_bound(made: Make) -> None:
    accuracies = dict.fromkeys((row.label for row in item("table1").rows), 0.6)
    accuracies |= {"FedAvg-SL": 0.95, "SAGE": 0.8, "FedDB": 0.7, "ProxyFL": 0.77}
    results = {
        (row, "cifar10@0.1"): [made(row, "cifar10@0.1", 1, [value])] for row, value in accuracies.items()
    }
    panel = tables(item("table1"), scale("full"), results, [C10])[0]
    lead = "ProxyFL over the best other method"
    assert texts(panel, lead)[1:] == ["−3.00", "+1.51", "−4.51"]
    reduced = tables(item("table1"), scale("mini"), results, [C10])[0]
    assert texts(reduced, lead)[1:] == ["–", "−3.00", "+1.51"]
    without = {key: cell for key, cell in results.items() if key[0] != "FedMatch"}
    assert texts(tables(item("table1"), scale("full"), without, [C10])[0], lead)[1:] == ["–", "+1.51", "–"]
    ranks = {line[0].text: line[1].rank for line in panel.rows}
    assert (ranks["FedAvg-SL"], ranks["SAGE"], ranks["ProxyFL"]) == (0, 1, 2)
    told = "FedAvg-SL: uses every label, so it is not ranked."
    assert told in panel.caption
    assert told not in tables(item("table2"), scale("mini"), results, [C10])[0].caption


def test_the_gain_is_one_over_seeds_that_both_rows_have(made: Make) -> None:
    """On its one seed the best method is 2 points behind; its mean alone would hide that."""
    results = {
        (row.label, "svhn@0.1"): [made(row.label, "svhn@0.1", seed, [0.6]) for seed in (1, 2)]
        for row in item("table1").rows
    }
    results["FedDB", "svhn@0.1"] = [made("FedDB", "svhn@0.1", 2, [0.83])]
    results["ProxyFL", "svhn@0.1"] = [
        made("ProxyFL", "svhn@0.1", *cell) for cell in ((1, [0.75]), (2, [0.85]))
    ]
    panel = tables(item("table1"), scale("mini"), results, [Column("svhn", 0.1)])[0]
    assert texts(panel, "ProxyFL over the best other method")[2] == "+2.00"
    assert texts(panel, "FedDB")[2] == "−2.00"
    del results["FedDB", "svhn@0.1"][0]
    panel = tables(item("table1"), scale("mini"), results, [Column("svhn", 0.1)])[0]
    assert texts(panel, "ProxyFL over the best other method")[2] == "–"


def test_data_sets_are_columns_where_alpha_does_not_vary(made: Make) -> None:
    result = made("SAGE", "svhn@0.1", 1, [0.5, 0.5])
    columns = [Column("cifar10", 0.1), Column("svhn", 0.1)]
    panels = tables(item("table9"), scale("mini"), {("SAGE", "svhn@0.1"): [result]}, columns)
    assert len(panels) == 1
    assert [column.heading for column in panels[0].columns][1::3] == ["CIFAR-10: ours", "SVHN: ours"]
    assert texts(panels[0], "SAGE") == ["SAGE", "–", "–", "+4.07", "50.00", "–", "+4.17"]


def test_a_data_set_has_a_table_of_its_own_where_alpha_varies() -> None:
    every = item("table1").columns
    panels = tables(item("table1"), scale("full"), {}, every)
    assert [panel.title.rpartition(", ")[2] for panel in panels] == [
        "CIFAR-10", "CIFAR-100", "SVHN", "CINIC-10",
    ]  # fmt: skip
    assert texts(panels[1], "SAGE")[2::3] == ["54.18", "55.82", "56.06"]


def test_measures_other_than_accuracy(made: Make) -> None:
    result = made("ProxyFL", "cifar10@1", 1, [0.5], pseudo_accuracy=0.25, excluded_visits=1234.0)
    one = Column("cifar10", 1.0)
    test, pseudo = tables(item("fig1b"), scale("mini"), {("ProxyFL", "cifar10@1"): [result]}, [one])
    assert texts(test, "ProxyFL")[1:] == ["50.00", "87.80", "−37.80"]
    assert texts(pseudo, "ProxyFL")[1:] == ["25.00", "89.90", "−64.90"]
    left_out = made("w/o low-confidence", "cifar10@1", 1, [0.5], excluded_visits=1234.0)
    key = ("w/o low-confidence", "cifar10@1")
    panel = tables(item("fig2b"), scale("mini"), {key: [left_out]}, [one])[0]
    assert texts(panel, key[0])[1:] == ["1234", "21800", "−20566"]


def test_rounds_to_an_accuracy_at_full_scale(made: Make) -> None:
    key = "cifar100@0.1"
    results = {
        ("LPL", key): [made("LPL", key, seed, [0.1, 0.2, 0.3, 0.45]) for seed in (1, 2)],
        ("SAGE", key): [
            made("SAGE", key, 1, [0.3, 0.4, 0.4, 0.4]), made("SAGE", key, 2, [0.1, 0.2, 0.35, 0.41]),
        ],
        ("ProxyFL", key): [made("ProxyFL", key, 1, [0.31, 0.52, 0.6, 0.6])],
    }  # fmt: skip
    panel = tables(item("table3"), scale("full"), results, [Column("cifar100", 0.1)])[0]
    assert texts(panel, "LPL") == [
        "LPL", "3 (×1.00)", "119 (×1.00)", "−116", "4 (×1.00)", "242 (×1.00)", "−238",
        "–", "562 (×1.00)", "–",
    ]  # fmt: skip
    assert texts(panel, "SAGE")[1::3] == ["2 (×1.50)", "3 (×1.33)", "–"]
    assert texts(panel, "ProxyFL")[1::3] == ["1 (×3.00)", "2 (×2.00)", "2"]
    assert texts(panel, "FedDB")[1:] == ["–", "103 (×1.16)", "–", "–", "206 (×1.17)", "–", "–", "–", "–"]
    assert [column.heading for column in panel.columns][1:4] == ["ours, to 30 %", "paper, to 30 %", "diff."]
    assert "Median over 1 to 2 seeds." in panel.caption
    assert not [line for line in panel.caption if "standard deviation" in line]
    assert "not every seed does" in panel.caption[0]


def test_rounds_are_numbers_in_a_csv(made: Make) -> None:
    key = "cifar100@0.1"
    results = {("LPL", key): [made("LPL", key, 1, [0.1, 0.3])], ("SAGE", key): [made("SAGE", key, 1, [0.3])]}
    panels = tables(item("table3"), scale("full"), results, [Column("cifar100", 0.1)])
    rows = list(csv.DictReader(formats.to_csv(panels, item="table3", scale="full").splitlines()))
    found = {row["column"]: row["value"] for row in rows if row["row"] == "SAGE"}
    assert [*found.items()][:5] == [
        ("ours, to 30 %", "1"), ("ours, to 30 %: speed-up", "2.00"), ("paper, to 30 %", "60"),
        ("paper, to 30 %: speed-up", "1.98"), ("ours, to 30 %: diff.", "-59"),
    ]  # fmt: skip
    assert all(not row["value"] or float(row["value"]) < 1000 for row in rows)


def test_targets_of_other_scales_are_shares_of_the_best(made: Make) -> None:
    key = "cifar100@0.1"
    results = {("LPL", key): [made("LPL", key, 1, [0.1, 0.2, 0.2])],
               ("SAGE", key): [made("SAGE", key, 1, [0.9, 0.3, 0.5])]}  # fmt: skip
    rows, column = item("table3").rows, Column("cifar100", 0.1)
    assert targets(scale("mini"), results, rows, column) == [0.21, 0.28, 0.35]
    assert targets(scale("mini"), {}, rows, column) == []
    assert targets(scale("full"), {}, rows, column) == [0.3, 0.4, 0.5]
    panel = tables(item("table3"), scale("mini"), results, [column])[0]
    assert [each.heading for each in panel.columns][1::3] == [
        "ours, to 21 %",
        "ours, to 28 %",
        "ours, to 35 %",
    ]
    assert "52, 70, 87 % of the best" in " ".join(panel.caption)
    assert texts(tables(item("table3"), scale("mini"), {}, [column])[0], "SAGE")[2] == "60 (×1.98)"


def test_rounds_are_a_median_that_every_seed_must_reach(made: Make) -> None:
    curves = ([0.1, 0.5], [0.5, 0.5], [0.1, 0.5])
    results = [made("x", "y", seed, curve) for seed, curve in enumerate(curves)]
    assert median_rounds(results, 0.5) == 2
    assert median_rounds([*results, made("x", "y", 9, [0.1, 0.1])], 0.5) is None
    assert median_rounds([], 0.5) is None


def test_traffic_is_counted() -> None:
    panel = tables(item("table7"), scale("micro"), {}, [])[0]
    assert texts(panel, "FixMatch")[2:] == ["20.01", "22.08", "−2.07"]
    assert texts(panel, "ProxyFL")[2:] == ["22.11", "22.08", "+0.03"]
    assert len(panel.rows) == 8
    assert ",ProxyFL,paper,22.08," in formats.to_csv([panel], item="table7", scale="micro")


def test_differences_have_colours_in_a_terminal(ablation: dict, made: Make) -> None:  # type: ignore[type-arg]
    ablation["ICPL", "cifar10@0.1"] = [made("ICPL", "cifar10@0.1", 1, [0.92, 0.92])]
    panels = tables(item("table2"), scale("mini"), ablation, [C10])
    console = Console(width=100, force_terminal=True, color_system="standard", highlight=False, record=True)
    with console.capture() as shown:
        console.print(formats.to_rich(panels, 100, WARNING))
    lines = shown.get().splitlines()
    assert lines[0] == f"\x1b[1;33m{WARNING}\x1b[0m"
    assert "\x1b[32m+2.00\x1b[0m" in next(line for line in lines if "ICPL  " in line)
    assert "\x1b[31m−6.00\x1b[0m" in next(line for line in lines if line.startswith("FixMatch-GPL  "))


def test_a_table_that_is_too_wide_goes_on_below() -> None:
    panels = tables(item("table2"), scale("full"), {}, item("table2").columns[:3])
    wide, narrow = (Console(width=width, record=True, color_system=None) for width in (110, 60))
    for console in (wide, narrow):
        with console.capture() as shown:
            console.print(formats.to_rich(panels, console.width))
        lines = shown.get().splitlines()
        assert max(map(len, lines)) <= console.width
        assert sum(line.startswith("GPT + ICPL") for line in lines) == (1 if console is wide else 3)


def test_formats_carry_the_numbers_and_the_warning(ablation: dict) -> None:  # type: ignore[type-arg]
    panels = tables(item("table2"), scale("mini"), ablation, [C10])
    markdown = to_markdown(panels, "proxyfl paper show table2")
    assert "| FixMatch-GPL | *85.00 ± 1.41* | −6.00 | −4.00 |" in markdown
    assert WARNING in markdown
    latex = formats.to_latex(panels, "proxyfl paper show table2")
    assert r"GPT + ICPL & \textbf{90.00} & -- & -- \\" in latex
    assert r"$\alpha$=0.1: ours" in latex
    assert "α" not in latex
    assert WARNING in latex
    assert WARNING in formats.to_plain(panels, 100, WARNING).splitlines()[0]
    lines = formats.to_csv(panels, item="table2", scale="mini").splitlines()
    title = '"Table 2: What GPT and ICPL contribute (%), CIFAR-10"'
    assert lines[1] == f"table2,mini,{title},FixMatch-GPL,α=0.1: ours,85.00,1.41"
    assert f"table2,mini,{title},FixMatch-GPL,α=0.1: gap,-6.00," in lines
    assert f"table2,mini,{title},GPT,α=0.1: ours,," in lines


def test_results_come_back_from_a_csv(made: Make, tmp_path: Path) -> None:
    result = made(
        "GPT", "svhn@0.1", 3, [0.25, 0.5, 0.75], pseudo_accuracy=0.125, settings='{"a": 1, "b": "c"}'
    )
    plain = made("ICPL", "svhn@0.1", 3, [0.5])
    results = {("GPT", "svhn@0.1"): [result], ("ICPL", "svhn@0.1"): [plain]}
    file = tmp_path / "results.csv"
    file.write_text(to_csv(results), encoding="utf-8")
    assert from_csv(file) == results
    row = file.read_text(encoding="utf-8").splitlines()[1]
    assert row.endswith(",0.625,0.75,0.75,0.25 0.5 0.75")
    assert ",abc1234," in row


def test_a_csv_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("method,seed\nsage,1\n")
    with pytest.raises(ConfigError, match="proxyfl paper export"):
        from_csv(tmp_path / "other.csv")
