"""Ctrl-C in a real process: it says how to continue, and continuing finishes the run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proxyfl.runs.run import Run

ROUNDS = 8
# A shell's background job ignores SIGINT and hands that down; a user's terminal does not.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from proxyfl.cli import main; main()"
)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_says_how_to_continue_and_resume_finishes(call):
    line = [
        sys.executable,
        "-c",
        START,
        "run",
        "--method",
        "fedavg",
        "--name",
        "long",
        "--rounds",
        str(ROUNDS),
    ]
    line += ["--clients", "4", "--per-round", "4", "--subset", "240", "--set", "train.epochs=1"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]
        assert [text.split()[1] for text in lines] == [f"1/{ROUNDS}", f"2/{ROUNDS}"]
        assert "running" in call("ls").stdout
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    stopped = re.search(r"^stopped after round (\d+); continue with: proxyfl resume runs/long$", rest, re.M)
    assert stopped, rest
    assert "Traceback" not in rest
    done = int(stopped[1])
    assert 2 <= done < ROUNDS

    assert "stopped" in call("ls").stdout
    result = call("resume", "runs/long")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith(f"round {done + 1}/{ROUNDS}  accuracy ")
    assert [record["round"] for record in Run("runs/long").metrics] == list(range(1, ROUNDS + 1))


def test_ctrl_c_before_the_run_exists_leaves_nothing(call, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("proxyfl.runs.experiment.prepare", interrupted)
    result = call("run", "--name", "never")
    assert (result.exit_code, result.stderr) == (130, "stopped before the run began; nothing was kept\n")
    assert not Path("runs").exists()
