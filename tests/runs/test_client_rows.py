"""``clients.jsonl``: the same bits wherever it is computed, repaired like the metrics, silent under privacy.

That it survives kills is shown with everything else in ``test_resume.py`` and ``tests/recovery``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxyfl
from calling import invoke
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.runs import manifests
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.personal import at_clients
from proxyfl.runs.run import Run
from toybox import TINY, Stopped, Told

SETTINGS: dict[str, Any] = {**TINY, "subset": 120, "seed": 4}
FILES = ("clients.jsonl", "checkpoints/clients.copy.jsonl")


def played(where: Path, workers: int = 0, **settings: Any) -> Run:
    return proxyfl.Experiment("fedavg", "digits", **{**SETTINGS, **settings}).run(where, workers=workers)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("rows") / "run").path


@pytest.fixture
def mine(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


@pytest.mark.slow
def test_workers_write_the_same_bits_and_time_is_kept_apart(sound: Path, tmp_path: Path) -> None:
    other = played(tmp_path / "run", workers=2)
    for name in FILES:
        assert (other.path / name).read_bytes() == (sound / name).read_bytes()
    assert b"seconds" not in (sound / "clients.jsonl").read_bytes()
    rows = Run(sound).client_rows
    assert [(row["round"], row["client"]) for row in rows] == [
        (line["round"], client) for line in Run(sound).metrics for client in line["clients"]
    ]
    assert all(row["seconds"] > 0 and -1 <= row["cosine"] <= 1 < row["norm"] for row in rows)
    frame = Run(sound).clients()
    assert len(frame) == len(rows)
    assert {"round", "client", "norm", "cosine", "seconds", "loss_supervised"} <= set(frame)


def test_the_run_is_the_same_without_them(sound: Path, tmp_path: Path) -> None:
    other = played(tmp_path / "run", keep__clients="none")
    assert (other.path / "metrics.jsonl").read_bytes() == (sound / "metrics.jsonl").read_bytes()
    assert not any((other.path / name).exists() for name in FILES)
    assert other.client_rows == []
    assert invoke("validate", other.path).exit_code == 0
    answer = invoke("show", other.path, "--clients")
    assert answer.exit_code == 2
    assert "start a run with keep.clients = 'auto'" in " ".join(answer.stderr.split())


@pytest.mark.parametrize("name", FILES)
def test_one_file_that_is_damaged_is_written_again(name: str, mine: Path, sound: Path) -> None:
    whole = (mine / name).read_bytes()
    (mine / name).write_bytes(whole.replace(b'"norm"', b'"mron"', 1))
    assert Run(mine).client_rows == Run(sound).client_rows
    told = invoke("validate", mine)
    assert told.exit_code == 2
    assert f"damaged: {name};" in " ".join(told.stderr.split())
    assert invoke("resume", mine, "--quiet").exit_code == 0
    assert (mine / name).read_bytes() == whole


def test_both_damaged_lose_notes_and_no_round(mine: Path) -> None:
    for name in FILES:
        (mine / name).write_bytes(b"?" + (mine / name).read_bytes()[1:])
    with pytest.raises(RunError, match=r"clients.jsonl .*damaged; .*'proxyfl validate"):
        _ = Run(mine).client_rows
    run = proxyfl.resume(mine, workers=0, rounds=3)
    assert [line["round"] for line in run.metrics] == [1, 2, 3]
    assert {row["round"] for row in run.client_rows} == {3}
    assert any("client records of rounds 1 to 2 are lost" in event.get("text", "") for event in run.events)


def test_lines_that_no_round_writes_are_refused(mine: Path) -> None:
    """Whoever made the checksums right."""
    line = {"round": 1, "client": 0, "cosine": 2.0}
    for name in FILES:
        (mine / name).write_text(json.dumps(line) + "\n")
    for manifest in mine.glob("checkpoints/round-*/manifest.json"):
        manifest.write_text("{}")
    with pytest.raises(RunError, match=r"clients.jsonl is damaged: cosine"):
        _ = Run(mine).client_rows


def test_a_run_of_an_earlier_version_goes_on_and_notes_from_then_on(tmp_path: Path) -> None:
    where = tmp_path / "run"
    with pytest.raises(Stopped):
        proxyfl.Experiment("fedavg", "digits", **SETTINGS).run(where, [Told(stop_after=1)], workers=0)
    for name in FILES:
        (where / name).unlink()
    for folder in manifests.folders(RunDirectory(where)):
        manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
        del manifest["clients"]
        (folder / "manifest.json").write_bytes(manifests.with_checksum(manifest))
    assert Run(where).client_rows == []
    run = proxyfl.resume(where, workers=0)
    assert {row["round"] for row in run.client_rows} == {2}
    assert invoke("validate", where).exit_code == 0


def test_an_unrecorded_federation_writes_what_it_noted(sound: Path, tmp_path: Path) -> None:
    federation = proxyfl.Experiment("fedavg", "digits", **SETTINGS).federation(workers=0)
    assert [row["client"] for row in next(iter(federation.rounds(1))).rows]
    federation.record(tmp_path / "run").run()
    assert (tmp_path / "run" / "clients.jsonl").read_bytes() == (sound / "clients.jsonl").read_bytes()


SITES = {"privacy__clip": 0.5, "federation__sampling": "poisson", "federation__weighting": "uniform"}
RECORDS = {"privacy__record_clip": 0.5, "model__norm": "group", "train__pool": "unlabelled", "dtype": "fp32"}


@pytest.mark.parametrize("level", [SITES, RECORDS])
def test_differential_privacy_notes_nothing_and_says_so(level: dict[str, Any], tmp_path: Path) -> None:
    if level is RECORDS:
        pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'proxyfl[dp]'")
    private = {**level, "rounds": 1}
    run = played(tmp_path / "run", **private)
    assert run.client_rows == []
    assert not any((run.path / name).exists() for name in FILES)
    assert '"clients"' not in (run.path / "timing.jsonl").read_text()
    answer = invoke("show", run.path, "--clients")
    assert answer.exit_code == 2
    assert "differential privacy forbids" in " ".join(answer.stderr.split())
    with pytest.raises(ConfigError, match=r"keep\.clients = 'all'"):
        played(tmp_path / "other", **private, keep__clients="all")


def test_accuracy_at_each_client_is_that_of_the_global_model_on_what_it_keeps_back(tmp_path: Path) -> None:
    settings = {"label_ratio": 0.5, "data__validation": 0.4, "federation__evaluate_every": 2}
    run = played(tmp_path / "run", **settings)
    data, model, held = run.dataset().train, run.model(), run.partition.validation
    assert held is not None
    rows = run.client_rows
    assert [("accuracy" in row) for row in rows] == [row["round"] == 2 for row in rows], "measured rounds"
    expected = {}
    for client in range(4):
        images = held[client]
        guess = model(data.images[images]).argmax(1)
        expected[client] = (len(images), float((guess == data.labels[images]).double().mean()))
    for row in rows[2:]:
        assert (row["held"], row["accuracy"]) == pytest.approx(expected[row["client"]], abs=1e-5)
    found = at_clients(run, personalised=True)
    assert {each.client: (each.held, each.accuracy) for each in found} == expected
    assert [each.accuracy for each in found] == sorted(each.accuracy for each in found)
    assert all(0 <= (each.personalised or 0) <= 1 for each in found)
    told = invoke("eval", run.path, "--clients", "--personalised")
    assert told.exit_code == 0
    assert "mean over 4 clients: " in told.stdout
    refused = invoke("eval", run.path, "--personalised")
    assert (refused.exit_code, "requires --clients" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_personal_training_helps_where_clients_disagree(tmp_path: Path) -> None:
    """Two clients that call even and odd digits by opposite names: one model cannot please both."""
    digits = proxyfl.load_dataset("digits")
    owner = np.arange(300) % 2
    labels = (digits.train.labels[:300].numpy() + owner) % 2
    images = digits.train.images[:, 0].numpy()
    file, test = tmp_path / "two.npz", digits.test
    np.savez(
        file, train_images=images[:300], train_labels=labels, clients=owner,
        test_images=test.images[:50, 0].numpy(), test_labels=test.labels[:50].numpy() % 2,
    )  # fmt: skip
    settings = {"width": 1, "dtype": "fp32", "rounds": 2, "per_round": 2, "label_ratio": 1.0}
    settings |= {"partition__scheme": "natural", "train__epochs": 3, "train__batch": 8, "train__lr": 0.1}
    run = proxyfl.Experiment("fedavg", f"npz:{file}", **settings, data__validation=0.3).run(tmp_path / "run")
    found = at_clients(run, personalised=True)
    assert sum(each.accuracy for each in found) / 2 < 0.6
    assert all((each.personalised or 0) > each.accuracy for each in found)
    assert sum(each.personalised or 0 for each in found) / 2 > 0.65


@pytest.mark.slow
def test_a_client_with_shuffled_labels_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.setenv("COLUMNS", "200")
    digits, draw = load_digits(), np.random.default_rng(0)
    images, labels = (digits.images / 16 * 255).astype(np.uint8), digits.target.astype(np.int64)
    names = np.array([f"ward-{'abcdef'[k % 6]}" for k in range(300)])
    dealt = labels[:300].copy()
    dealt[names == "ward-d"] = draw.permutation(dealt[names == "ward-d"])
    file = tmp_path / "wards.npz"
    np.savez(
        file, train_images=images[:300], train_labels=dealt, clients=names,
        test_images=images[300:500], test_labels=labels[300:500],
    )  # fmt: skip
    settings = {"width": 1, "dtype": "fp32", "rounds": 5, "per_round": 6, "label_ratio": 0.9}
    settings |= {"partition__scheme": "natural", "train__epochs": 3, "train__batch": 8, "train__lr": 0.1}
    run = proxyfl.Experiment("fedavg", f"npz:{file}", **settings).run(tmp_path / "run", workers=0)
    found = json.loads(invoke("show", run.path, "--clients", "--json").stdout)
    assert found[0]["name"] == "ward-d"
    assert any(words.startswith("its loss is high") for words in found[0]["unusual"])
    others = [words for client in found[1:] for words in client["unusual"]]
    assert all(words.startswith("it is slow") for words in others), "time is the machine's"
    told = invoke("show", run.path, "--clients").stdout
    assert "\nward-d: its " in told
    assert set(run.clients()["name"]) == {f"ward-{letter}" for letter in "abcdef"}
