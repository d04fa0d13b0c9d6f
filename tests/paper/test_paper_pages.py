"""The generated parts of the page about the paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paper_pages import BLOCK, _options, draw_pictures, items, refreshed, scales
from proxyfl.paper.catalogue import item
from proxyfl.paper.items import Column
from proxyfl.paper.results import Result, to_csv
from proxyfl.paper.scales import scale

DOCS = Path(__file__).parents[2] / "docs"


def block(text: str) -> str:
    return f"before\n\n<!-- {text} -->\nold\n<!-- /{text.split()[0]} -->\n\nafter\n"


def test_results_come_from_the_file_of_scale_and_item(made: Callable[..., Result], tmp_path: Path) -> None:
    results = {
        ("GPT", "svhn@0.1"): [made("GPT", "svhn@0.1", seed, [value]) for seed, value in ((1, 0.5), (2, 0.7))]
    }
    (tmp_path / "mini-table2.csv").write_text(to_csv(results), encoding="utf-8")
    text = refreshed(block("measured table2 mini"), tmp_path)
    assert text.startswith("before\n\n<!-- measured table2 mini -->\n")
    assert text.endswith("\n<!-- /measured -->\n\nafter\n")
    assert "| GPT | 60.00 ± 14.14 | – | −0.80 |" in text
    assert "Scale mini: not comparable with the published column." in text
    assert "CIFAR" not in text
    assert refreshed(text, tmp_path) == text
    part = "--only data=svhn,alpha=0.1,row=GPT --seeds 1,2"
    assert f"<!-- proxyfl paper run table2 --scale mini {part} -->" in text


def test_a_block_may_be_of_one_data_set(made: Callable[..., Result], tmp_path: Path) -> None:
    accuracies = {"svhn@0.1": {2: 0.5, 3: 0.7}, "digits@0.1": {1: 0.9}}
    results = {
        ("GPT", column): [made("GPT", column, seed, [value]) for seed, value in each.items()]
        for column, each in accuracies.items()
    }
    (tmp_path / "mini-table2.csv").write_text(to_csv(results), encoding="utf-8")
    both, one, other = (
        refreshed(block(f"measured table2 mini{data}"), tmp_path) for data in ("", " svhn", " digits")
    )
    assert "60.00 ± 14.14" in one
    assert "--seeds 2,3 -->" in one
    assert "90.00" in other
    assert "digits" not in one
    assert "SVHN" not in other
    assert "60.00 ± 14.14" in both
    assert "90.00" in both
    drawn = refreshed(block("ranking table2 mini svhn"), tmp_path)
    assert "mini-table2-svhn-0.1-ranking.png" in drawn
    assert "digits" not in drawn


def test_the_command_of_a_whole_item_has_no_part(made: Callable[..., Result], tmp_path: Path) -> None:
    rows = [row.label for row in item("fig2a").rows]
    results = {
        (row, "cifar10@0.1"): [made(row, "cifar10@0.1", seed, [0.5]) for seed in (1, 2, 3)] for row in rows
    }
    columns = [Column("cifar10", 0.1)]
    assert _options(item("fig2a"), scale("mini"), results, columns) == []
    results["ProxyFL", "cifar10@0.1"] = [made("ProxyFL", "cifar10@0.1", 7, [0.5])]
    assert _options(item("fig2a"), scale("mini"), results, columns) == ["--seeds", "7,"]
    assert _options(item("table3"), scale("mini"), results, [Column("digits", 0.1)])[:2] == [
        "--only", "data=digits,row=ProxyFL",
    ]  # fmt: skip


def test_without_a_file_it_is_not_measured_yet(tmp_path: Path) -> None:
    text = refreshed(block("measured table1 mini"), tmp_path)
    assert "not measured yet; `proxyfl paper run table1 --scale mini`." in text
    assert "old" not in text


def test_items_and_scales_are_tables_of_what_the_code_has(tmp_path: Path) -> None:
    assert "| `table1` | Test accuracy with 10 % labels |" in items()
    assert "| `fig3` | Overview of ProxyFL | a diagram | drawing |" in items()
    shown = scales()
    assert "| mini | SVHN | svhn | 10,000 | 16 | 1 | 32 + 64 | 2 | 8 of 20 | 40 | 5 rounds |" in shown
    assert (
        "| full | CINIC-10 | cinic10 | all | native | 4 | 128 + 256 | 5 | 8 of 20 | 400 | 10 rounds |"
        in shown
    )
    assert "| mini | CINIC-10 (untried) |" in shown
    assert refreshed(block("items"), tmp_path).count("\n| `fig") == 12


def test_the_pages_have_every_part() -> None:
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("paper*.md")]
    parts = [found[1] + (found[2] or "") for page in pages for found in BLOCK.finditer(page)]
    shown = [f"measured {name} mini digits" for name in ("table1", "table2", "table9", "cost")]
    shown += [f"measured {name} mini svhn" for name in ("table1", "table2")]
    shown += ["measured comparison mini", "curves comparison mini", "ranking table1 mini digits"]
    assert {*parts} >= {"items", "scales", *shown}


def test_what_an_accuracy_costs_is_made_of_the_runs_of_table_1(
    made: Callable[..., Result], tmp_path: Path
) -> None:
    curves = {"FedAvg": [0.1, 0.2, 0.3, 0.4], "ProxyFL": [0.3, 0.6, 0.6, 0.6]}
    results = {
        (row, "svhn@0.1"): [
            made(row, "svhn@0.1", seed, curve, method=row.lower(), cpu_seconds=480.0, megabytes=8.0)
            for seed in (1, 2)
        ]
        for row, curve in curves.items()
    }
    (tmp_path / "mini-table1.csv").write_text(to_csv(results), encoding="utf-8")
    text = refreshed(block("measured cost mini"), tmp_path)
    assert "to 52 %, SVHN" in text
    assert "| FedAvg | – | – | – |" in text
    assert "| ProxyFL | 2 | 4.0 | 4.0 |" in text, "two of four rounds, 2 minutes and 2 MB each"


def test_a_question_is_drawn_along_its_axis(made: Callable[..., Result], tmp_path: Path) -> None:
    rows = [row for row in item("labels").rows if row.at in (1, 10)]
    results = {
        (row.label, "digits@0.1"): [
            made(row.label, "digits@0.1", seed, [0.05 * (row.at or 0)], method=row.method) for seed in (1, 2)
        ]
        for row in rows
    }
    (tmp_path / "mini-labels.csv").write_text(to_csv(results), encoding="utf-8")
    text = refreshed(block("along labels mini"), tmp_path)
    assert "](images/mini-labels-digits-0.1-along.png)" in text
    drawing = draw_pictures(text, tmp_path, tmp_path / "images")[1].read_text()
    assert "labelled images per class" in drawing
    assert all(f"<!-- {row.method} -->" in drawing for row in rows)


def test_pictures_are_drawn_of_every_column_that_has_results(
    made: Callable[..., Result], tmp_path: Path
) -> None:
    rows = {"FedAvg": 0.3, "FedAvg-SL": 0.6, "ProxyFL": 0.5}
    results = {
        (row, "svhn@0.1"): [made(row, "svhn@0.1", seed, [0.2, value], method=row.lower()) for seed in (1, 2)]
        for row, value in rows.items()
    }
    (tmp_path / "mini-table1.csv").write_text(to_csv(results), encoding="utf-8")
    text = refreshed(block("ranking table1 mini") + block("curves table1 mini"), tmp_path)
    for kind in ("ranking", "curves"):
        assert f"](images/mini-table1-svhn-0.1-{kind}.png)" in text
    assert text.count("![") == 2
    files = draw_pictures(text, tmp_path, tmp_path / "images")
    assert {file.name for file in files} == {
        f"mini-table1-svhn-0.1-{kind}.{ending}" for kind in ("ranking", "curves") for ending in ("png", "svg")
    }
    assert all(file.stat().st_size > 5000 for file in files)


def test_without_results_there_is_no_picture(tmp_path: Path) -> None:
    text = refreshed(block("ranking table1 mini"), tmp_path)
    assert "No picture yet." in text
    assert draw_pictures(text, tmp_path, tmp_path / "images") == []


def test_rows_are_compared_on_the_seeds_that_all_have(made: Callable[..., Result], tmp_path: Path) -> None:
    values = {"FedAvg": {1: 0.2, 2: 0.9, 3: 0.4}, "ProxyFL": {1: 0.5, 3: 0.7}}
    results = {
        (row, "svhn@0.1"): [made(row, "svhn@0.1", seed, [value]) for seed, value in seeds.items()]
        for row, seeds in values.items()
    }
    (tmp_path / "mini-comparison.csv").write_text(to_csv(results), encoding="utf-8")
    text = refreshed(block("reached comparison mini"), tmp_path)
    assert "SVHN, Dirichlet 0.1, 2 seeds; mean accuracy of the last " in text
    assert ": ProxyFL 60.0, FedAvg 30.0 %." in text
    assert "Not measured yet." in refreshed(block("reached comparison mini"), tmp_path / "nowhere")
    assert "(docs/images/" in refreshed(block("curves comparison mini"), tmp_path, "docs/images")
