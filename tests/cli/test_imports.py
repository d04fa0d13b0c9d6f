"""Verbs that read text and tables start without torch: its import costs more than all they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CALLS = """
import sys
from proxyfl.cli import main
calls = ["ls {runs}", "ls {runs} --json", "show {run} --json", "config ls", "data ls"]
for call in map(str.split, calls):
    sys.argv = ["proxyfl", *call]
    try:
        main()
    except SystemExit as end:
        assert not end.code, call
    assert "torch" not in sys.modules, call
"""


def test_reading_runs_presets_and_sources_needs_no_torch(tiny: Path) -> None:
    program = CALLS.format(runs=tiny.parent, run=tiny)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert tiny.name in done.stdout


EARLY = """
import sys
from proxyfl.cli import main, resume, run
def early(workers):
    assert "torch" not in sys.modules
    sys.exit(f"early with {workers}")
resume.start_early = run.start_early = early
sys.argv = ["proxyfl", *sys.argv[1:], "--workers", "2"]
main()
"""


@pytest.mark.parametrize("verb", ["run", "resume"])
def test_workers_are_started_before_torch_is_imported(tiny: Path, verb: str) -> None:
    call = [sys.executable, "-c", EARLY, verb, "digits" if verb == "run" else str(tiny)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.stderr.strip() == "early with 2"
