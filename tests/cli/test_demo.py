from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from calling import FLAGS, SETTINGS
from proxyfl import Experiment, Run
from proxyfl.cli import app
from proxyfl.cli.demo import METHODS, claim, plan
from proxyfl.core.errors import RunError
from proxyfl.runs import batch
from proxyfl.runs.batch import Job
from proxyfl.runs.directory import RunDirectory


def demo(folder, *flags):
    return CliRunner().invoke(app, ["demo", "--runs", str(folder), "--rounds", "2", *FLAGS, *flags])


def jobs_of(folder: Path, rounds: int = 2) -> list[Job]:
    return plan(folder, [1], rounds, SETTINGS)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """One demo, from nothing to its pictures; its runs are made one after the other in this process."""
    folder = tmp_path_factory.mktemp("demo")

    def one_by_one(jobs, side_by_side=0, look=lambda failed: None):
        failed = {job.path: trouble for job in jobs if (trouble := batch.finish(job, 0, ()))}
        look(failed)
        return failed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "train_all", one_by_one)
        result = demo(folder)
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.fixture
def folder(shown, tmp_path):
    """A copy of the finished demo."""
    return Path(shutil.copytree(shown[0], tmp_path / "demo"))


def test_it_ends_with_a_table_and_pictures(shown):
    folder, result = shown
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == list(METHODS)
    for job in jobs_of(folder):
        assert f"{100 * Run(job.path).summary.mean_last:.2f}" in result.stdout
        assert Run(job.path).finished
    for name in ("accuracy", "partition"):
        assert f"{folder / name}.png" in result.stdout
        assert all((folder / f"{name}.{kind}").stat().st_size > 100 for kind in ("png", "svg", "csv"))
        with Image.open(folder / f"{name}.png") as picture:
            picture.verify()


def test_progress_goes_to_stderr_a_line_per_run_without_a_terminal(shown):
    folder, result = shown
    lines = result.stderr.splitlines()
    assert lines[0].startswith("3 of 3 runs to train")
    ends = {job.name: 100 * Run(job.path).summary.last for job in jobs_of(folder)}
    assert set(lines[1:]) == {f"{name}: finished, accuracy {value:.2f} %" for name, value in ends.items()}


@pytest.mark.slow
def test_parallel_runs_have_the_bits_of_sequential_ones(shown, tmp_path):
    assert demo(tmp_path).exit_code == 0
    for job, alone in zip(jobs_of(tmp_path), jobs_of(shown[0]), strict=True):
        for file in ("metrics.jsonl", "models/last.safetensors"):
            assert (alone.path / file).read_bytes() == (job.path / file).read_bytes()


def test_finished_runs_are_used_again(folder, monkeypatch):
    monkeypatch.setattr(batch, "train_all", lambda *_: pytest.fail("nothing is left to train"))
    table = folder / "new" / "table.md"
    result = demo(folder, "--markdown", str(table))
    assert result.exit_code == 0, result.output
    assert "to train" not in result.stderr
    first, _, heading, _, *rows = table.read_text().splitlines()
    assert first == f"<!-- proxyfl demo --seeds 1 --first-seed 1 --rounds 2 {' '.join(FLAGS)} -->"
    assert heading.startswith("| method | accuracy, mean of last 2 rounds (%) |")
    assert [row.split(" | ")[0] for row in rows[:3]] == [f"| {method}" for method in METHODS]


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_ends_the_same(folder):
    class Stop:
        def round_started(self, round, clients):
            if round == 2:
                raise KeyboardInterrupt

        def answered(self, answer): ...

        def round_finished(self, report): ...

    job = jobs_of(folder)[0]
    whole = (job.path / "metrics.jsonl").read_bytes()
    shutil.rmtree(job.path)
    with pytest.raises(KeyboardInterrupt):
        Experiment(config=job.config).run(job.path, [Stop()])
    assert len(Run(job.path).metrics) == 1
    result = demo(folder)
    assert result.stderr.startswith("1 of 3 runs to train")
    assert (job.path / "metrics.jsonl").read_bytes() == whole


def test_fresh_deletes_what_the_demo_made_and_nothing_else(folder):
    (folder / "notes.txt").write_text("mine")
    shutil.copytree(jobs_of(folder)[0].path, folder / "my-own-run")
    claim(folder, jobs_of(folder), fresh=True)
    assert not any(job.path.exists() for job in jobs_of(folder))
    assert (folder / "notes.txt").read_text() == "mine"
    assert Run(folder / "my-own-run").finished
    noted = json.loads((folder / "demo.json").read_text())["runs"]
    assert noted == sorted(job.path.name for job in jobs_of(folder))


def test_fresh_keeps_runs_of_the_same_name_that_others_made(folder):
    (folder / "demo.json").unlink()
    result = demo(folder, "--fresh")
    assert result.exit_code == 2
    assert "is not the demo's own and is kept" in result.stderr
    assert all(Run(job.path).finished for job in jobs_of(folder))


def test_fresh_does_not_delete_a_run_that_is_being_written(folder):
    job = jobs_of(folder)[0]
    with RunDirectory(job.path).locked(), pytest.raises(RunError, match="written by another process"):
        claim(folder, jobs_of(folder), fresh=True)
    assert Run(job.path).finished


def test_a_run_with_other_settings_is_not_taken_for_ours(folder):
    config = jobs_of(folder)[0].path / "config.toml"
    config.write_text(config.read_text().replace("last_rounds = ", "last_rounds = 1"))
    with pytest.raises(RunError, match=r"other settings.*--fresh"):
        claim(folder, jobs_of(folder), fresh=False)


def test_a_damaged_ledger_is_named(folder):
    (folder / "demo.json").write_text("[]")
    with pytest.raises(RunError, match=r"demo\.json is damaged"):
        claim(folder, jobs_of(folder), fresh=False)


def test_other_settings_make_other_runs(tmp_path):
    names = [job.path.name for rounds in (2, 3) for job in jobs_of(tmp_path, rounds)]
    names += [job.path.name for job in plan(tmp_path, [2, 3], 2, SETTINGS)]
    assert len(set(names)) == 12


def test_a_wrong_setting_is_refused_before_anything_is_written(tmp_path):
    result = demo(tmp_path / "demo", "--set", "train.epoch=3")
    assert result.exit_code == 2
    assert not (tmp_path / "demo").exists()


def test_without_matplotlib_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = demo(tmp_path / "demo")
    assert result.exit_code == 2
    assert "proxyfl[plot]" in result.stderr
    assert not (tmp_path / "demo").exists()


@pytest.fixture
def running(tmp_path):
    """A demo in a process group of its own, some rounds into its first runs."""
    command = [sys.executable, "-m", "proxyfl", "demo", "--runs", str(tmp_path), "--rounds", "500", *FLAGS]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    first = jobs_of(tmp_path, rounds=500)[-1]
    wait_until(lambda: first.path.exists() and Run(first.path).metrics, "a round is over")
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_ctrl_c_ends_the_children_and_says_how_to_go_on(running, tmp_path):
    os.killpg(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "the same command continues" in told
    assert "Traceback" not in told
    assert all(is_free(path) for path in tmp_path.glob("digits-*"))


@pytest.mark.slow
def test_children_end_when_the_demo_is_killed(running, tmp_path):
    running.kill()
    running.communicate(timeout=120)
    wait_until(lambda: all(is_free(path) for path in tmp_path.glob("digits-*")), "the children end")


def is_free(path: Path) -> bool:
    try:
        with RunDirectory(path).locked():
            return True
    except RunError:
        return False


def wait_until(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited too long until {what}"
        time.sleep(0.1)


def test_the_verb_is_light_to_import():
    code = "import sys, proxyfl.cli.demo; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
