"""SIGKILL at any moment, again and again: the resumed run ends with the same bits as one never disturbed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from killed_run import SETTINGS, register

import proxyfl
from proxyfl.methods import registry
from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory

SCRIPT = Path(__file__).with_name("killed_run.py")
KILLS = 12

Moment = Callable[[Path, float], bool]
"""(run directory, seconds since the process was ready) → whether to kill now."""


def after(delay: float) -> Moment:
    return lambda where, seconds: seconds >= delay


def creating(where: Path, seconds: float) -> bool:
    return RunDirectory(where).aside.exists()


def creating_with_config(where: Path, seconds: float) -> bool:
    return (RunDirectory(where).aside / "config.toml").exists()


def created(where: Path, seconds: float) -> bool:
    return where.exists()


def writing_a_model(where: Path, seconds: float) -> bool:
    return any((where / "models").glob(".*.aside"))


def writing_a_checkpoint(least: int) -> Moment:
    """Of the round ``least`` or a later one."""
    wanted = {f".round-{round:08d}.aside" for round in range(least, SETTINGS["rounds"] + 1)}
    return lambda where, seconds: any((where / "checkpoints" / name).exists() for name in wanted)


def clients_ahead(least: int) -> Moment:
    """A client has written its state of a round, ``least`` or later, that no checkpoint holds yet."""

    def now(where: Path, seconds: float) -> bool:
        written = {int(file.stem[6:]) for file in where.glob("clients/*/*/round-*.safetensors")}
        committed = {int(folder.name[6:]) for folder in where.glob("checkpoints/round-*")}
        return max(written, default=0) > max(committed, default=0) and max(written) >= least

    return now


def moments(seed: int) -> Iterator[Moment]:
    """Kills inside the creation of the directory first, then some inside writing, then at random."""
    draw = random.Random(seed)
    yield from (creating, creating_with_config, after(draw.uniform(0, 0.05)), created)
    yield from (writing_a_checkpoint(1), writing_a_model, clients_ahead(4), writing_a_checkpoint(5))
    while True:
        yield after(draw.uniform(0.1, 2.0))
        yield clients_ahead(7)


def go_on(where: Path, moment: Moment) -> bool:
    """Start or resume the run in a real process, kill it at the moment; whether it finished before."""
    known = where.exists() or (RunDirectory(where).aside / "config.toml").exists()
    command = [sys.executable, str(SCRIPT), "resume" if known else "run", str(where)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        started = time.monotonic()
        while process.poll() is None and not moment(where, time.monotonic() - started):
            time.sleep(0.0002)
    finally:
        process.kill()
    output, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return output.endswith("finished\n")


def result(where: Path) -> dict[str, bytes]:
    newest = checkpoint.folders(RunDirectory(where))[0]
    files = [where / "metrics.jsonl", newest / "state.safetensors", newest / "metrics.jsonl"]
    files += [
        *(where / "models").iterdir(),
        *(where / "snapshots").iterdir(),
        *where.rglob("clients/**/*.safetensors"),
    ]
    return {str(file.relative_to(where)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    where = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_recipes", dict(registry._recipes))
        register()
        proxyfl.Experiment("counting", "digits", **SETTINGS).run(where)
    return result(where)


def test_killed_again_and_again(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    kills, runs = 0, 0
    where = tmp_path / "run-0"
    plan = moments(seed=2024)
    rounds_at_kill = []
    while kills < KILLS:
        if go_on(where, next(plan)):
            assert result(where) == undisturbed
            runs += 1
            where = tmp_path / f"run-{runs}"
            continue
        kills += 1
        rounds_at_kill.append(len(proxyfl.Run(where).metrics) if where.exists() else -1)
    finished = go_on(where, lambda where, seconds: False)
    assert finished
    assert result(where) == undisturbed
    # kills did land before the directory was there, and in the middle of a run
    assert min(rounds_at_kill) == -1
    assert sum(0 < rounds < SETTINGS["rounds"] for rounds in rounds_at_kill) >= 4, rounds_at_kill
    timing = [line["round"] for line in proxyfl.Run(where).timing]
    assert timing == sorted(set(timing))
    assert not list(where.parent.glob(".*.creating"))
    assert not list(where.rglob("*.aside"))
