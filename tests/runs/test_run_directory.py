"""A run's directory: what is in it, how it appears, what can be read from it."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import proxyfl
from proxyfl.core.errors import ConfigError, MethodError, RunError
from proxyfl.core.files import sha256
from proxyfl.core.provenance import this_commit
from proxyfl.data import sources
from proxyfl.data.augment import normalise
from proxyfl.federation.evaluate import evaluate
from proxyfl.runs import checkpoint, experiment
from proxyfl.runs.directory import RunDirectory, read_json_lines
from proxyfl.runs.run import Run, list_runs
from proxyfl.runs.settings import resolve
from toybox import TINY, make_simulation

SETTINGS: dict[str, Any] = {**TINY, "rounds": 3, "subset": 160, "method__tau": 0.2, "method__gpt__epochs": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    where = tmp_path_factory.mktemp("runs") / "first"
    return proxyfl.Experiment("proxyfl", "digits", **SETTINGS).run(where)


def test_everything_is_there(run: Run) -> None:
    names = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    checkpoints = {
        f"checkpoints/round-0000000{round}/{name}"
        for round in (2, 3)
        for name in ("state.safetensors", "config.toml", "manifest.json")
    }
    assert names == checkpoints | {
        "checkpoints/metrics.copy.jsonl",
        "checkpoints/clients.copy.jsonl",
        "clients.jsonl",
        "checkpoints/best.safetensors",
        "config.toml",
        "environment.json",
        "partition.safetensors",
        "metrics.jsonl",
        "timing.jsonl",
        "events.jsonl",
        "snapshots/round-00000001.safetensors",
        "snapshots/round-00000003.safetensors",
        "models/best.safetensors",
        "models/last.safetensors",
        ".lock",
    }
    assert not run.directory.aside.exists()


def test_nothing_in_it_is_a_pickle(run: Run) -> None:
    for file in run.path.rglob("*"):
        if not file.is_file() or file.name == ".lock":
            continue
        content = file.read_bytes()
        assert content[:1] != b"\x80", file  # a pickle
        assert content[:2] not in (b"PK", b"\x1f\x8b"), file  # an archive, as torch.save writes it
        if file.suffix == ".safetensors":
            assert len(load_file(file)) > 0
        elif file.suffix in (".json", ".jsonl"):
            for line in content.splitlines() if file.suffix == ".jsonl" else [content]:
                json.loads(line)
        else:
            assert file.suffix == ".toml", file
            tomllib.loads(content.decode())


def test_the_config_can_be_run_again(run: Run) -> None:
    text = (run.path / "config.toml").read_text()
    assert text.splitlines()[0] == "# proxyfl run config.toml"
    assert resolve("", tomllib.loads(text)) == run.config
    assert run.config.method.parameters["tau"] == 0.2


def test_the_environment(run: Run) -> None:
    found = json.loads((run.path / "environment.json").read_text())
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["commit"] == this_commit()
    assert {"python", "proxyfl", "torch", "numpy", "safetensors"} <= set(found["versions"])
    assert (found["threads"], found["dtype"], found["device"]) == (1, "fp32", "cpu")
    assert found["labels_per_class"] == 2  # 10 % of 160 images of 10 classes, rounded
    assert len(found["data"]) == 64


def test_every_quantity_is_in_the_metrics(run: Run) -> None:
    assert [line["round"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert set(line) == {
            "round", "accuracy", "per_class", "clients", "idle", "failed", "losses", "pseudo", "prior",
            "class_counts", "proxy_loss", "traffic",
        }  # fmt: skip
        assert set(line["losses"]) == {"supervised", "unlabelled", "icpl"}
        assert {
            "visits", "selected", "selected_share", "excluded_visits", "excluded_images", "accuracy",
        } <= set(line["pseudo"])  # fmt: skip
        assert line["pseudo"]["visits"] == line["pseudo"]["selected"] + line["pseudo"]["excluded_visits"]
        assert len(line["per_class"]) == len(line["prior"]) == 10
        assert sum(line["prior"]) == pytest.approx(1, abs=1e-5)
        assert set(line["class_counts"]) == {str(client) for client in line["clients"]}
        assert set(line["proxy_loss"]) == {"margin", "before", "after"}
        ways = ("up", "down", "down_once")
        units = {f"{unit}_{way}" for unit in ("bytes", "numbers") for way in ways}
        assert set(line["traffic"]) == {*ways, *units, "numbers"}
        for way in ways:
            assert sum(line["traffic"]["numbers"][way].values()) == line["traffic"][f"numbers_{way}"]
        assert len(line["clients"]) == 2
    seen = set().union(*(line["pseudo"] for line in run.metrics))
    assert {"selected_accuracy", "low_accuracy", "set_recall", "set_size"} <= seen


def test_large_tensors_are_snapshots(run: Run) -> None:
    for round in (1, 3):
        found = run.snapshot(round)
        assert found["proxies/clients"].shape == (2, 10, 64)
        assert found["proxies/average"].shape == found["proxies/tuned"].shape == (10, 64)
        assert found["proxies/client_ids"].tolist() == run.metrics[round - 1]["clients"]
        assert found["confusion"].shape == (10, 10)
        assert int(found["confusion"].sum()) == 497
    weights = load_file(run.path / "models" / "last.safetensors")
    assert torch.equal(weights["classifier.weight"], run.snapshot(3)["proxies/tuned"])
    with pytest.raises(RunError, match=r"no snapshot of round 2; .*1, 3"):
        run.snapshot(2)


def test_timing_and_events(run: Run) -> None:
    assert [line["round"] for line in run.timing] == [1, 2, 3]
    assert set(run.timing[0]) == {"round", "train", "serve", "evaluate", "cpu", "record", "clients"}
    assert [line["event"] for line in run.events] == ["created", "started", "finished"]


def test_an_event_after_a_torn_line_is_not_lost(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.event("created")
    with directory.events.open("a") as file:
        file.write('{"time": 5.0, "event": "client fai')
    directory.event("resumed", round=2)
    directory.event("finished")
    assert [line["event"] for line in read_json_lines(directory.events)] == ["created", "resumed", "finished"]
    assert directory.events.read_text().count("\n") == 4


def test_durations_are_not_among_the_metrics(run: Run) -> None:
    text = (run.path / "metrics.jsonl").read_text()
    assert not re.search("second|time|duration", text)


def test_the_manifest_vouches_for_every_file(run: Run) -> None:
    folder = run.path / "checkpoints" / "round-00000003"
    manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
    assert manifest["format"] == 2
    assert manifest["round"] == 3
    assert set(manifest["files"]) == {"state.safetensors", "config.toml"}
    assert manifest["metrics"]["sha256"] == sha256(run.path / "metrics.jsonl")
    for name, digest in manifest["files"].items():
        assert sha256(folder / name) == digest
    for name in ("partition.safetensors", "environment.json"):
        assert manifest["run"][name] == sha256(run.path / name)


def test_the_last_checkpoint_is_the_last_model(run: Run) -> None:
    saved = checkpoint.read(run.path / "checkpoints" / "round-00000003")
    weights = load_file(run.path / "models" / "last.safetensors")
    assert saved.state.weights.keys() == weights.keys()
    assert all(torch.equal(saved.state.weights[name], value) for name, value in weights.items())
    assert saved.metrics == (run.path / "metrics.jsonl").read_bytes()


def test_the_partition(run: Run) -> None:
    partition = run.partition
    assert partition.clients == 4
    everyone = sorted([*partition.labelled.values.tolist(), *partition.unlabelled.values.tolist()])
    assert everyone == list(range(160))


def test_summary(run: Run) -> None:
    accuracy = [line["accuracy"] for line in run.metrics]
    summary = run.summary
    assert (summary.rounds, summary.last, summary.best) == (3, accuracy[-1], max(accuracy))
    assert summary.mean_last == pytest.approx(sum(accuracy) / 3)
    assert summary.best_round == accuracy.index(max(accuracy)) + 1
    sent = sum(line["traffic"]["bytes_up"] + line["traffic"]["bytes_down"] for line in run.metrics)
    assert summary.megabytes == sent / 1e6
    assert summary.seconds > 0
    assert run.finished


def test_a_model_in_plain_pytorch(run: Run) -> None:
    """The example of the documentation: one file, five lines."""
    path = run.path / "models" / "last.safetensors"

    with safe_open(path, framework="pt") as file:
        card = json.loads(file.metadata()["proxyfl"])
    network = proxyfl.models.build(
        card["network"], len(card["classes"]), card["channels"], card["width"], card["heads"]
    )
    network.load_state_dict(load_file(path))
    network.eval()

    assert card["classes"] == list("0123456789")
    assert (card["round"], card["method"], card["image_size"]) == (3, "proxyfl", 8)
    assert card["accuracy"] == run.metrics[-1]["accuracy"]
    test = sources.load("digits").test
    with torch.inference_mode():
        found = network(normalise(test.images, card["mean"], card["std"])).argmax(1)
    assert (found == test.labels).sum().item() / len(test) == run.metrics[-1]["accuracy"]


@pytest.mark.parametrize("which", ["last", "best"])
def test_loading_models(run: Run, which: str) -> None:
    model = run.model(which)
    chosen = run.metrics[-1] if which == "last" else run.metrics[run.summary.best_round - 1]
    assert (model.card.round, model.card.accuracy) == (chosen["round"], chosen["accuracy"])
    test = sources.load("digits").test
    found = evaluate(model.network, test, model.card.mean, model.card.std, batch=100)
    assert found.accuracy == chosen["accuracy"]
    assert found.per_class == chosen["per_class"]
    probabilities = model(test.images[:5])
    assert torch.allclose(probabilities.sum(1), torch.ones(5), atol=1e-5)
    same = proxyfl.load_model(run.path / "models" / f"{which}.safetensors")
    assert same.card == model.card


def test_models_that_cannot_be_loaded(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        proxyfl.load_model(tmp_path / "none.safetensors")
    (tmp_path / "half").write_bytes((run.path / "models" / "last.safetensors").read_bytes()[:5000])
    (tmp_path / "other").write_bytes((run.path / "partition.safetensors").read_bytes())
    for name in ("half", "other"):
        with pytest.raises(RunError, match=r"not a model .*damaged"):
            proxyfl.load_model(tmp_path / name)


def test_an_existing_directory_is_refused_and_left_alone(run: Run, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    with pytest.raises(RunError, match=r"exists; .*'proxyfl resume"):
        proxyfl.Experiment("fedavg", "digits", **TINY).run(run.path)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="exists"):
        proxyfl.Experiment("fedavg", "digits", **TINY).run(tmp_path / "empty")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="exists"):
        RunDirectory(tmp_path / "file").create(lambda aside: None)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    place = RunDirectory(tmp_path / "deep" / "run")
    seen: list[bool] = []

    def build(aside: RunDirectory) -> None:
        aside.config.write_text("x")
        seen.append(place.path.exists())

    def fail(aside: RunDirectory) -> None:
        build(aside)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        place.create(fail)
    assert not place.path.exists()
    place.create(build)  # what was left of the first try is in nobody's way
    assert seen == [False, False]
    assert place.config.read_text() == "x"
    assert [path.name for path in place.path.parent.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("method", "options", "error"),
    [
        ("proxfl", {}, ConfigError),
        ("fedavg-sl+icpl", {}, MethodError),
        ("fedavg", {"data__name": "digts"}, ConfigError),
        ("fedavg", {"rounds": "many"}, ConfigError),
        ("fedavg", {"per_round": 99}, ConfigError),
        ("fedavg", {"device": "gpu"}, ConfigError),
        ("fedavg", {"data__name": "npz:nowhere.npz"}, proxyfl.ProxyFLError),
        ("fedavg", {"subset": 99999}, ConfigError),
        ("fedavg", {"image_size": 4}, ConfigError),
    ],
)
def test_mistakes_write_nothing(
    tmp_path: Path, method: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        proxyfl.Experiment(method, "digits", data_root=tmp_path, **{**TINY, **options}).run(
            tmp_path / "a" / "run"
        )
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_weights_that_run_away_are_a_readable_error(tmp_path: Path) -> None:
    wild = proxyfl.Experiment("gpt-only", "digits", **{**TINY, "subset": 160, "method__gpt__lr": 1e38})
    with pytest.raises(RunError, match=r"round 1 .*not finite"):
        wild.run(tmp_path / "wild")
    hot = proxyfl.Experiment("fedavg", "digits", **{**TINY, "subset": 160, "train__lr": 1e30})
    with pytest.raises(RunError, match=r"round 1: 0 of 2 clients .*not finite"):
        hot.run(tmp_path / "hot")


def test_runs_are_listed(run: Run, tmp_path: Path) -> None:
    assert [found.path for found in list_runs(run.path.parent)] == [run.path]
    assert list_runs(tmp_path / "nothing") == []
    (tmp_path / "stray").mkdir()
    shutil.copytree(run.path, tmp_path / ".copy.creating")
    assert list_runs(tmp_path) == []
    with pytest.raises(RunError, match="is not a run"):
        Run(tmp_path / "stray")


def test_the_default_place_names_data_method_seed_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = proxyfl.Experiment("fedavg", "digits", **{**TINY, "rounds": 1, "subset": 120, "seed": 5}).run()
    assert re.fullmatch(r"digits-fedavg-seed5-[0-9a-f]{6}", run.path.name)
    assert run.path.parent == Path("runs")


def test_json_lines_forgive_an_incomplete_last_line(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    assert read_json_lines(file) == []
    file.write_bytes(b'{"a": 1}\n[2]\nnonsense\n{"a": 3}\n{"a": 4')
    assert read_json_lines(file) == [{"a": 1}, {"a": 3}]


def test_the_fingerprint_of_data() -> None:
    base = make_simulation()
    assert base.fingerprint() == make_simulation().fingerprint()
    assert base.fingerprint() != make_simulation(seed=1).fingerprint()
    assert base.fingerprint() != make_simulation(channels=3).fingerprint()
    changed = make_simulation()
    changed.dataset.train.labels[5] += 1
    assert changed.fingerprint() != base.fingerprint()
    changed = make_simulation()
    changed.dataset.test.images[3, 0, 2, 2] ^= 1
    assert changed.fingerprint() != base.fingerprint()


def test_either_a_config_or_settings() -> None:
    config = resolve("digits")
    assert proxyfl.Experiment(config=config).config == config
    with pytest.raises(ConfigError, match="not both"):
        proxyfl.Experiment("fedavg", config=config)
    assert experiment.load_config("digits", {}, "fedavg").method.name == "fedavg"
