"""Starting from weights: the same everywhere, told by its hash, and never with labels that the run hides."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import proxyfl
from proxyfl import Experiment, Run
from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.state import content_hash
from proxyfl.federation.client import fitting
from proxyfl.runs import checkpoint
from proxyfl.runs.settings import identity, resolve
from proxyfl.runs.short_names import from_short
from toybox import TINY, Stopped, Told, same_bits

SETTINGS: dict[str, Any] = {**TINY, "subset": 120, "labels__per_class": 3}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("source") / "run"
    Experiment("fedavg", "digits", **SETTINGS, seed=1001).run(where, workers=0)
    return where


def begun(source: Path, where: Path, method: str = "proxyfl", workers: int = 0, **more: Any) -> Run:
    settings = {**SETTINGS, "model__weights": str(source), **more}
    return Experiment(method, "digits", **settings).run(where, workers=workers)


def start_of(run: Path) -> dict[str, torch.Tensor]:
    weights = checkpoint.read(run / "checkpoints" / "round-00000000").state.weights
    return {name: value for name, value in weights.items() if not name.startswith("heads.")}


@pytest.mark.parametrize(("method", "noted"), [("proxyfl", True), ("fedmatch", False), ("fedloke", False)])
def test_a_note_names_what_the_given_weights_lack_of_the_network(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, noted: bool
) -> None:
    """FedMatch sends weights in halves, with names of their own: they start from the given ones, too."""
    begun(source, tmp_path / "warm", method, rounds=1)
    note = capsys.readouterr().err.partition("the initial weights lack ")[2]
    assert note.startswith("heads.feature.bias, ") == noted
    assert bool(note) == noted


def test_the_first_state_holds_the_given_weights_and_heads_from_the_seed(
    source: Path, tmp_path: Path
) -> None:
    given = read_verified(source / "models" / "last.safetensors")[0]
    warm = begun(source, tmp_path / "warm", keep__checkpoints=3)
    assert same_bits(start_of(warm.path), given)
    assert any(name.endswith("running_mean") for name in given)
    assert warm.config.model.weights_hash == content_hash(given)
    assert 0 < warm.environment["start_accuracy"] < 1
    cold = Experiment("proxyfl", "digits", **SETTINGS, keep__checkpoints=3).run(tmp_path / "cold", workers=0)
    heads = [
        {
            name: value
            for name, value in checkpoint.read(each).state.weights.items()
            if name.startswith("heads.")
        }
        for each in (run.path / "checkpoints" / "round-00000000" for run in (warm, cold))
    ]
    assert heads[0]
    assert same_bits(*heads)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedloke", "proxyfl"])
def test_workers_and_a_resume_without_the_source_give_the_same_bits(
    source: Path, tmp_path: Path, method: str
) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    whole = begun(copy, tmp_path / "whole", method)
    pooled = begun(copy, tmp_path / "pooled", method, workers=2)
    settings = {**SETTINGS, "model__weights": str(copy)}
    with pytest.raises(Stopped):
        Experiment(method, "digits", **settings).run(tmp_path / "half", [Told(stop_after=1)], workers=0)
    shutil.rmtree(copy)
    proxyfl.resume(tmp_path / "half", workers=0)
    last = [
        read_verified(run / "models" / "last.safetensors")[0]
        for run in (whole.path, pooled.path, tmp_path / "half")
    ]
    assert same_bits(last[0], last[1])
    assert same_bits(last[0], last[2])


def test_private_models_of_clients_start_from_the_weights_too(source: Path, tmp_path: Path) -> None:
    warm = begun(source, tmp_path / "warm", "fedloke", train__lr=1e-12)
    given = read_verified(source / "models" / "last.safetensors")[0]
    kept = next(iter(sorted((warm.path / "clients").rglob("*.safetensors"))))
    own = read_verified(kept)[0]["model/classifier.weight"]
    assert torch.allclose(own, given["classifier.weight"], atol=1e-6)


def test_a_lost_copy_is_read_from_the_source_and_the_loss_of_both_is_told(
    source: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    settings = {**SETTINGS, "model__weights": str(copy)}
    with pytest.raises(Stopped):
        Experiment("fedavg", "digits", **settings).run(tmp_path / "half", [Told(stop_after=1)], workers=0)
    (tmp_path / "half" / "start.safetensors").unlink()
    shutil.copytree(tmp_path / "half", tmp_path / "both")
    assert proxyfl.resume(tmp_path / "half", workers=0).finished
    shutil.rmtree(copy)
    with pytest.raises(RunError, match=r"start\.safetensors .*damaged"):
        proxyfl.resume(tmp_path / "both", workers=0)


def test_weights_trained_with_labels_that_the_run_hides_are_refused(source: Path, tmp_path: Path) -> None:
    every = Experiment("fedavg-sl", "digits", **SETTINGS).run(tmp_path / "every", workers=0)
    with pytest.raises(ConfigError, match="with every label"):
        begun(every.path, tmp_path / "a")
    with pytest.raises(ConfigError, match="another selection"):
        begun(source, tmp_path / "b", labels__seed=8)
    with pytest.raises(ConfigError, match="labels that this run hides"):
        begun(source, tmp_path / "c", labels__per_class=1)
    assert begun(source, tmp_path / "d", labels__per_class=6).finished
    assert not list(tmp_path.glob("[abc]"))


def test_other_weights_under_the_same_place_are_refused(source: Path, tmp_path: Path) -> None:
    wrong = "f" * 64
    with pytest.raises(ConfigError, match="not those"):
        begun(source, tmp_path / "run", model__weights_hash=wrong)
    with pytest.raises(ConfigError, match="does not exist"):
        begun(tmp_path / "nowhere", tmp_path / "run")
    with pytest.raises(ConfigError, match=r"other shapes classifier\.weight|other shapes"):
        begun(source, tmp_path / "run", width=2)


def test_what_does_not_fit_is_named() -> None:
    own = {"trunk.a": torch.zeros(2), "heads.h": torch.zeros(3), "classifier.weight": torch.zeros(4)}
    fits = {"trunk.a": torch.ones(2), "classifier.weight": torch.ones(4)}
    assert fitting(fits, own).keys() == fits.keys()
    assert fitting({**fits, "heads.other": torch.ones(1)}, own).keys() == fits.keys()
    with pytest.raises(ConfigError, match=r"classifier\.weight \(5,\) instead of \(4,\)"):
        fitting({**fits, "classifier.weight": torch.ones(5)}, own)
    with pytest.raises(ConfigError, match=r"no classifier\.weight"):
        fitting({"trunk.a": torch.ones(2)}, own)
    with pytest.raises(ConfigError, match=r"unknown tensors: trunk\.b"):
        fitting({**fits, "trunk.b": torch.ones(1)}, own)


def test_the_hash_is_of_names_types_shapes_and_values(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(3)}
    known = content_hash(tensors)
    assert known == content_hash({"a": tensors["a"], "b": tensors["b"].clone()})
    write_verified(tmp_path / "x.safetensors", tensors, {"proxyfl": "{}"})
    assert content_hash(read_verified(tmp_path / "x.safetensors")[0]) == known
    others = [{**tensors, "b": tensors["b"].reshape(3, 2)}, {**tensors, "b": tensors["b"].double()}]
    others += [{**tensors, "b": tensors["b"] + 1}, {"b": tensors["b"], "c": tensors["a"]}]
    assert len({known, *map(content_hash, others)}) == 5


def test_names_of_runs_made_before_there_were_warm_starts_stay(tmp_path: Path) -> None:
    config = resolve("digits", from_short({"dtype": "fp32"}), {"method": {"name": "proxyfl"}})
    assert identity(config) == "3897fe47ec9b305e16e83bcf443c0e407cc1f81710fedc9d80ae0c0937c5d21e"
    placed = resolve(
        "digits",
        from_short({"dtype": "fp32", "model__weights": "elsewhere"}),
        {"method": {"name": "proxyfl"}},
    )
    assert identity(placed) == identity(config), "where weights lie does not count"
    hashed = resolve(
        "digits",
        from_short({"dtype": "fp32", "model__weights_hash": "a" * 64}),
        {"method": {"name": "proxyfl"}},
    )
    assert identity(hashed) != identity(config), "what they are does"


def test_processor_time_is_on_record_and_no_part_of_the_clock(source: Path) -> None:
    run, summary = Run(source), Run(source).summary
    assert all(line["cpu"] > 0 for line in run.timing)
    assert summary.cpu_seconds == pytest.approx(sum(line["cpu"] for line in run.timing))
    clock = sum(
        value
        for line in run.timing
        for name, value in line.items()
        if name not in ("round", "cpu", "clients")
    )
    assert summary.seconds == pytest.approx(clock)
