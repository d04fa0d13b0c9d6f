"""``proxyfl paper ls``, ``run``, ``show`` and ``export`` as a user types them."""

from __future__ import annotations

import csv
import io
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Answer
from paper_runs import micro_cases, train
from rich.console import Console
from rich.progress import Progress, TaskID

from proxyfl import Experiment, Run
from proxyfl.core.errors import RunError
from proxyfl.federation.loop import RoundReport
from proxyfl.paper import plan
from proxyfl.paper.catalogue import ITEMS, item
from proxyfl.paper.figures import draw
from proxyfl.paper.items import Column
from proxyfl.paper.plan import Case
from proxyfl.paper.questions import PROXYFL
from proxyfl.paper.results import HEADER
from proxyfl.paper.scales import scale
from proxyfl.runs.settings import identity
from written_runs import write_run

Call = Callable[..., Answer]


def test_ls_counts_runs_and_says_what_the_rest_costs(call: Call, quick: Path) -> None:
    answer = call("paper", "ls", "--scale", "micro", "--runs", quick, "--seeds", "2,")
    assert answer.exit_code == 0, answer.stderr
    lines = {line.split()[0]: line for line in answer.stdout.splitlines()}
    assert " 15     3 " in lines["table2"]
    assert lines["table2"].rstrip().endswith("from other methods")
    assert lines["fig2a"].split()[-2:] == ["1", "1"]
    assert "needs no run" in lines["table7"]
    assert "a diagram" in lines["fig3"]
    assert "109 runs, shared between items, 3 done" in lines["all:"]


def test_ls_counts_again_only_if_runs_or_exported_tables_changed(
    call: Call, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []

    def overview(*given: object) -> object:
        counted.append(given)
        return {}, ["0", str(len(counted)), "", ""], []

    monkeypatch.setattr("proxyfl.paper.cost.overview", overview)
    monkeypatch.setattr("proxyfl.core.kept.place", lambda *what: tmp_path / "kept.txt")
    runs, results = tmp_path / "runs", tmp_path / "results"

    def ls() -> int:
        answer = call("paper", "ls", "--scale", "micro", "--runs", runs, "--results", results)
        assert answer.exit_code == 0, answer.stderr
        assert f", {len(counted)} done" in answer.stdout
        return len(counted)

    assert [ls(), ls()] == [1, 1]
    shutil.copytree(next(quick.iterdir()), runs / "one")
    assert [ls(), ls()] == [2, 2]
    (runs / "one" / "metrics.jsonl").touch()
    assert [ls(), ls()] == [3, 3]
    results.mkdir()
    (results / "mini-table1.csv").write_text("")
    assert [ls(), ls()] == [4, 4]
    (runs / "nothing").symlink_to(tmp_path / "gone")
    assert [ls(), ls()] == [5, 5]


def test_ls_of_a_scale_without_runs_estimates_and_names_missing_data(call: Call, tmp_path: Path) -> None:
    answer = call("paper", "ls", "--data-root", tmp_path)
    assert answer.exit_code == 0, answer.stderr
    line = next(line for line in answer.stdout.splitlines() if line.startswith("table1"))
    assert "504" in line
    assert "estimated" in line
    for name in ("cifar10", "cifar100", "svhn", "cinic10"):
        assert f"proxyfl data fetch {name} --data-root {tmp_path}" in answer.stderr


def test_ls_shows_a_bar_while_it_counts_and_leaves_none(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, float]] = []
    update = Progress.update

    def noted(self: Progress, bar: TaskID, *, description: str, completed: float) -> None:
        seen.append((description, completed))
        update(self, bar, description=description, completed=completed)

    monkeypatch.setattr(Progress, "update", noted)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr("proxyfl.cli.progress.err", lambda: terminal)
    answer = call("paper", "ls", "--scale", "micro", "--runs", tmp_path, "--seeds", "2,")
    assert answer.exit_code == 0, answer.stderr
    with_data = [name for name, each in ITEMS.items() if each.has_data]
    assert [name for name, _ in seen] == [*with_data, "cost"]
    shares = [share for _, share in seen]
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert shares == sorted(shares)
    assert "counting runs" in terminal.file.getvalue()
    assert "counting runs" not in answer.output


def test_run_skips_what_is_done(call: Call, quick: Path) -> None:
    only = "alpha=0.1,row=GPT,row=GPT + ICPL"
    before = {path: path.stat().st_mtime_ns for path in quick.rglob("metrics.jsonl")}
    answer = call("paper", "run", "table2", "--scale", "micro", "--only", only, "--runs", quick)
    assert answer.exit_code == 0, answer.stderr
    assert "0 of 2 runs to train" in answer.stderr
    assert "proxyfl paper show table2 --scale micro --only" in answer.stdout
    assert {path: path.stat().st_mtime_ns for path in quick.rglob("metrics.jsonl")} == before


@pytest.mark.slow
def test_run_goes_on_with_what_was_stopped_half_way(call: Call, quick: Path, tmp_path: Path) -> None:
    """One run is gone and one was stopped after its first round: both come out as if nothing had been."""
    only = "alpha=0.1,row=GPT,row=GPT + ICPL"
    folder = tmp_path / "paper"
    stopped, gone = plan.jobs(micro_cases("table2", only), [1], folder)
    with pytest.raises(KeyboardInterrupt):
        Experiment(config=stopped.config).run(stopped.path, [_StopAfter(1)], workers=0)
    assert (len(Run(stopped.path).metrics), stopped.finished, gone.path.exists()) == (1, False, False)
    answer = call(
        "paper", "run", "table2", "--scale", "micro", "--only", only, "--runs", folder, "--side-by-side", 1
    )
    assert answer.exit_code == 0, answer.stderr
    assert "2 of 2 runs to train" in answer.stderr
    for job in (stopped, gone):
        whole = quick / job.path.name
        assert (job.path / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


class _StopAfter:
    """An observer that stops a run as Ctrl-C does."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round_started(self, round: int, clients: list[int]) -> None:
        if round > self.rounds:
            raise KeyboardInterrupt

    def answered(self, answer: object) -> None:
        pass

    def round_finished(self, report: RoundReport) -> None:
        pass


def test_a_dry_run_lists_and_makes_nothing(call: Call, tmp_path: Path) -> None:
    answer = call("paper", "run", "table6", "--scale", "micro", "--only", "alpha=1", "--dry-run")
    assert answer.exit_code == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) == 14
    assert lines[0].startswith("to do  fedavg · digits · alpha 1 · labels 0.2 · seed 1  ")
    assert not (tmp_path / "runs").exists()


def test_runs_on_data_that_is_not_at_hand_are_skipped(call: Call, tmp_path: Path) -> None:
    words = ["paper", "run", "table5", "--data-root", tmp_path, "--only"]
    answer = call(*words, "data=svhn")
    assert answer.exit_code == 2
    assert "svhn is not available, its runs are skipped" in answer.stderr
    assert f"proxyfl data fetch svhn --data-root {tmp_path}" in answer.stderr
    answer = call(*words, "data=svhn,data=digits", "--dry-run")
    assert answer.exit_code == 0
    assert {line.split(" · ")[1] for line in answer.stdout.splitlines()} == {"svhn", "digits"}


def test_show_prints_ours_beside_the_published(call: Call, quick: Path) -> None:
    answer = call("paper", "show", "table2", "--scale", "micro", "--runs", quick, "--seeds", 2)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("Scale micro: not comparable with the published column.")
    job = plan.jobs(micro_cases("table2", "row=GPT + ICPL,alpha=0.1"), [1, 2], quick)
    means = [100 * Run(each.path).summary.mean_last for each in job]
    line = next(line for line in answer.stdout.splitlines() if line.startswith("GPT + ICPL"))
    assert f"{sum(means) / 2:.2f} ± " in line
    assert " – " in line
    other = next(line for line in answer.stdout.splitlines() if line.startswith("FixMatch-GPL "))
    assert " −4.00 " in other
    assert " – " in line
    assert "CINIC-10 (here digits)" in answer.stdout


@pytest.mark.parametrize(
    ("suffix", "sign"), [(".md", "| GPT + ICPL |"), (".tex", r"\toprule"), (".csv", "item,")]
)
def test_show_writes_the_format_that_a_file_is_named_after(
    call: Call, quick: Path, tmp_path: Path, suffix: str, sign: str
) -> None:
    file = tmp_path / "out" / f"table{suffix}"
    answer = call("paper", "show", "table2", "--scale", "micro", "--runs", quick, "--output", file)
    assert answer.exit_code == 0, answer.stderr
    assert sign in file.read_text(encoding="utf-8")
    assert "proxyfl paper show table2 --scale micro" in file.read_text(encoding="utf-8") or suffix == ".csv"


def test_show_of_a_figure_without_runs_says_how_to_make_them(call: Call, tmp_path: Path) -> None:
    answer = call("paper", "show", "fig6", "--scale", "micro", "--runs", tmp_path)
    assert answer.exit_code == 2
    assert "proxyfl paper run fig6 --scale micro" in answer.stderr


def test_a_figure_without_rows_is_of_the_data_that_is_asked_for(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds what needs no run, but it needs the right images."""
    classes: list[str] = []

    def note(source: tuple[object, object, list[str]], path: Path, title: str) -> list[Path]:
        classes.extend([*source[2], title])
        return [path]

    monkeypatch.setattr(draw, "partition_bubbles", note)
    words = ["paper", "show", "fig5a", "--scale", "mini", "--output", tmp_path / "who"]
    answer = call(*words, "--only", "data=digits")
    assert answer.exit_code == 0, answer.stderr
    assert classes == [*map(str, range(10)), "Figure 5a: Who holds what\ndigits, α = 0.1, scale mini"]
    answer = call(*words, "--only", "data=cinic10")
    assert answer.exit_code == 2
    assert "fig5a; it has data=svhn,alpha=0.1" in answer.stderr
    assert "fig5a has no row 'ProxyFL'" in call(*words, "--only", "row=ProxyFL").stderr
    answer = call("paper", "show", "table7", "--only", "alpha=1")
    assert "table7 has no alpha '1'; none are known" in answer.stderr
    answer = call("paper", "show", "table7", "--only", "data=svhn")
    assert "selects nothing of table7; it has no parts" in answer.stderr


def test_every_data_set_that_has_runs_is_drawn_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three data sets has no run; the others do not share a picture."""
    size, folder = scale("mini"), tmp_path / "runs"
    drawn: list[tuple[str, list[str], str]] = []

    def note(picture: draw.Picture) -> list[Path]:
        runs = [run.path.name for column in picture.columns for run in picture.row("ProxyFL", column)]
        drawn.append((picture.title(), runs, picture.path.name))
        return [picture.path]

    monkeypatch.setitem(draw.DRAWN, "fig2a", note)
    columns = [Column("cifar10", 0.1), Column("svhn", 0.1), Column("digits", 0.1)]
    cases = [Case(item("fig2a"), size, PROXYFL, column) for column in columns]
    with pytest.raises(RunError, match=r"'proxyfl paper run fig2a --scale mini'"):
        draw.draw(item("fig2a"), size, cases, columns, [1], folder, tmp_path / "map")
    for case in cases[1:]:
        job = case.job(1, folder)
        write_run(job.path, "proxyfl", 1, [0.5] * job.rounds, data__name=case.column.data)
    names = [case.job(1, folder).path.name for case in cases]
    assert draw.draw(item("fig2a"), size, cases, columns, [1], folder, tmp_path / "map") == [
        tmp_path / "map-svhn", tmp_path / "map-digits",
    ]  # fmt: skip
    draw.draw(item("fig2a"), size, cases[:2], columns[:2], [1], folder, tmp_path / "map")
    head = "Figure 2a: Client proxies in round 1"
    assert drawn == [
        (f"{head}\nSVHN, α = 0.1, scale mini", [names[1]], "map-svhn"),
        (f"{head}\ndigits, α = 0.1, scale mini", [names[2]], "map-digits"),
        (f"{head}\nSVHN, α = 0.1, scale mini", [names[1]], "map"),
    ]


def test_a_command_to_type_next_has_what_this_one_was_given(call: Call, quick: Path, tmp_path: Path) -> None:
    asked = ["--scale", "micro", "--seeds", "2,", "--only", "row=GPT,alpha=0.1", "--runs", str(quick)]
    answer = call("paper", "run", "table2", *asked)
    assert answer.exit_code == 0, answer.stderr
    assert shlex.split(answer.stdout.splitlines()[-1])[1:] == ["proxyfl", "paper", "show", "table2", *asked]
    file = tmp_path / "table.tex"
    assert call("paper", "show", "table2", "--metric", "best", *asked, "--output", file).exit_code == 0
    told = shlex.split(file.read_text(encoding="utf-8").splitlines()[0])[1:]
    assert told == ["proxyfl", "paper", "show", "table2", *asked[:6], "--metric", "best", *asked[6:]]
    answer = call("paper", "export", "table2", *asked[:2], "--runs", tmp_path, "--device", "mps")
    assert f"'proxyfl paper run table2 --scale micro --runs {tmp_path} --device mps'" in answer.stderr


def test_export_has_a_row_per_run_with_its_identity(call: Call, quick: Path, tmp_path: Path) -> None:
    file = tmp_path / "results" / "micro-table2.csv"
    only = "data=svhn,alpha=0.1,row=FixMatch-GPL,row=GPT,row=GPT + ICPL"
    words = ["paper", "export", "table2", "--scale", "micro", "--runs", quick, "--only", only]
    answer = call(*words, "--seeds", "2", "--output", file)
    assert answer.exit_code == 0, answer.stderr
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    assert list(rows[0]) == HEADER
    assert [(row["row"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("FixMatch-GPL", "GPT", "GPT + ICPL") for seed in ("1", "2")
    ]
    job = plan.jobs(micro_cases("table2", "data=svhn,alpha=0.1,row=GPT"), [2], quick)[0]
    row = next(row for row in rows if (row["row"], row["seed"]) == ("GPT", "2"))
    assert row["identity"] == identity(job.config)
    assert (row["item"], row["scale"], row["column"], row["data"]) == (
        "table2",
        "micro",
        "svhn@0.1",
        "digits",
    )
    assert float(row["mean_last"]) == pytest.approx(Run(job.path).summary.mean_last, abs=1e-5)
    assert json.loads(row["settings"])["data.subset"] == 160
    assert row["commit"]


def test_seeds_on_which_protocols_are_chosen_are_never_reported(
    call: Call, quick: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "paper"
    cases = micro_cases("table2", "data=svhn,alpha=0.1,row=GPT")
    train(plan.jobs(cases, [101], folder))
    words = ["table2", "--scale", "micro", "--runs", folder, "--seeds", "101,102"]
    answer = call("paper", "export", *words)
    assert answer.exit_code == 2
    assert "are not reported" in answer.stderr
    shown = call("paper", "show", *words, "--only", "data=svhn,alpha=0.1")
    assert next(line for line in shown.stdout.splitlines() if line.startswith("GPT ")).split()[1] == "–"


def test_an_unfinished_run_is_not_shown(call: Call, quick: Path, tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    job = plan.jobs(micro_cases("table3", "row=LPL"), [1], folder)[0]
    shutil.copytree(quick / job.path.name, job.path)
    shutil.rmtree(job.path / "checkpoints" / "round-00000002")
    answer = call("paper", "export", "table3", "--scale", "micro", "--runs", folder)
    assert answer.exit_code == 2
    assert "has no finished run" in answer.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["show", "table10"], "the paper has no 'table10'"),
        (["run", "fig4"], "drawing without data"),
        (["run", "table1", "--only", "method=proxyfl,method=proxifl"], "no method 'proxifl'; did you mean"),
        (["run", "table1", "--only", "alpha=0.3"], "table1 has no alpha '0.3'; it has 0.1, 0.5, 1"),
        (["show", "table2", "--only", "row=GTP"], "table2 has no row 'GTP'; did you mean 'GPT'?"),
        (
            ["show", "table3", "--only", "data=cinic10"],
            "selects nothing of table3; it has data=svhn,alpha=0.1",
        ),
        (["export", "fig5a"], "fig5a needs no runs; 'proxyfl paper show fig5a --scale mini' shows it"),
        (["run", "table1", "--seeds", "x"], "number of seeds"),
    ],
)
def test_errors_are_one_line_and_name_the_cure(call: Call, words: list[str], hint: str) -> None:
    answer = call("paper", *words)
    assert answer.exit_code == 2
    assert hint in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_show_of_some_rows_has_those_rows_only(call: Call, quick: Path) -> None:
    only = "data=cifar10,alpha=0.1,method=fedavg,method=proxyfl"
    text = call("paper", "show", "table1", "--scale", "micro", "--only", only, "--runs", quick).stdout
    assert "FedAvg " in text
    assert "SAGE" not in text
    assert "not run yet" not in text
    assert "over the best other" not in text


def test_a_table_without_runs_says_how_to_make_them(call: Call, tmp_path: Path) -> None:
    answer = call("paper", "show", "table2", "--runs", tmp_path / "nothing", "--only", "data=svhn,alpha=0.1")
    assert answer.exit_code == 0
    assert "note: no finished run of these in" in answer.stderr
    assert "proxyfl paper run table2 --scale mini --only data=svhn,alpha=0.1 --runs" in answer.stderr


def test_rows_can_be_chosen_by_name() -> None:
    """Commas part what is chosen."""
    assert not [row.label for each in ITEMS.values() for row in each.rows if "," in row.label]
