"""Run directories of strangers, whose checksums are right: every verb answers, or says why not in a line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hostile_runs import EVIL, TAMPERS, copy_of, huge, make_run
from PIL import Image
from rich.text import Text
from typer.testing import CliRunner

from proxyfl.cli import app
from proxyfl.cli.terminal import Terminal
from proxyfl.core.errors import RunError
from proxyfl.report.dashboard.watch import Library
from proxyfl.report.html.page import render
from proxyfl.report.html.pieces import UNREADABLE
from proxyfl.runs import checkpoint, repair

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
    except UNREADABLE:
        return codes
    if data is not None:
        assert "<script>alert" not in render(data)
    return codes


def test_the_sound_run_passes_all(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TAMPERS, "nothing", lambda run: None)
    assert set(check("nothing", sound, tmp_path).values()) == {0}


FEW = (
    *("accuracy huge", "failed evil", "nested metrics"),
    *("card classes", "state versions", "environment nested, stopped"),
)
"""Those of every test run; `make test-full` tries all of them."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in TAMPERS]
)
def test_a_strangers_run(name: str, sound: Path, tmp_path: Path) -> None:
    check(name, sound, tmp_path)


QUICK = ("show", "validate")


@pytest.mark.parametrize(
    "name",
    [
        *("privacy text", "privacy list", "privacy half", "huge metrics.jsonl", "huge timing.jsonl"),
        *(
            "huge config.toml",
            "huge models/last.safetensors",
            "huge checkpoints/round-00000002/manifest.json",
        ),
        *("pipe metrics.jsonl", "pipe .lock", "pipe checkpoints/metrics.copy.jsonl"),
    ],
)
@pytest.mark.timeout(60)
def test_a_strangers_run_is_shown_and_validated(name: str, sound: Path, tmp_path: Path) -> None:
    assert check(name, sound, tmp_path, QUICK)["validate"] == (0 if name == "huge timing.jsonl" else 2)


@pytest.mark.parametrize("place", ["environment.json", "partition.safetensors"])
@pytest.mark.timeout(60)
def test_files_of_terabytes_are_not_hashed(place: str, sound: Path, tmp_path: Path) -> None:
    run = copy_of(sound, tmp_path / "runs" / "run")
    huge(place)(run)
    result = CliRunner().invoke(app, ["validate", str(run.path)])
    assert result.exit_code == 2, result.output
    assert f"is damaged: {place}; resuming" in " ".join(result.output.split())
    saved, _ = checkpoint.load_newest(run)
    assert (repair.intact_partition(run, saved) is None) == (place == "partition.safetensors")
    assert run.data_root() is None or place == "partition.safetensors"


FILES = (
    "config.toml",
    "environment.json",
    "partition.safetensors",
    "metrics.jsonl",
    "clients.jsonl",
    "timing.jsonl",
    "events.jsonl",
)
PLACES = (
    *FILES,
    ".lock",
    "checkpoints",
    "snapshots",
    "models",
    "clients",
    "checkpoints/round-00000002",
    "checkpoints/round-00000002/state.safetensors",
    "checkpoints/metrics.copy.jsonl",
    "models/last.safetensors",
    "snapshots/round-00000001.safetensors",
    "clients/000000",
)


@pytest.mark.parametrize("place", PLACES)
def test_links_out_of_a_run_are_not_followed(place: str, sound: Path, tmp_path: Path) -> None:
    """Reading would show what is elsewhere, resuming would overwrite it."""
    run = copy_of(sound, tmp_path / "runs" / "run")
    elsewhere, link = tmp_path / "elsewhere", run.path / place
    if link.exists():
        link.rename(elsewhere)
    else:
        elsewhere.write_text("mine")
    before = contents(elsewhere)
    link.symlink_to(elsewhere)
    with pytest.raises(RunError, match=r"is a link .*the run"), run.locked():
        pass  # whoever writes in a run, locks it
    for verb in () if place.startswith("clients/") else ("resume", "show", "validate"):
        result = CliRunner().invoke(app, words(verb, run.path, sound.parent.parent / "a.png"))
        assert result.exit_code == 2, result.output
        assert "is a link that leads out of the run" in " ".join(result.output.split())
    assert contents(elsewhere) == before


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_links_inside_a_run_are_fine(sound: Path, tmp_path: Path) -> None:
    run = copy_of(sound, tmp_path / "real" / "run")
    (run.path / "notes").symlink_to(run.config)
    (tmp_path / "alias").symlink_to(run.path)
    assert CliRunner().invoke(app, ["show", str(tmp_path / "alias")]).exit_code == 0
    (run.path / "loop").symlink_to(run.path / "loop")
    assert CliRunner().invoke(app, ["show", str(run.path)]).exit_code == 2


def test_evil_names_of_classes(tmp_path: Path) -> None:
    """Folders are named by strangers, and their names are shown."""
    name = EVIL.replace("/", "|")
    for number in range(4):
        (tmp_path / "images" / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / "images" / name / f"{number}.png")
    for verb in (["check"], ["preview", "-o", str(tmp_path / "a.png")]):
        result = CliRunner().invoke(app, ["data", verb[0], f"folder:{tmp_path / 'images'}", *verb[1:]])
        assert result.exit_code == 0, result.output
        assert result.output.replace("\n", "").isprintable(), repr(result.output)


def test_the_terminal_keeps_its_own_colours() -> None:
    text = io.StringIO()
    console = Terminal(file=text, force_terminal=True, color_system="standard", highlight=False)
    console.print("[red]a\x1b[2J[/]", Text(EVIL))
    assert "\x1b[31m" in text.getvalue()
    assert "\\x1b[2J" in text.getvalue()
    assert "\x1b[2J" not in text.getvalue()
    assert "\x07" not in text.getvalue()
