"""Many runs as data frames: rows, columns, types, and what is left out."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import proxyfl
from proxyfl import Run
from proxyfl.core.errors import ProxyFLError, RunError
from written_runs import write_run

pytest.importorskip("pandas")

ABOUT = ["run", "method", "data", "alpha", "label_ratio", "fidelity", "seed"]
END = ["clients", "failed", "megabytes_up", "megabytes_down", "seconds", "cpu_seconds"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """FedAvg with two seeds and numbers of epochs, ProxyFL unfinished; a level deeper, as sweeps do."""
    write_run(tmp_path / "grid" / "a", "fedavg", 1, [0.5, 0.75])
    write_run(tmp_path / "grid" / "b", "fedavg", 2, [0.5, 0.7], train__epochs=3)
    write_run(tmp_path / "grid" / "c", "proxyfl", 1, [0.25, 0.375, 0.625], missing=2)
    return tmp_path


def test_one_row_per_run(folder: Path) -> None:
    frame = proxyfl.results(folder).runs
    assert list(frame["run"]) == [str(folder / "grid" / name) for name in "abc"]
    assert list(frame["method"]) == ["fedavg", "fedavg", "proxyfl"]
    assert list(frame["seed"]) == [1, 2, 1]
    assert list(frame["finished"]) == [True, True, False]
    assert list(frame["mean_last"]) == pytest.approx([0.625, 0.6, 1.25 / 3])
    assert list(frame["best_round"]) == [2, 2, 3]
    assert list(frame["seconds"]) == [4, 4, 6]
    assert list(frame["megabytes"]) == pytest.approx([2, 2, 3])
    assert frame["train.epochs"].nunique() == 2, "a setting that varies has a column"
    assert "train.batch" not in frame, "one that does not has none"


def test_one_row_per_run_and_round(folder: Path) -> None:
    frame = proxyfl.results(folder).rounds
    assert len(frame) == 7
    assert list(frame.loc[frame["method"] == "proxyfl", "accuracy"]) == [0.25, 0.375, 0.625]
    assert list(frame["round"]) == [1, 2, 1, 2, 1, 2, 3]
    assert set(frame["megabytes_up"]) == {0.4}
    assert frame.groupby("method")["accuracy"].max().to_dict() == {"fedavg": 0.75, "proxyfl": 0.625}


def test_a_real_run_has_its_losses_and_pseudo_labels_as_columns(runs: dict[str, list[Run]]) -> None:
    (run,) = runs["proxyfl"]
    frame, lines = run.frame(), run.metrics
    losses = [f"loss_{name}" for name in lines[0]["losses"]]
    assert list(frame.columns[: len(ABOUT) + 2 + len(losses)]) == [*ABOUT, "round", "accuracy", *losses]
    assert list(frame.columns[-len(END) :]) == END
    assert list(frame["accuracy"]) == [line["accuracy"] for line in lines]
    for name in lines[0]["losses"]:
        assert list(frame[f"loss_{name}"]) == [line["losses"][name] for line in lines]
    assert list(frame["pseudo_accuracy"]) == [line["pseudo"]["accuracy"] for line in lines]
    assert list(frame["clients"]) == [len(line["clients"]) for line in lines]


def test_types(runs: dict[str, list[Run]]) -> None:
    found = proxyfl.results([run.path for each in runs.values() for run in each])
    kinds = {name: kind.kind for name, kind in found.rounds.dtypes.items() if kind.kind != "O"}
    whole = ("seed", "round", "clients", "failed")
    real = ("alpha", "label_ratio", "accuracy", "megabytes_up", "seconds", "cpu_seconds")
    assert {name: kinds[name] for name in whole + real} == dict.fromkeys(whole, "i") | dict.fromkeys(
        real, "f"
    )
    assert all(kinds[name] == "f" for name in kinds if name.startswith(("loss_", "pseudo_")))
    totals = found.runs.dtypes
    assert (totals["finished"].kind, totals["rounds"].kind, totals["mean_last"].kind) == ("b", "i", "f")
    assert all(isinstance(name, str) for name in found.runs["method"])


def test_a_round_that_was_not_measured_has_no_accuracy(folder: Path) -> None:
    path = folder / "grid" / "a"
    first, *rest = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    del first["accuracy"]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (first, *rest)))
    values = list(Run(path).frame()["accuracy"])
    assert math.isnan(values[0])
    assert values[1] == 0.75


def test_only_runs_with_some_settings(folder: Path) -> None:
    assert list(proxyfl.results(folder, method="fedavg", seed=2).runs["last"]) == [0.7]
    assert len(proxyfl.results(folder, seed=[1, 2]).runs) == 3
    assert list(proxyfl.results(folder, train__epochs=3).runs["seed"]) == [2]


def test_copies_and_damaged_runs_are_left_out_with_a_note(folder: Path) -> None:
    shutil.copytree(folder / "grid" / "a", folder / "again")
    (folder / "grid" / "b" / "metrics.jsonl").write_text('{"round": 1, "accuracy": 7, "traffic": {}}\n')
    found = proxyfl.results(str(folder))
    assert list(found.runs["method"]) == ["fedavg", "proxyfl"]
    assert len(found.notes) == 3
    assert any("damaged" in note and str(folder / "grid" / "b") in note for note in found.notes)
    assert any("twice" in note for note in found.notes)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=tmp_path.name):
        proxyfl.results(tmp_path)


def test_without_pandas_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = proxyfl.results(folder)
    assert len(found.outcomes) == 3, "reading does without"
    for frame in (lambda: found.runs, lambda: found.rounds, Run(folder / "grid" / "a").frame):
        with pytest.raises(ProxyFLError, match=r"proxyfl\[pandas\]"):
            frame()


def test_the_room_is_the_function_however_it_was_imported() -> None:
    code = "import proxyfl; a = proxyfl.results; import proxyfl.results.cells; assert a is proxyfl.results"
    subprocess.run([sys.executable, "-c", f"{code}; assert callable(a)"], check=True)
