"""Comparisons as they are printed: terminal, Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import json
import re
from itertools import product

import pytest
from rich.console import Console

from proxyfl.core.trees import nested
from proxyfl.results.compare import compare
from proxyfl.results.exports import cells_to_csv, runs_to_csv
from proxyfl.results.formats import to_latex, to_markdown, to_rich
from proxyfl.results.layout import Column, Field, Panel
from proxyfl.results.panels import panels, question
from proxyfl.results.settings import settings_of
from proxyfl.runs.settings import resolve
from written_runs import write_run

LEVELS = {"fedavg": 0.50, "fixmatch-gpl": 0.60, "proxyfl": 0.70}
WOBBLE = {1: 0.0, 2: 0.02, 3: 0.01}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Three methods, two alphas, three seeds; at alpha 1 all are 10 points better, ProxyFL only 0.5."""
    folder = tmp_path_factory.mktemp("grid")
    runs = []
    for (method, level), alpha, (seed, more) in product(LEVELS.items(), (0.1, 1.0), WOBBLE.items()):
        end = level + more + ((0.005 if method == "proxyfl" else 0.1) if alpha == 1 else 0.0)
        run = write_run(folder / f"{method}-{alpha}-{seed}", method, seed, [0.3, end - 0.1, end], alpha=alpha)
        runs.append(run)
    return compare(runs, partial=False)


@pytest.fixture(scope="module")
def plain_runs(tmp_path_factory):
    """Three methods, no setting that varies."""
    folder = tmp_path_factory.mktemp("plain")
    return compare(
        write_run(folder / f"{method}-{seed}", method, seed, [0.3, level - more])
        for (method, level), (seed, more) in product(LEVELS.items(), WOBBLE.items())
    )


def printed(made, width=80):
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(to_rich(made, width))
    return [line.rstrip() for line in capture.get().splitlines()]


def cells_of(line):
    return re.split(r"\s{2,}", line.strip())


def test_one_varying_setting_gives_columns(grid):
    lines = printed(panels(grid, question(grid, "last")))
    assert lines[0] == "Test accuracy (%)"
    assert [cells_of(line) for line in lines[1:5]] == [
        ["method", "alpha = 0.1", "alpha = 1"],
        ["fedavg", "51.00 ± 1.00", "61.00 ± 1.00"],
        ["fixmatch-gpl", "61.00 ± 1.00", "71.00 ± 1.00"],
        ["proxyfl", "71.00 ± 1.00", "71.50 ± 1.00"],
    ]
    assert "Last round; mean ± standard deviation over 3 seeds." in lines
    assert max(map(len, lines)) <= 80


def test_rounds_with_speed_ups_beside_them(grid):
    lines = printed(panels(grid, question(grid, target=0.59, against="fedavg")))
    start = lines.index("Rounds to 59 % accuracy (speed-up over fedavg)")
    assert [cells_of(line) for line in lines[start + 2 : start + 5]] == [
        ["fedavg", "–", "3 (1.0×)"],
        ["fixmatch-gpl", "3", "2 (1.5×)"],
        ["proxyfl", "2", "2 (1.5×)"],
    ]


def test_groups_have_targets_of_their_own(tmp_path):
    """What is much at one alpha is little at another."""
    curves = {"fedavg": [0.0, 0.1, 0.2], "fixmatch-gpl": [0.2, 0.3, 0.4], "proxyfl": [0.3, 0.4, 0.4]}
    found = compare(
        write_run(tmp_path / f"{method}-{alpha}", method, 1, [alpha + value for value in curve], alpha=alpha)
        for (method, curve), alpha in product(curves.items(), (0.1, 0.5))
    )
    asked = question(found, "last")
    lines = printed(panels(found, asked))
    start = lines.index("Rounds to 90 % of the best accuracy (speed-up over fixmatch-gpl)")
    assert [cells_of(line) for line in lines[start + 1 : start + 5]] == [
        ["method", "alpha = 0.1: to 42 %", "alpha = 0.5: to 78 %"],
        ["fedavg", "–", "–"],
        ["fixmatch-gpl", "3 (1.0×)", "2 (1.0×)"],
        ["proxyfl", "2 (1.5×)", "1 (2.0×)"],
    ]
    for text in (cells_to_csv(found, asked), runs_to_csv(found, asked)):
        told = {(row["partition.alpha"], row["target"]) for row in csv.DictReader(text.splitlines())}
        assert told == {("0.1", "0.42"), ("0.5", "0.78")}


def test_differences_from_a_method(grid):
    asked = question(grid, "last", against="fedavg")
    lines = printed(panels(grid, asked))
    start = lines.index("Difference from fedavg (points)")
    assert cells_of(lines[start + 2]) == [
        "fixmatch-gpl", "0.1", "+10.00", "+10.00 to +10.00", "3", "better, few seeds",
    ]  # fmt: skip
    assert lines[start + 4] == ""
    assert cells_of(lines[start + 6])[:3] == ["proxyfl", "1", "+10.50"]
    assert any("25 % of cases" in line for line in lines)


def test_the_best_against_the_second_best(grid):
    *_, last = panels(grid, question(grid, "last"))
    assert [[field.text for field in row] for row in last.rows] == [
        ["0.1", "proxyfl", "fixmatch-gpl", "+10.00", "+10.00 to +10.00", "3", "better, few seeds"],
        ["1", "proxyfl", "fixmatch-gpl", "+0.50", "+0.50 to +0.50", "3", "better, few seeds"],
    ]
    assert "biased upwards" in last.caption[0]


def test_negative_differences_have_a_minus_sign(grid):
    lines = printed(panels(grid, question(grid, "last", against="proxyfl")))
    assert any("−20.00" in line and "worse, few seeds" in line for line in lines)


def test_without_a_varying_setting_a_row_has_everything(plain_runs):
    lines = printed(panels(plain_runs, question(plain_runs, target=0.5, against="fedavg")))
    assert max(map(len, lines)) <= 80
    assert cells_of(lines[4]) == [
        "fixmatch-gpl", "3", "44.50 ± 0.50", "59.00 ± 1.00", "59.00 ± 1.00", "2", "–",
    ]  # fmt: skip
    assert any("Best round: chosen on the test data" in line for line in lines)


def test_the_metric_asked_for_comes_first(plain_runs):
    first, *_ = panels(plain_runs, question(plain_runs, "best"))
    assert [column.heading for column in first.columns][1:5] == ["seeds", "best", "mean last 2", "last"]


def test_only_the_best_metric_is_said_to_be_chosen_on_test_data(grid):
    for metric, told in (("best", True), ("last", False), ("mean-last", False)):
        first, *_ = panels(grid, question(grid, metric))
        assert any("chosen on the test data" in line for line in first.caption) is told


def test_two_varying_settings_give_a_row_each_with_groups_apart(tmp_path):
    runs = [
        write_run(tmp_path / f"{m}{a}{r}", m, 1, [0.5 + a * r], alpha=a, label_ratio=r)
        for m, a, r in product(("fedavg", "proxyfl"), (0.1, 1.0), (0.1, 0.2))
    ]
    found = compare(runs)
    first, *_ = panels(found, question(found))
    assert first.keys == 3
    assert [field.text for field in first.rows[2]][:4] == ["fedavg", "0.1", "1", "1"]
    assert first.breaks == {2, 4, 6}
    assert [column.heading for column in first.columns][-3:] == ["target", "rounds to it", "speed-up"]
    assert [row[-3].text for row in first.rows][::2] == ["46 %", "54 %", "47 %", "63 %"]
    assert any("Target: 90 %" in line for line in first.caption)
    lines = printed([first])
    assert max(map(len, lines)) <= 80
    assert lines.count("") == 3
    assert "One seed." in lines


def test_a_table_that_is_too_wide_goes_on_below():
    columns = (Column("method", left=True), *(Column(f"alpha = {k}") for k in range(9)))
    rows = ((Field("fedavg"), *(Field(f"{k}0.00 ± 1.00") for k in range(9))),)
    lines = printed([Panel("wide", "Wide", columns, 1, rows, ())])
    assert max(map(len, lines)) <= 80
    found = [cells_of(line) for line in lines if line.startswith("fedavg")]
    assert [number for _, *numbers in found for number in numbers] == [f"{k}0.00 ± 1.00" for k in range(9)]
    assert len(found) == 2
    assert len(printed([Panel("wide", "Wide", columns, 1, rows, ())], 200)) == 3


def test_the_terminal_shows_best_and_second_by_style(grid):
    console = Console(width=80, highlight=False, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(to_rich(panels(grid, question(grid, "last")), 80))
    assert "\x1b[1m71.50 ± 1.00" in capture.get()
    assert "\x1b[4m71.00 ± 1.00" in capture.get()


def test_markdown(grid):
    text = to_markdown(panels(grid, question(grid, "last", against="fedavg")), "proxyfl table runs")
    lines = text.splitlines()
    assert lines[:9] == [
        "<!-- proxyfl table runs -->",
        "",
        "**Test accuracy (%)**",
        "",
        "| method | alpha = 0.1 | alpha = 1 |",
        "| --- | ---: | ---: |",
        "| fedavg | 51.00 ± 1.00 | 61.00 ± 1.00 |",
        "| fixmatch-gpl | *61.00 ± 1.00* | *71.00 ± 1.00* |",
        "| proxyfl | **71.00 ± 1.00** | **71.50 ± 1.00** |",
    ]
    assert text.count("25 % of cases") == 1


def test_markdown_signs_are_taken_literally():
    odd = Panel("odd", "Odd", (Column("a|b", left=True),), 1, ((Field("x_y*z|`"),),), ("c_d",))
    assert to_markdown([odd]).splitlines()[2:] == [r"| a\|b |", "| --- |", r"| x\_y\*z\|\` |", "", r"c\_d"]


def test_latex(grid):
    text = to_latex(panels(grid, question(grid, "last", against="fedavg")), "proxyfl table runs")
    assert text.startswith("% proxyfl table runs\n% needs \\usepackage{booktabs}\n\\begin{table}[t]\n")
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index(r"\toprule")
    assert lines[start : start + 7] == [
        r"\toprule",
        r"method & alpha = 0.1 & alpha = 1 \\",
        r"\midrule",
        r"fedavg & 51.00 $\pm$ 1.00 & 61.00 $\pm$ 1.00 \\",
        r"fixmatch-gpl & \underline{61.00 $\pm$ 1.00} & \underline{71.00 $\pm$ 1.00} \\",
        r"proxyfl & \textbf{71.00 $\pm$ 1.00} & \textbf{71.50 $\pm$ 1.00} \\",
        r"\bottomrule",
    ]
    assert_sound_latex(text)


def assert_sound_latex(text):
    """Environments and braces close, dollars come in pairs, rows have as many cells as columns."""
    bare = re.sub(r"(?m)^%.*$", "", text)
    assert bare.isascii()
    assert len(re.findall(r"(?<!\\)\$", bare)) % 2 == 0
    depth = 0
    for sign in re.findall(r"(?<!\\)[{}]", bare):
        depth += 1 if sign == "{" else -1
        assert depth >= 0
    assert depth == 0
    assert re.findall(r"\\begin\{(\w+)\}", bare).count("tabular") == bare.count(r"\end{tabular}")
    assert not re.search(r"(?<!\\)[%#]|\\(?![a-zA-Z%_&#${}])", bare.replace("\\\\\n", "\n"))
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", bare, re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(columns)}


def test_latex_signs_are_taken_literally():
    odd = r"a_b & c% $d# {e} ~^\ f+g <h> [i] |j| −1 × – ±"
    panel = Panel("odd", odd, (Column(odd, left=True),), 1, ((Field(odd, rank=1),),), (odd,))
    text = to_latex([panel])
    assert_sound_latex(text)
    assert r"\textbf{a\_b \& c\% \$d\# \{e\} \textasciitilde{}\textasciicircum{}\textbackslash{} f+g " in text
    assert r"$<$h$>$ {[}i{]} $|$j$|$ $-$1 $\times$ -- $\pm$}" in text


def test_csv_has_a_row_per_cell_in_full_precision(grid):
    rows = list(csv.DictReader(cells_to_csv(grid, question(grid, "last", 0.59, "fedavg")).splitlines()))
    assert len(rows) == 6
    row = next(row for row in rows if (row["method"], row["partition.alpha"]) == ("proxyfl", "1"))
    cell = grid.cells[grid.contender("proxyfl"), (1.0,)]
    assert float(row["last_mean"]) == cell.spread("last").mean
    assert float(row["last_std"]) == cell.spread("last").std
    assert (row["seeds"], row["which_seeds"], row["rank"]) == ("3", "1 2 3", "1")
    assert (row["target"], row["rounds_to_target"], row["baseline"], row["speed_up"]) == (
        "0.59", "2", "fedavg", "1.5",
    )  # fmt: skip
    assert float(row["gain"]) == pytest.approx(0.005)
    assert float(row["difference"]) == pytest.approx(0.105)
    assert (row["against"], row["metric"], row["pairs"]) == ("fedavg", "last", "3")
    assert rows[0]["difference"] == rows[0]["gain"] == ""


def test_csv_with_a_row_per_run(grid):
    rows = list(csv.DictReader(runs_to_csv(grid, question(grid, target=0.6)).splitlines()))
    assert len(rows) == 18
    assert rows[0]["run"].endswith("fedavg-0.1-1")
    assert [rows[0][key] for key in ("method", "partition.alpha", "seed", "finished", "rounds")] == [
        "fedavg", "0.1", "1", "true", "3",
    ]  # fmt: skip
    assert float(rows[0]["last"]) == 0.5
    assert (rows[0]["rounds_to_target"], rows[0]["best_round"], rows[0]["last_rounds"]) == ("", "3", "3")
    assert (float(rows[0]["seconds"]), float(rows[0]["megabytes"])) == (6.0, 3.0)
    assert rows[0]["preset"] == "digits"
    again = resolve(rows[0]["preset"], nested({"method.name": "fedavg", **json.loads(rows[0]["changed"])}))
    assert settings_of(again) == next(iter(grid.cells.values())).outcomes[0].settings


def test_what_a_reader_has_to_know_is_said(tmp_path):
    runs = [
        write_run(tmp_path / "a", "fedavg", 1, [0.5] * 4, keep__last_rounds=2, fidelity="code"),
        write_run(tmp_path / "b", "fedavg", 1, [0.5] * 4, keep__last_rounds=3),
        write_run(tmp_path / "c", "fedavg", 2, [0.5] * 3, missing=1, keep__last_rounds=3),
    ]
    found = compare(runs, partial=True)
    first, *_ = panels(found, question(found))
    said = "\n".join(first.caption)
    assert "standard deviation over 1 to 2 seeds." in said
    assert "along with fidelity: data.flip, data.norm," in said
    assert "Not every cell has the same seeds" in said
    assert "The last rounds are 2 to 3" in said
    assert "1 of the runs is not finished." in said


def test_methods_without_a_common_seed_are_not_compared(tmp_path):
    found = compare(
        [write_run(tmp_path / "a", "fedavg", 1, [0.5]), write_run(tmp_path / "b", "proxyfl", 2, [0.7])]
    )
    *_, differences, gain = panels(found, question(found, against="fedavg"))
    assert [field.text for field in differences.rows[0]] == ["proxyfl", "–", "–", "0", "no common seed"]
    assert [field.text for field in gain.rows[0]][2:] == ["–", "–", "0", "no common seed"]


def test_one_method_alone_has_nothing_to_be_compared_with(tmp_path):
    found = compare([write_run(tmp_path / "a", "fedavg", 1, [0.5])])
    assert [panel.name for panel in panels(found, question(found, against="fedavg"))] == ["accuracy"]
