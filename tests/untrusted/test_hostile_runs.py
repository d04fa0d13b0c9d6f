"""Run directories of strangers, whose checksums are right: every verb answers, or says why not in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hostile_runs import TAMPERS, copy_of, make_run
from PIL import Image
from typer.testing import CliRunner

from proxyfl.cli import app
from proxyfl.report.dashboard.watch import Library
from proxyfl.report.html.page import render
from proxyfl.report.html.pieces import TROUBLE

VERBS = ("ls", "show", "validate", "table", "report", "eval", "predict", "resume")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    Image.new("L", (8, 8)).save(folder / "a.png")
    return make_run(folder / "runs" / "run")


def words(verb: str, run: Path, image: Path) -> list[str]:
    """A verb as a user calls it about this run."""
    more = {"report": ["--output", str(run.parent.parent / "page.html")], "predict": [str(image)]}
    place = run.parent if verb in ("ls", "table") else run
    return [verb, str(place), *more.get(verb, [])]


def check(name: str, sound: Path, place: Path, verbs: tuple[str, ...] = VERBS) -> dict[str, int]:
    run = copy_of(sound, place / "runs" / "run")
    TAMPERS[name](run)
    codes = {}
    for verb in verbs:
        result = CliRunner().invoke(app, words(verb, run.path, sound.parent.parent / "a.png"))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise AssertionError(f"{name}: {verb} ended in a traceback") from result.exception
        assert result.exit_code in (0, 2), f"{name}: {verb} {result.output}"
        printed = result.output.replace("\n", "").replace("\t", "")
        assert printed.isprintable(), f"{name}: {verb} printed {printed!r}"
        codes[verb] = result.exit_code
    page = place / "page.html"
    if page.exists():
        assert "<script>alert" not in page.read_text(encoding="utf-8")
    library = Library(place / "runs")
    json.dumps(library.statuses(), allow_nan=False)
    try:
        data = library.data(["run"])
    except TROUBLE:
        return codes
    if data is not None:
        assert "<script>alert" not in render(data)
    return codes


def test_the_sound_run_passes_all(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TAMPERS, "nothing", lambda run: None)
    assert set(check("nothing", sound, tmp_path).values()) == {0}


FEW = (
    *("accuracy text", "accuracy huge", "failed evil", "losses text", "traffic evil", "nested metrics"),
    *("timing evil", "root list", "root zero", "evil data", "card classes", "card size", "card width"),
    *("state weights", "state versions", "partition out of range", "manifest run evil", "snapshot shapes"),
)
"""Those of every test run; `make test-full` tries all of them."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in TAMPERS]
)
def test_a_strangers_run(name: str, sound: Path, tmp_path: Path) -> None:
    check(name, sound, tmp_path)
