"""The peers are compared at the same work: what is installed plays it, and other work is refused."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("peers_work", "peers"):
        sys.modules.pop(name, None)
    return importlib.import_module("peers")


def test_a_round_is_from_one_end_to_the_next_and_the_first_is_start_up(
    peers: ModuleType, tmp_path: Path
) -> None:
    folder = peers.prepare({"real work": peers.QUICK["real work"]}, tmp_path, None)["real work"]
    ends = [(110.0, 7.0, 110.5), (112.5, 9.0, 113.0), (115.0, 11.5, 115.5)]
    rounds = [dict(zip(("ended", "processor", "next"), end, strict=True)) for end in ends]
    found = {"rounds": rounds, "steps": 3 * 2 * 5, "accuracy": 50.0, "version": "1"}
    measured = peers.read(found, began=100.0, peak=1, folder=folder, rounds=2)
    assert (measured.seconds, measured.processor, measured.start) == ([2.0, 2.0], [2.0, 2.5], 8.0)
    with pytest.raises(peers.Missing, match="29 steps instead of 30"):
        peers.read({**found, "steps": 29}, began=100.0, peak=1, folder=folder, rounds=2)


def test_ratios_are_taken_within_a_turn_and_who_is_missing_says_why(peers: ModuleType) -> None:
    tuned = [peers.Measured([seconds], [1.0], 1.0, 1 << 20, 90.0, "1") for seconds in (1.0, 2.0, 10.0)]
    slow = [one._replace(seconds=[2 * one.round]) for one in tuned]
    chosen = [peer for peer in peers.PEERS if peer.name in ("proxyfl", "flower", "plain-tuned")]
    sizes = {"real work": peers.SIZES["real work"]}
    found = {("real work", "proxyfl"): slow, ("real work", "plain-tuned"): tuned}
    first, second, third = peers.table(chosen, sizes, found, {"flower": "cannot be installed"})
    assert first[1:5] == ["proxyfl, inline", "4.000", "2.00", "2.0"]
    assert second[2:] == ["", "", "", "", "", "", "", "cannot be installed"]
    assert third[3] == "1.00"


def test_who_has_figures_is_drawn(peers: ModuleType, tmp_path: Path) -> None:
    ratios = {"proxyfl, inline": "0.90", "Flower": "", "plain loop": "1.00"}
    blank = [""] * (len(peers.COLUMNS) - 4)
    rows = [["real work", name, "1.0", ratio, *blank] for name, ratio in ratios.items()]
    results = peers.plot_style.save_csv(tmp_path / "a.csv", peers.COLUMNS, rows)
    peers.draw(results, tmp_path / "a.png")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert ["proxyfl, inline" in text, "Flower" in text, "plain loop" in text] == [True, False, True]
    peers.draw(peers.plot_style.save_csv(tmp_path / "b.csv", peers.COLUMNS, rows[1:2]), tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="asks Linux about processes")
def test_those_that_are_installed_play_all_rounds(tmp_path: Path) -> None:
    asked = "proxyfl,proxyfl-2,proxyfl-ray,flower,pfl,plain-tuned"
    call = [ROOT / "benchmarks" / "peers.py", "--quick", "--here", "--repeats", "1", "--rounds", "1"]
    call += [
        "--sizes",
        "framework only",
        "--only",
        asked,
        "--place",
        tmp_path,
        "--results",
        tmp_path / "a.csv",
        "--picture",
        tmp_path / "a.png",
    ]
    path = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, *map(str, call)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        notes = {row["who"]: row["note"] for row in csv.DictReader(file)}
    assert len(notes) == 6
    assert not notes["proxyfl, inline"]
    assert not notes["proxyfl, 2 workers"]
    assert all(not note or note.endswith("is not installed") for note in notes.values()), notes
