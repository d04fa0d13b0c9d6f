"""proxyfl table."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import pytest

import toybox
from proxyfl import Experiment, Run
from written_runs import write_run

TINY = {**toybox.LITTLE, "subset": 60}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Four tiny runs, really trained: two methods, two seeds. Not to be changed."""
    place = tmp_path_factory.mktemp("table")
    for method in ("fedavg", "proxyfl"):
        for seed in (1, 2):
            Experiment(method, seed=seed, method__tau=0.5, **TINY).run(place / f"{method}-{seed}", workers=0)
    return place


@pytest.fixture
def written(tmp_path) -> Path:
    """Runs of two methods at two alphas in folders of their own below ``runs``."""
    for alpha, place in ((0.1, "low"), (1.0, "high")):
        for method, level in (("fedavg", 0.5), ("proxyfl", 0.7)):
            for seed in (1, 2, 3):
                path = tmp_path / "runs" / place / f"{method}-{seed}"
                write_run(path, method, seed, [0.2, level + alpha / 10 + seed / 100], alpha=alpha)
    return tmp_path / "runs"


def lines_from(output: str, title: str) -> list[list[str]]:
    """The lines of a table below its title, split into cells, up to its caption."""
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(title))
    return [re.split(r"\s{2,}", line.strip()) for line in lines[start + 1 :]]


def test_real_runs_as_a_table(call, folder):
    result = call("table", folder)
    assert (result.exit_code, result.stderr) == (0, "")
    heading, fedavg, proxyfl, *_ = lines_from(result.stdout, "Test accuracy (%)")
    assert heading[:5] == ["method", "seeds", "mean last 2", "last", "best"]
    for row in (fedavg, proxyfl):
        one, two = (Run(folder / f"{row[0]}-{seed}").summary for seed in (1, 2))
        mean = 50 * (one.mean_last + two.mean_last)
        std = 100 * abs(one.mean_last - two.mean_last) / 2**0.5
        assert row[1:3] == ["2", f"{mean:.2f} ± {std:.2f}"]
    assert (fedavg[0], proxyfl[0]) == ("fedavg", "proxyfl")
    assert "too few seeds" in result.stdout
    alone = call("table", folder, "--columns", "mean", "--format", "latex").stdout
    for explained in ("Rounds:", "Speed-up:", "Best round:"):  # below the columns that are there, alone
        assert explained in result.stdout
        assert explained not in alone


def test_names_and_columns_as_a_paper_has_them(call, written):
    chosen = ("--names", "proxyfl=Ours,alpha=α", "--names", "fedavg=FedAvg", "--columns", "alpha=1")
    result = call("table", *chosen)
    assert result.exit_code == 2
    assert "no column is called 'alpha=1'; there are 'α = 0.1', 'α = 1'" in " ".join(result.stderr.split())
    result = call("table", "--against", "FedAvg", *chosen[:-1], "α=1")
    assert lines_from(result.stdout, "Test accuracy (%)")[:3] == [
        ["method", "α = 1"],
        ["FedAvg", "41.00 ± 0.50"],
        ["Ours", "51.00 ± 0.50"],
    ]
    assert "Difference" not in result.stdout
    renamed = call("table", "--names", "proxyfl=Ours", "--format", "latex").stdout
    assert "Ours" in renamed
    assert "--names proxyfl=Ours" in renamed.splitlines()[0]
    assert "nothing in the table is called 'sage'" in call("table", "--names", "sage=SAGE").stderr
    assert "as in sage=SAGE" in call("table", "--names", "sage").stderr
    assert "every column" in call("table", "--columns", "α", "--format", "csv").stderr


def test_runs_are_found_two_levels_below_the_runs_folder(call, written):
    result = call("table")
    assert result.exit_code == 0
    rows = lines_from(result.stdout, "Test accuracy (%)")
    assert rows[0] == ["method", "alpha = 0.1", "alpha = 1"]
    assert rows[1][0] == "fedavg"
    assert "over 3 seeds" in result.stdout
    assert "alpha" not in call("table", "runs/low").stdout


def test_deeper_runs_and_runs_inside_runs_are_not_looked_for(call, written):
    shutil.move(written / "low", written / "a" / "b" / "low")
    shutil.copytree(written / "high" / "fedavg-1", written / "high" / "fedavg-1" / "copy")
    assert "alpha" not in call("table").stdout
    assert call("table", "runs/a/b").exit_code == 0
    result = call("table", "runs/a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: no runs in runs/a,")


def test_single_runs_by_path_and_by_name(call, written):
    result = call("table", written / "low" / "fedavg-1", "low/proxyfl-1")
    assert result.exit_code == 0
    assert [row[0] for row in lines_from(result.stdout, "Test accuracy")[1:3]] == ["fedavg", "proxyfl"]
    result = call("table", "low/proxyfl-7")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'runs/low/proxyfl-" in result.stderr


def test_a_run_below_a_folder_that_is_named_too_counts_once(call, written):
    result = call("table", "runs/low", "low/proxyfl-1", "--format", "csv")
    assert [row["seeds"] for row in csv.DictReader(result.stdout.splitlines())] == ["3", "3"]


def test_against_metric_and_target(call, written):
    result = call("table", "--against", "fedavg", "--metric", "last", "--target", "0.7")
    rows = lines_from(result.stdout, "Difference from fedavg (points)")
    assert rows[1] == ["proxyfl", "0.1", "+20.00", "+20.00 to +20.00", "3", "better, few seeds"]
    assert "Rounds to 70 % accuracy (speed-up over fedavg)" in result.stdout
    result = call("table", "--against", "fedavgg")
    assert result.exit_code == 2
    assert "did you mean 'fedavg'?" in result.stderr
    assert call("table", "--target", "80").exit_code == 2
    assert call("table", "--metric", "worst").exit_code == 2


def test_where(call, written):
    result = call("table", "--where", "partition.alpha=0.1", "--where", "method=proxyfl", "--format", "csv")
    (row,) = csv.DictReader(result.stdout.splitlines())
    assert (row["method"], row["seeds"]) == ("proxyfl", "3")
    assert "partition.alpha" not in row
    result = call("table", "--where", "alpha=3")
    assert "partition.alpha = 3; in these it is 0.1, 1" in result.stderr
    assert call("table", "--where", "alpha").exit_code == 2


def test_formats_and_files(call, written):
    assert call("table", "--format", "markdown").stdout.startswith(
        "<!-- proxyfl table -->\n\n**Test accuracy"
    )
    asked = ("table", "runs", "--metric", "best", "--where", "seed=1", "--where", "seed=2")
    result = call(*asked, "--output", "new/table.tex")
    assert (result.exit_code, result.stdout.split()) == (0, ["table", "new/table.tex"])
    first = Path("new/table.tex").read_text().splitlines()[0]
    assert first == "% proxyfl table runs --metric best --where seed=1 --where seed=2"
    assert call("table", "--output", "table.md").exit_code == 0
    assert Path("table.md").read_text() == call("table", "--format", "markdown").stdout
    assert call("table", "--output", "table.csv").exit_code == 0
    assert Path("table.csv").read_text() == call("table", "--format", "csv").stdout
    assert call("table", "--output", "table.txt").exit_code == 0
    lines = Path("table.txt").read_text().splitlines()
    assert lines[0] == "Test accuracy (%)"
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)


def test_a_row_per_run(call, written):
    result = call("table", "--format", "csv", "--each")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 12
    assert (rows[0]["run"], rows[0]["seed"], rows[0]["last"]) == ("runs/low/fedavg-1", "1", "0.52")
    result = call("table", "--each")
    assert result.exit_code == 2
    assert "--format csv" in result.stderr  # fmt: skip


def test_unfinished_runs_are_told_of(call, written):
    write_run(written / "low" / "late", "fedavg", 4, [0.5], missing=1)
    result = call("table", "runs/low", "--format", "csv")
    assert "runs/low/late, 1 of 2 rounds" in result.stderr
    assert next(csv.DictReader(result.stdout.splitlines()))["which_seeds"] == "1 2 3"
    result = call("table", "runs/low", "--format", "csv", "--partial")
    assert next(csv.DictReader(result.stdout.splitlines()))["which_seeds"] == "1 2 3 4"


def test_twins_and_nothing_at_all_are_errors(call, written):
    shutil.copytree(written / "low" / "fedavg-1", written / "again")
    result = call("table", "--format", "csv")
    assert "counted once" in result.stderr
    assert "runs/again and runs/low/fedavg-1" in result.stderr
    assert [row["seeds"] for row in csv.DictReader(result.stdout.splitlines())] == ["3"] * 4
    shutil.rmtree(written / "again")
    write_run(written / "low" / "again", "fedavg", 1, [0.2, 0.9], alpha=0.1)
    result = call("table")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "runs/low/again and runs/low/fedavg-1 have" in result.stderr
    shutil.rmtree(written)
    result = call("table")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no runs in runs" in result.stderr
