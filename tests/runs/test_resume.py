"""Going on with a run: whatever happened to it, the end is the same to the bit or the error is clear."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import proxyfl
from proxyfl.cli import app
from proxyfl.core.errors import RunError
from proxyfl.core.state import Tensors
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.loop import RoundReport
from proxyfl.methods import registry
from proxyfl.methods.base import Method
from proxyfl.methods.context import ClientContext
from proxyfl.methods.registry import Recipe
from proxyfl.runs import checkpoint, experiment, manifests, recording
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.export import load_model
from proxyfl.runs.recorder import Recorder
from proxyfl.runs.repair import is_whole
from proxyfl.runs.run import Run
from toybox import LITTLE, Stopped, Told

SETTINGS: dict[str, Any] = {
    **LITTLE,
    "rounds": 4,
    "subset": 120,
    "method__tau": 0.2,
    "method__gpt__epochs": 3,
}


def begin(where: Path, stop_after: int | None = None, **options: Any) -> None:
    told = Told(stop_after=stop_after)
    made = proxyfl.Experiment("proxyfl", "digits", **{**SETTINGS, **options})
    if stop_after is None:
        made.run(where, [told])
    else:
        with pytest.raises(Stopped):
            made.run(where, [told])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("finished") / "run"
    begin(where)
    return where


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("stopped") / "run"
    begin(where, stop_after=2)
    return where


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A run that was stopped after round 2 of 4; each test gets its own copy to spoil."""
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


def result(where: Path) -> dict[str, bytes]:
    """Everything in a run that must not depend on interruptions."""
    newest = manifests.folders(RunDirectory(where))[0]
    files = [where / name for name in ("metrics.jsonl", "clients.jsonl", "partition.safetensors")]
    files += [newest / "state.safetensors"]
    files += [*(where / "models").iterdir(), *(where / "snapshots").iterdir(), *newest.iterdir()]
    return {str(file.relative_to(where)): file.read_bytes() for file in files if file.name != "manifest.json"}


def tree(where: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(where)): p.read_bytes()
        for p in where.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


def newest(where: Path) -> Path:
    return manifests.folders(RunDirectory(where))[0]


def test_stopped_and_resumed(stopped: Path, finished: Path) -> None:
    assert not Run(stopped).finished
    run = proxyfl.resume(stopped)
    assert run.finished
    assert result(stopped) == result(finished)
    assert [line["event"] for line in run.events] == ["created", "started", "resumed", "finished"]
    assert run.events[2]["round"] == 2


@pytest.mark.parametrize("stop", [1, 3])
def test_stopped_after_any_round(tmp_path: Path, finished: Path, stop: int) -> None:
    begin(tmp_path / "run", stop_after=stop)
    proxyfl.resume(tmp_path / "run")
    assert result(tmp_path / "run") == result(finished)


def test_stopped_again_and_again(tmp_path: Path, finished: Path) -> None:
    where = tmp_path / "run"
    begin(where, stop_after=1)
    for stop in (2, 3):
        with pytest.raises(Stopped):
            proxyfl.resume(where, [Told(stop_after=stop)])
    proxyfl.resume(where)
    assert result(where) == result(finished)
    assert [line["round"] for line in Run(where).timing] == [1, 2, 3, 4]


def test_observers_see_only_the_rounds_that_are_left(stopped: Path) -> None:
    told = Told()
    proxyfl.resume(stopped, [told])
    assert [report.state.round for report in told.reports] == [3, 4]


def test_a_finished_run_is_left_as_it_is(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    told = Told()
    run = proxyfl.resume(finished, [told])
    assert run.finished
    assert told.calls == []
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before


def test_what_is_no_run(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(RunError, match="is not a run; 'proxyfl ls'"):
            proxyfl.resume(where)


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def write_manifest(folder: Path, changes: dict[str, Any]) -> None:
    file = folder / "manifest.json"
    manifest = {**json.loads(file.read_bytes())["manifest"], **changes}
    file.write_bytes(manifests.with_checksum(manifest))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit of the state": lambda folder: flip_a_bit(folder / "state.safetensors"),
    "half of the state": lambda folder: (folder / "state.safetensors").write_bytes(
        (folder / "state.safetensors").read_bytes()[:1000]
    ),
    "no state": lambda folder: (folder / "state.safetensors").unlink(),
    "a bit of the config": lambda folder: flip_a_bit(folder / "config.toml"),
    "a bit of the manifest": lambda folder: flip_a_bit(folder / "manifest.json"),
    "an empty manifest": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "a list for a manifest": lambda folder: (folder / "manifest.json").write_bytes(b"[1]"),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "another format": lambda folder: write_manifest(folder, {"format": 9}),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_newest_checkpoint_is_passed_over(
    stopped: Path, finished: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert newest(stopped).name == "round-00000002"
    DAMAGE[damage](newest(stopped))
    told = Told()
    run = proxyfl.resume(stopped, [told])
    assert [report.state.round for report in told.reports] == [2, 3, 4]
    assert result(stopped) == result(finished)
    assert "round-00000002" in capsys.readouterr().err
    warnings = [line["text"] for line in run.events if line["event"] == "warning"]
    assert len(warnings) == 1
    assert warnings[0].endswith("; using the checkpoint before it")
    assert [line["round"] for line in run.timing] == [1, 2, 3, 4]


def test_no_intact_checkpoint_is_an_error_that_names_the_damage(stopped: Path) -> None:
    for folder in manifests.folders(RunDirectory(stopped)):
        flip_a_bit(folder / "state.safetensors")
    before = tree(stopped)
    with pytest.raises(RunError, match=r"no intact checkpoint \(.*round-00000002.*round-00000001"):
        proxyfl.resume(stopped)
    assert tree(stopped) == before


def test_half_a_checkpoint_is_no_checkpoint(stopped: Path, finished: Path) -> None:
    """What a process killed in the middle of writing leaves behind."""
    aside = stopped / "checkpoints" / ".round-00000003.aside"
    shutil.copytree(newest(stopped), aside)
    (aside / "manifest.json").unlink()
    (stopped / "models" / ".last.safetensors.123.aside").write_bytes(b"half")
    (stopped / "spool-abc").mkdir()
    (stopped / "spool-abc" / "0.safetensors").write_bytes(b"half")
    proxyfl.resume(stopped)
    assert result(stopped) == result(finished)
    assert not aside.exists()
    assert not list(stopped.glob("spool-*"))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("rounds = 4", "rounds = 5"),
        lambda text: text.replace("seed = 1", "seed = 2", 1),
        lambda text: text + "\n# a comment\n",
        lambda text: text[: len(text) // 2],
    ],
)
def test_a_changed_config_is_refused_and_nothing_is_lost(
    stopped: Path, finished: Path, change: Callable[[str], str]
) -> None:
    config = stopped / "config.toml"
    original = config.read_text()
    config.write_text(change(original))
    assert config.read_text() != original
    before = tree(stopped)
    with pytest.raises(RunError, match=r"was changed .*'cp ") as caught:
        proxyfl.resume(stopped)
    assert tree(stopped) == before
    words = str(caught.value).split("'")[1].split()
    assert words[0] == "cp"
    shutil.copyfile(words[1], words[2])  # the cure that the message names
    proxyfl.resume(stopped)
    assert result(stopped) == result(finished)


def test_the_cure_names_an_intact_checkpoint(stopped: Path) -> None:
    flip_a_bit(newest(stopped) / "config.toml")
    (stopped / "config.toml").write_text("# lost")
    with pytest.raises(RunError, match=r"round-00000001/config\.toml"):
        proxyfl.resume(stopped)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_partition_is_made_again(
    stopped: Path, finished: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stopped / "partition.safetensors"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        flip_a_bit(file)
    with pytest.raises(Stopped):
        proxyfl.resume(stopped, [Told(stop_after=3)])
    assert "partition.safetensors is damaged" in capsys.readouterr().err
    proxyfl.resume(stopped)  # by now the damage must not have been taken for the truth
    assert "damaged" not in capsys.readouterr().err
    assert result(stopped) == result(finished)


def test_the_partition_of_the_file_is_used(stopped: Path) -> None:
    """Not one made anew: another version might make it differently."""
    seen: list[Any] = []
    original = experiment.prepare

    def watching(config: Any, root: Any, partition: Any = None) -> Any:
        seen.append(partition)
        return original(config, root, partition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "prepare", watching)
        with pytest.raises(Stopped):
            proxyfl.resume(stopped, [Told(stop_after=3)])
    assert seen[0].clients == 4


def test_a_damaged_environment_does_not_stop_a_run(stopped: Path, finished: Path) -> None:
    (stopped / "environment.json").write_bytes(b"{")
    proxyfl.resume(stopped)
    assert result(stopped) == result(finished)


def test_tampered_metrics_are_restored(stopped: Path, finished: Path) -> None:
    metrics = stopped / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"round": 1', b'"round": 7') + b'{"round": 3}\n{"ro')
    timing = stopped / "timing.jsonl"
    timing.write_text(timing.read_text() + '{"round": 3, "train": 1.0}\n{"round": 4, "trai')
    run = proxyfl.resume(stopped)
    assert result(stopped) == result(finished)
    assert [line["round"] for line in run.timing] == [1, 2, 3, 4]


@pytest.mark.parametrize("which", ["metrics.jsonl", "checkpoints/metrics.copy.jsonl"])
def test_one_copy_of_the_metrics_is_enough(stopped: Path, finished: Path, which: str) -> None:
    flip_a_bit(stopped / which)
    assert Run(stopped).metrics == Run(finished).metrics[:2]
    proxyfl.resume(stopped)
    assert result(stopped) == result(finished)
    copied = (stopped / "checkpoints" / "metrics.copy.jsonl").read_bytes()
    assert copied == (stopped / "metrics.jsonl").read_bytes()


def test_without_either_copy_of_metrics_an_older_checkpoint_is_used(stopped: Path, finished: Path) -> None:
    for which in ("metrics.jsonl", "checkpoints/metrics.copy.jsonl"):
        file = stopped / which
        file.write_bytes(file.read_bytes()[:-10])
    told = Told()
    run = proxyfl.resume(stopped, [told])
    assert [report.state.round for report in told.reports] == [2, 3, 4]
    assert result(stopped) == result(finished)
    warnings = [line["text"] for line in run.events if line["event"] == "warning"]
    assert "metrics.jsonl and its copy" in warnings[0]


def test_where_nobody_vouches_for_metrics_both_copies_must_agree(stopped: Path, finished: Path) -> None:
    for folder in manifests.folders(RunDirectory(stopped)):
        flip_a_bit(folder / "manifest.json")
    assert Run(stopped).metrics == Run(finished).metrics[:2]
    metrics = stopped / "metrics.jsonl"
    first, second = metrics.read_bytes().splitlines(keepends=True)
    for damaged in (
        first + second.replace(b'"round": 2', b'"round": 3'),
        first.replace(b'"round": 1', b'"round": 3') + second,
    ):
        metrics.write_bytes(damaged)
        with pytest.raises(RunError, match="and its copy are damaged"):
            _ = Run(stopped).metrics


def test_where_nobody_vouches_for_the_partition_it_is_not_shown(stopped: Path) -> None:
    assert Run(stopped).partition.clients
    for folder in manifests.folders(RunDirectory(stopped)):
        flip_a_bit(folder / "manifest.json")
    with pytest.raises(RunError, match="cannot be verified"):
        _ = Run(stopped).partition


def test_a_checkpoint_costs_as_much_after_many_rounds(finished: Path) -> None:
    """Metrics are not among its files: what is written does not grow with the square of the rounds."""
    manifest = json.loads((newest(finished) / "manifest.json").read_bytes())["manifest"]
    content = (finished / "metrics.jsonl").read_bytes()
    assert manifest["metrics"] == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert sorted(manifest["files"]) == ["config.toml", "state.safetensors"]


def test_metrics_of_a_finished_run_are_restored_too(finished: Path, tmp_path: Path) -> None:
    """A machine that lost its power may lose the last line of a file that was not flushed."""
    where = Path(shutil.copytree(finished, tmp_path / "run"))
    content = (where / "metrics.jsonl").read_bytes()
    (where / "metrics.jsonl").write_bytes(content[:-200])
    assert proxyfl.resume(where).finished
    assert (where / "metrics.jsonl").read_bytes() == content


def test_models_and_snapshots_come_back(stopped: Path, finished: Path) -> None:
    shutil.rmtree(stopped / "snapshots")
    (stopped / "snapshots").mkdir()
    (stopped / "models" / "last.safetensors").unlink()
    proxyfl.resume(stopped)
    ours, theirs = result(stopped), result(finished)
    assert ours["models/last.safetensors"] == theirs["models/last.safetensors"]
    assert ours["snapshots/round-00000004.safetensors"] == theirs["snapshots/round-00000004.safetensors"]


@pytest.mark.parametrize("every", [2, 3])
def test_checkpoints_every_few_rounds(tmp_path: Path, finished: Path, every: int) -> None:
    where = tmp_path / "run"
    begin(where, stop_after=3, keep__checkpoint_every=every)
    told = Told()
    proxyfl.resume(where, [told])
    assert told.reports[0].state.round == (3 if every == 2 else 4)
    assert (where / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()
    state = (newest(where) / "state.safetensors").read_bytes()
    assert state == (newest(finished) / "state.safetensors").read_bytes()
    best = "models/best.safetensors"
    assert (where / best).read_bytes() == (finished / best).read_bytes()


def test_a_second_process_is_refused(stopped: Path, finished: Path) -> None:
    script = f"""
        import sys
        from proxyfl.runs.directory import RunDirectory
        with RunDirectory({str(stopped)!r}).locked():
            print("locked", flush=True)
            sys.stdin.read()
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        before = tree(stopped)
        with pytest.raises(RunError, match="being written by another process"):
            proxyfl.resume(stopped)
        assert tree(stopped) == before
    finally:
        holder.kill()  # the lock ends with the process, however it ends
        holder.wait()
    proxyfl.resume(stopped)
    assert result(stopped) == result(finished)


def write_npz(file: Path, seed: int = 0) -> None:
    draw = np.random.default_rng(seed)
    labels = np.arange(120) % 3
    images = (draw.integers(0, 100, (120, 8, 8)) + 50 * labels[:, None, None]).astype(np.uint8)
    np.savez(file, x_train=images[:90], y_train=labels[:90], x_test=images[90:], y_test=labels[90:])


def own_data(root: Path) -> proxyfl.Experiment:
    options = {**LITTLE, "data__name": "npz:mine.npz", "labels__per_class": 5}
    return proxyfl.Experiment("fedavg", "digits", data_root=root, **options)


def test_other_data_is_refused_and_the_right_one_found_elsewhere(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    write_npz(old / "mine.npz")
    straight = own_data(old).run(tmp_path / "straight")
    where = tmp_path / "run"
    with pytest.raises(Stopped):
        own_data(old).run(where, [Told(stop_after=1)])
    (old / "mine.npz").rename(new / "mine.npz")
    with pytest.raises(proxyfl.ProxyFLError, match=r"mine\.npz"):
        proxyfl.resume(where)
    write_npz(old / "mine.npz", seed=1)
    before = tree(where)
    with pytest.raises(RunError, match=r"is not the data .*--data-root"):
        proxyfl.resume(where)
    assert tree(where) == before
    proxyfl.resume(where, data_root=new)
    assert result(where) == result(straight.path)


@pytest.mark.parametrize("moment", ["partition", "checkpoint"])
def test_a_creation_that_was_cut_short_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The data root that was given on the command line is remembered."""
    write_npz(tmp_path / "mine.npz")
    straight = own_data(tmp_path).run(tmp_path / "straight")
    where = tmp_path / "runs" / "run"

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            *((recording, "write_tensors") if moment == "partition" else (checkpoint, "save")), interrupt
        )
        with pytest.raises(KeyboardInterrupt):
            own_data(tmp_path).run(where)
    assert not where.exists()
    run = proxyfl.resume(where)
    assert run.finished
    assert result(where) == result(straight.path)
    assert [path.name for path in where.parent.iterdir()] == ["run"]


class Counting(Method):
    """Its loss depends on how often the client took part: the wrong version would show in the weights."""

    name = "counting"
    keeps = "how often it took part"

    def begin(self, ctx: ClientContext) -> None:
        ctx.state = {"times": ctx.state.get("times", torch.zeros(())) + 1}

    def learning_rate(self, shared: float) -> float:
        return shared / 10

    def losses(self, outputs: Any, ctx: ClientContext) -> Tensors:
        return {"times": ctx.state["times"] * outputs.x.square().mean()}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_recipes", dict(registry._recipes))
    registry.register(Recipe("counting", "state that matters", Counting))


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    ("every", "stop"),
    [pytest.param(1, 5, marks=pytest.mark.slow), (2, 5), pytest.param(3, 5, marks=pytest.mark.slow)],
)
def test_client_states_reach_back_as_far_as_the_checkpoints(tmp_path: Path, every: int, stop: int) -> None:
    options = {**LITTLE, "rounds": 7, "per_round": 4, "subset": 64, "keep__checkpoint_every": every}
    straight = proxyfl.Experiment("counting", "digits", **options).run(tmp_path / "straight")
    for damaged in (False, True):
        where = tmp_path / f"run-{damaged}"
        with pytest.raises(Stopped):
            proxyfl.Experiment("counting", "digits", **options).run(where, [Told(stop_after=stop)])
        if damaged:
            flip_a_bit(newest(where) / "state.safetensors")
        run = proxyfl.resume(where)
        assert run.metrics == straight.metrics
        assert all(line["failed"] == {} for line in run.metrics)
        assert (newest(where) / "state.safetensors").read_bytes() == (
            newest(straight.path) / "state.safetensors"
        ).read_bytes()


@pytest.fixture(scope="module")
def counted_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``run``, of a method with client states, stopped after round 3 of 4; and ``straight``."""
    folder = tmp_path_factory.mktemp("counted")
    options = {**LITTLE, "rounds": 4, "per_round": 4, "subset": 120}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_recipes", dict(registry._recipes))
        registry.register(Recipe("counting", "state that matters", Counting))
        proxyfl.Experiment("counting", "digits", **options).run(folder / "straight")
        with pytest.raises(Stopped):
            proxyfl.Experiment("counting", "digits", **options).run(folder / "run", [Told(stop_after=3)])
    return folder


@pytest.fixture
def half_counted(tmp_path: Path, counting: None, counted_once: Path) -> tuple[Path, Run]:
    """A copy of the stopped run, to be spoilt; and the same one undisturbed."""
    where = Path(shutil.copytree(counted_once / "run", tmp_path / "run"))
    return where, Run(counted_once / "straight")


def state_of(where: Path, client: int, round: int) -> Path:
    return where / "clients" / "000000" / f"{client:09d}" / f"round-{round:08d}.safetensors"


@pytest.mark.parametrize("damage", ["flip", "gone", "another's"])
def test_a_damaged_client_state_of_the_last_round_is_made_again(
    half_counted: tuple[Path, Run], damage: str
) -> None:
    where, straight = half_counted
    file = state_of(where, 2, 3)
    if damage == "flip":
        flip_a_bit(file)
    elif damage == "gone":
        file.unlink()
    else:
        shutil.copyfile(state_of(where, 1, 3), file)
    told = Told()
    run = proxyfl.resume(where, [told])
    assert [report.state.round for report in told.reports] == [3, 4]
    assert run.metrics == straight.metrics
    assert file.read_bytes() == state_of(straight.path, 2, 3).read_bytes()
    warnings = [line["text"] for line in run.events if line["event"] == "warning"]
    assert warnings[0].startswith("the state of client 2 from round 3 is ")
    assert "start again" not in warnings[0]


@pytest.mark.parametrize(("damage", "words"), [("gone", "is gone: "), ("flip", "is damaged: ")])
def test_a_client_state_that_cannot_be_made_again_ends_the_run_with_words(
    half_counted: tuple[Path, Run], damage: str, words: str
) -> None:
    where, straight = half_counted
    for client in range(4):
        for file in state_of(where, client, 3).parent.iterdir():
            file.unlink() if damage == "gone" else flip_a_bit(file)
    with pytest.raises(RunError, match=f"client 0 from round 2 {words}.*restore it"):
        proxyfl.resume(where)
    shutil.copytree(straight.path / "clients", where / "clients", dirs_exist_ok=True)
    assert proxyfl.resume(where).metrics == straight.metrics


@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.parametrize("rounds", [2, 4])
def test_a_damaged_model_comes_back(
    stopped: Path, finished: Path, tmp_path: Path, which: str, rounds: int
) -> None:
    where = stopped if rounds == 2 else Path(shutil.copytree(finished, tmp_path / "whole"))
    flip_a_bit(where / "models" / f"{which}.safetensors")
    with pytest.raises(RunError, match=f"{which}.safetensors .*damaged"):
        Run(where).model(which)
    proxyfl.resume(where)
    assert result(where) == result(finished)


def test_a_best_model_without_a_copy_is_said_to_be_lost(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = Path(shutil.copytree(finished, tmp_path / "whole"))
    best = Run(where).summary.best_round
    assert best < 4
    for file in ("models/best.safetensors", "checkpoints/best.safetensors"):
        flip_a_bit(where / file)
    proxyfl.resume(where)
    assert f"the best model, of round {best}, is damaged" in capsys.readouterr().err
    with pytest.raises(RunError, match="damaged"):
        Run(where).model("best")


def test_a_best_model_of_a_round_that_never_counted_does_not_stay(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 4 is the best of all, the run is killed before it counts, and played again it is not."""
    assert Run(finished).summary.best_round < 4
    where = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(newest(where))
    real = Recorder.round_finished

    def shining(self: Recorder, report: RoundReport) -> None:
        report.metrics["accuracy"] = 1.0
        real(self, report)

    def killed(*_: Any, **__: Any) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "round_finished", shining)
        patch.setattr(checkpoint, "save", killed)
        with pytest.raises(Stopped):
            proxyfl.resume(where, workers=0)
    cards = [load_model(where / place / "best.safetensors").card for place in ("models", "checkpoints")]
    assert [card.accuracy for card in cards] == [Run(finished).summary.best, 1.0]
    proxyfl.resume(where, workers=0)
    assert result(where) == result(finished)
    copy = "checkpoints/best.safetensors"
    assert (where / copy).read_bytes() == (finished / copy).read_bytes()


@pytest.mark.parametrize("stale", ["models/best.safetensors", "checkpoints/best.safetensors"])
def test_the_best_model_of_another_round_is_put_right(finished: Path, tmp_path: Path, stale: str) -> None:
    """As a run leaves it that is killed between its last checkpoint and the best model, or before both."""
    where = Path(shutil.copytree(finished, tmp_path / "whole"))
    saved, _ = checkpoint.load_newest(RunDirectory(where))
    assert is_whole(RunDirectory(where), saved)
    shutil.copyfile(where / "models" / "last.safetensors", where / stale)
    assert not is_whole(RunDirectory(where), saved)
    proxyfl.resume(where)
    assert is_whole(RunDirectory(where), saved)
    assert (where / stale).read_bytes() == (finished / stale).read_bytes()


def test_a_damaged_snapshot_is_not_shown(stopped: Path) -> None:
    flip_a_bit(stopped / "snapshots" / "round-00000001.safetensors")
    with pytest.raises(RunError, match=r"round-00000001\.safetensors is damaged"):
        Run(stopped).snapshot(1)


def validated(where: Path) -> str:
    """What ``proxyfl validate`` says, on one line."""
    return " ".join(CliRunner().invoke(app, ["validate", str(where)]).output.split())


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/metrics.copy.jsonl",
        "checkpoints/best.safetensors",
        "snapshots/round-00000001.safetensors",
        "server",
    ],
)
def test_validate_looks_at_copies_snapshots_and_what_the_server_keeps(
    name: str, finished: Path, tmp_path: Path
) -> None:
    where = Path(shutil.copytree(finished, tmp_path / "run"))
    ClientStore(where / "server").save(2, 1, {"weights": torch.ones(8)})
    assert f"OK: {where} is intact" in validated(where)
    kept = where / "server" / "000000" / "000000002" / "round-00000001.safetensors"
    flip_a_bit(kept if name == "server" else where / name)
    assert f"error: {where} is damaged: {name}; resuming it" in validated(where)


def test_resuming_a_finished_run_mends_the_copies(finished: Path, tmp_path: Path) -> None:
    where = Path(shutil.copytree(finished, tmp_path / "run"))
    run, before = RunDirectory(where), tree(where)
    for file in (run.metrics_copy, run.best_copy):
        flip_a_bit(file)
        assert not is_whole(run, checkpoint.load_newest(run)[0])
        assert CliRunner().invoke(app, ["resume", str(where), "--quiet"]).exit_code == 0
        assert tree(where) == before
