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
refused = ["table {nothing}", "table {runs} --where nix=1", "table --each", "comm --scenario nix"]
for call in map(str.split, refused):
    sys.argv = ["proxyfl", *call]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, call
    assert "torch" not in sys.modules, call
"""

FRAMES = """
import sys
import proxyfl
found = proxyfl.results({runs!r}, seed=1)
print(found.runs["run"][0], len(found.rounds))
assert "torch" not in sys.modules
"""


def test_reading_runs_presets_and_sources_needs_no_torch(tiny: Path, tmp_path: Path) -> None:
    program = CALLS.format(runs=tiny.parent, run=tiny, nothing=tmp_path)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert tiny.name in done.stdout
    assert done.stderr.count("error:") == 4


def test_runs_as_data_frames_need_no_torch(tiny: Path) -> None:
    pytest.importorskip("pandas")
    program = FRAMES.format(runs=str(tiny.parent))
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


AGAIN = """
import sys
from proxyfl.cli import main
sys.argv = ["proxyfl", *sys.argv[1:]]
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "call",
    [
        "table {runs}",
        pytest.param("show {run}", marks=pytest.mark.slow),
        pytest.param("table {runs} --format csv", marks=pytest.mark.slow),
        pytest.param("config show digits --method sage", marks=pytest.mark.slow),
        pytest.param("config explain train", marks=pytest.mark.slow),
        pytest.param("paper ls --scale micro --runs {runs}", marks=pytest.mark.slow),
    ],
)
def test_the_second_time_facts_of_the_program_are_read(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setenv("PROXYFL_CACHE", str(tmp_path))
    words = call.format(run=tiny, runs=tiny.parent).split()
    first, second = (
        subprocess.run([sys.executable, "-c", AGAIN, *words], capture_output=True, text=True, timeout=120)
        for _ in range(2)
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert second.stdout == first.stdout != ""
    assert (first.stderr[-5:], second.stderr[-6:]) == ("True\n", "False\n")
