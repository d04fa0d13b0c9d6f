"""Runs side by side in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proxyfl import Experiment, Run
from proxyfl.core import machine
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.machine import usable_cores, usable_memory
from proxyfl.engines.pool import default_workers
from proxyfl.runs import batch
from proxyfl.runs.batch import Job, train_all
from proxyfl.runs.config_file import to_toml
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.sweep import Grid, jobs_of, read_grid
from toybox import gone

COMMON = {
    "partition": {"clients": 4},
    "federation": {"per_round": 2, "rounds": 2},
    "data": {"subset": 150.0},
    "train": {"epochs": 1},
    "model": {"width": 1},
}


def jobs(folder: Path, rounds: int = 2, methods: tuple[str, ...] = ("fedavg", "fedprox")) -> list[Job]:
    common = {**COMMON, "federation": {"per_round": 2, "rounds": rounds}}
    return jobs_of(Grid(methods, common=common), folder)


@pytest.mark.slow
def test_a_failed_run_is_told_and_does_not_stop_the_others(tmp_path: Path) -> None:
    good, bad = jobs(tmp_path)
    RunDirectory(bad.path).checkpoints.mkdir(parents=True)
    (bad.path / "config.toml").write_text(to_toml(bad.config))
    failed = train_all([bad, good], 1)
    assert [*failed] == [bad.path]
    assert "has no intact checkpoint" in failed[bad.path]
    assert Run(good.path).finished
    assert multiprocessing.active_children() == []


def test_a_folder_that_cannot_be_read_is_no_finished_run(tmp_path: Path) -> None:
    """A sweep asks every job before it begins: one broken folder must not stop it."""
    (job,) = jobs(tmp_path, methods=("fedavg",))
    assert not job.finished
    newest = RunDirectory(job.path).checkpoints / f"round-{job.rounds:08d}"
    newest.mkdir(parents=True)
    (newest / "manifest.json").write_text("{}")
    with pytest.raises(RunError):
        _ = Run(job.path).finished
    assert not job.finished
    (job.path / "config.toml").write_text("[method]\nname = 'nonesuch'\n", encoding="utf-8")
    assert not job.finished
    (job.path / "config.toml").write_text(to_toml(job.config), encoding="utf-8")
    assert job.finished


@pytest.mark.slow
def test_a_child_that_is_killed_is_told_and_goes_on_the_next_time(tmp_path: Path) -> None:
    def kill(failed: dict[Path, str]) -> None:
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGKILL)

    (job,) = jobs(tmp_path, methods=("fedavg",))
    failed = train_all([job], 1, kill)
    assert "ended with code -9; " in failed[job.path]
    assert train_all([job], 1) == {}
    told = [event["workers"] for event in Run(job.path).events if event["event"] == batch.BY_WORKERS]
    workers = default_workers(job.config)
    assert told == ([workers] if workers > 1 else [])
    alone = Experiment(config=job.config).run(tmp_path / "alone")
    assert (alone.path / "metrics.jsonl").read_bytes() == (job.path / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_ctrl_c_does_not_reach_a_child_that_is_still_starting(tmp_path: Path) -> None:
    def interrupt(failed: dict[Path, str]) -> None:
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGINT)

    (job,) = jobs(tmp_path, rounds=1, methods=("fedavg",))
    assert train_all([job], 1, interrupt) == {}
    assert job.finished


def test_ctrl_c_while_a_child_is_started_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = multiprocessing.get_context("spawn").Process
    start = kind.start

    def interrupted(process: multiprocessing.Process) -> None:
        start(process)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(kind, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_all(jobs(tmp_path), 1)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_no_more_children_than_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    monkeypatch.setattr(batch, "PAUSE", 0.02)
    both = jobs(tmp_path, rounds=1)
    assert train_all(both, 1, lambda failed: most.append(len(multiprocessing.active_children()))) == {}
    assert max(most) == 1
    assert all(job.finished for job in both)


def test_a_lone_run_gets_the_cores_as_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "usable_cores", lambda: 2)
    monkeypatch.setattr("proxyfl.engines.pool.usable_cores", lambda: 2)
    given: list[int] = []
    told: list[bool] = []
    monkeypatch.setattr(batch, "make_run", lambda *_: None)
    real = multiprocessing.get_context("spawn").Process

    def note(target: object, args: tuple[Job, int, list[str], object, bool], daemon: bool) -> object:
        given.append(args[1])
        told.append(args[4])
        return real(target=print, daemon=daemon)

    monkeypatch.setattr(multiprocessing.get_context("spawn"), "Process", note)
    (job,) = jobs(tmp_path, methods=("fedavg",))
    assert train_all([job]) == {}
    assert train_all(jobs(tmp_path / "two")) == {}
    assert given == [2, 0, 0]
    assert told == [False, False, True], "the first run on data notes how it was read"
    assert batch._room([job]) == 2


@pytest.mark.slow
def test_a_child_in_the_middle_of_a_client_ends_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "sweep.py"
    script.write_text(
        "from pathlib import Path\n"
        "from proxyfl.core import plugins\n"
        "from proxyfl.runs.batch import train_all\n"
        "from proxyfl.runs.sweep import Grid, jobs_of\n"
        "if __name__ == '__main__':\n"
        "    plugins.load_plugin('sleepy.py')\n"
        "    train_all(jobs_of(Grid(('sleepy',), seeds=(1, 2)), Path('runs')), 2)\n",
        encoding="utf-8",
    )
    (tmp_path / "sleepy.py").write_text(SLEEPY, encoding="utf-8")
    process = subprocess.Popen([sys.executable, script.name], cwd=tmp_path)
    deadline = time.monotonic() + 90
    while len([*tmp_path.glob("asleep-*")]) < 2 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    children = [int(path.name.partition("-")[2]) for path in tmp_path.glob("asleep-*")]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while not all(gone(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) == 2
    assert all(gone(pid) for pid in children)


SLEEPY = """
import os
import time
from pathlib import Path
from proxyfl.methods.fedavg import FedAvg
from proxyfl.methods.registry import Recipe, register
class Sleepy(FedAvg):
    name = "sleepy"
    def begin(self, ctx):
        Path(f"asleep-{os.getpid()}").touch()
        time.sleep(120)
register(Recipe("sleepy", "never ends a client", Sleepy))
"""


def test_cores_are_counted_where_affinity_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


def test_a_containers_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    whole = usable_memory()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (usable_cores(), usable_memory()) == (64, whole)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1048576\n")
    assert (usable_cores(), usable_memory()) == (2, 1 << 20)


GRID = """
methods = ["fedavg", "fixmatch-gpl"]
data = ["digits", "cifar10"]
seeds = [11, 12]
[vary]
partition.alpha = [0.1, 1]
[set]
federation.rounds = 3
model.width = 1
"""


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(GRID, encoding="utf-8")
    grid = read_grid(file)
    made = jobs_of(grid, tmp_path)
    assert len(grid) == len(made) == len({job.path for job in made}) == 16
    assert made[0].name == "fedavg · digits · alpha 0.1 · seed 11"
    points = {
        (j.config.data.name, j.config.method.name, j.config.partition.alpha, j.config.seed) for j in made
    }
    assert len(points) == 16
    assert {(job.config.federation.rounds, job.config.model.width) for job in made} == {(3, 1)}


def test_a_grid_takes_short_names_wherever_it_names_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(
        "methods = 'fedavg'\n[vary]\nalpha = [0.1, 1]\n[set]\nrounds = 3\nwidth = 1\n", encoding="utf-8"
    )
    configs = [job.config for job in jobs_of(read_grid(file), tmp_path)]
    assert [config.partition.alpha for config in configs] == [0.1, 1]
    assert {(config.federation.rounds, config.model.width) for config in configs} == {(3, 1)}


def test_points_with_the_same_settings_are_one_run(tmp_path: Path) -> None:
    grid = Grid(("fixmatch", "fixmatch-lpl"), seeds=(1, 1), vary={"alpha": [0.1, 0.1]}, common=COMMON)
    assert len(jobs_of(grid, tmp_path)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data = 'digits'", "methods is missing"),
        ("methods = 3", "methods must be a name or a list"),
        ("methods = []", "methods must be a name or a list"),
        ("methods = 'fedavg'\nseeds = 0", "seeds must be"),
        ("methods = 'fedavg'\nseeds = [-1]", "seeds must be"),
        ("methods = 'fedavg'\nvary = 3", "vary must be a table"),
        ("methods = 'fedavg'\n[vary]\nalpha = 3", "vary.alpha must be a list"),
        (
            "methods = 'fedavg'\n[vary]\nseed = [1, 2]",
            "vary.seed: 'seed' cannot be given as a setting; use --seeds",
        ),
        ("methods = 'fedavg'\n[set]\nmethod.name = 'sage'", "set.method.name: .* methods = "),
        ("methods = 'fedavg'\n[vary]\npreset = ['cifar10']", "vary.preset: 'preset' .*; use --data A,B"),
        (
            "methods = 'fedavg'\n[vary]\nalpha = [0.1]\npartition.alpha = [1]",
            "'partition.alpha' is given twice: vary.alpha and vary.partition.alpha; keep one",
        ),
        (
            "methods = 'fedavg'\n[vary]\nalpha = [0.1]\n[set]\npartition.alpha = 1",
            "'partition.alpha' is given twice: vary.alpha and set.partition.alpha; keep one",
        ),
        ("methods = 'fedavg'\nmethod = 3", "unknown key 'method'; did you mean 'methods'?"),
        ("methods = [", "is not TOML"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        read_grid(file)
