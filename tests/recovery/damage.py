"""Files of a run spoiled in every way, and what the program makes of them.

A case takes milliseconds: the run is opened as ``resume`` opens it, up to the moment at which the first round
would be played, and the state it would begin with is compared with those that are known to be good.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import proxyfl
from calling import invoke
from proxyfl.core.checksum import is_intact
from proxyfl.core.errors import ProxyFLError
from proxyfl.core.state import ServerState
from proxyfl.federation.client_store import ClientStore
from proxyfl.runs import checkpoint, experiment, federation, manifests
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.run import Run, list_runs
from toybox import TINY, Stopped, Told

SETTINGS: dict[str, Any] = {**TINY, "rounds": 5, "subset": 64, "keep__snapshot_every": 2}
STOPPED = 4
AS_NEW, STEP_BACK, REFUSED = "resumed without loss", "previous checkpoint used", "rejected with an error"

Draw = random.Random
Change = Callable[[bytes, Draw], bytes | None]
"""What becomes of a file's content; nothing: the file is gone."""


def flip(content: bytes, draw: Draw) -> bytes:
    if not content:
        return b"?"
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ draw.randint(1, 255)]) + content[place + 1 :]


def flip_early(content: bytes, draw: Draw) -> bytes:
    """Where headers are."""
    return flip(content[:600], draw) + content[600:]


def cut(content: bytes, draw: Draw) -> bytes:
    return content[: draw.randrange(len(content))] if content else b""


def wipe(content: bytes, draw: Draw) -> bytes:
    """A block of zeros, as a disk may leave it."""
    if not content:
        return b"\0" * 512
    place = draw.randrange(len(content))
    size = min(draw.choice((1, 16, 512)), len(content) - place)
    return content[:place] + b"\0" * size + content[place + size :]


def double(content: bytes, draw: Draw) -> bytes:
    """A stretch that is there twice."""
    place = draw.randrange(len(content) + 1)
    return content[:place] + content[max(0, place - draw.randint(1, 200)) :]


CHANGES: dict[str, Change] = {
    "flip": flip,
    "flip early": flip_early,
    "cut": cut,
    "wipe": wipe,
    "double": double,
    "extend": lambda content, draw: content + draw.randbytes(draw.randint(1, 300)),
    "empty": lambda content, draw: b"",
    "noise": lambda content, draw: draw.randbytes(len(content)),
    "gone": lambda content, draw: None,
}


class Reached(Exception):
    """Raised where the first round would be played."""

    def __init__(self, state: ServerState) -> None:
        self.state = state


@dataclass
class Patient:
    """A run that was stopped on its way, with everything that is known to be right about it."""

    path: Path
    whole: Path
    files: dict[str, bytes]
    states: dict[int, ServerState]
    held: dict[tuple[int, int], dict[str, torch.Tensor]]
    oldest: int
    stamps: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def admit(cls, folder: Path, method: str = "flexmatch", scenario: str = "clients") -> Patient:
        """Stopped on its way (FlexMatch keeps something for every client), and the same run to its end."""
        settings = {**SETTINGS, "scenario": scenario}
        proxyfl.Experiment(method, "digits", **settings).run(folder / "whole", workers=0)
        path = folder / "run"
        with contextlib.suppress(Stopped):
            told = Told(stop_after=STOPPED)
            proxyfl.Experiment(method, "digits", **settings).run(path, [told], workers=0)
        run = RunDirectory(path)
        folders = manifests.folders(run)
        states = {manifests.round_of(each): checkpoint.read(each).state for each in folders}
        store = ClientStore(run.clients)
        held = {
            (client, round): store.load(client, round)
            for state in states.values()
            for client, round in state.versions.items()
        }
        files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        return cls(path, folder / "whole", files, states, held, min(states))

    def heal(self) -> None:
        """Put everything back."""
        now = self._stamps()
        for name in now.keys() - self.files.keys():
            (self.path / name).unlink()
        for name, content in self.files.items():
            if name not in now or now[name] != self.stamps.get(name):
                file = self.path / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        self.stamps = self._stamps()

    def kinds(self) -> dict[str, list[str]]:
        """The files by what they are."""
        found: dict[str, list[str]] = {}
        for name in sorted(set(self.files) - {".lock"}):
            parts = name.split("/")
            kind = parts[-1] if parts[0] == "checkpoints" or len(parts) == 1 else parts[0]
            found.setdefault(f"checkpoint: {kind}" if parts[0] == "checkpoints" else kind, []).append(name)
        return found

    def spoil(self, name: str, change: Change, draw: Draw) -> bool:
        """Whether that changed anything."""
        content = change(self.files[name], draw)
        if content == self.files[name]:
            return False
        if content is None:
            (self.path / name).unlink()
        else:
            (self.path / name).write_bytes(content)
        return True

    def examine(self, *, alone: bool = True) -> tuple[str, str]:
        """What opening the run comes to, and the words where it is refused. Whatever is wrong beyond that
        is an :class:`AssertionError`. Where not one file ``alone`` was spoiled, copies may be lost, too.
        """
        before = self._stamps()
        self._look()
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                proxyfl.resume(self.path, workers=0)
        except Reached as reached:
            return self._verdict(reached.state, alone), said.getvalue()
        except ProxyFLError as error:
            words = str(error)
        else:
            raise AssertionError("the run is not finished, and yet nothing was left to play")
        assert "\n" not in words
        written = [name for name, stamp in self._stamps().items() if stamp != before.get(name)]
        assert set(written) <= {".lock", "events.jsonl"}, f"refused, and yet {written}"
        return REFUSED, words

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """What tells whether a file was written."""
        files = [file for file in self.path.rglob("*") if file.is_file()]
        found = {str(file.relative_to(self.path)): file.stat() for file in files}
        return {name: (each.st_mtime_ns, each.st_size) for name, each in found.items()}

    def _verdict(self, state: ServerState, alone: bool) -> str:
        good = self.states[state.round]
        mine, theirs = state.to_tensors(), good.to_tensors()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        lines = self.files["metrics.jsonl"].splitlines(keepends=True)
        for name in ("metrics.jsonl", "checkpoints/metrics.copy.jsonl"):
            assert (self.path / name).read_bytes() == b"".join(lines[: state.round]), name
        if "clients.jsonl" in self.files:
            self._require_rows(state.round, alone)
        for name in ("config.toml", "partition.safetensors"):
            assert (self.path / name).read_bytes() == self.files[name], name
        assert is_intact(self.path / "models" / "last.safetensors")
        best = "models/best.safetensors"
        assert not alone or (self.path / best).read_bytes() == self.files[best]
        self._require_clients(state, alone)
        return AS_NEW if state.round == STOPPED else STEP_BACK

    def _require_rows(self, round: int, alone: bool) -> None:
        rows = self.files["clients.jsonl"].splitlines(keepends=True)
        kept = b"".join(line for line in rows if json.loads(line)["round"] <= round)
        found = [
            (self.path / name).read_bytes() for name in ("clients.jsonl", "checkpoints/clients.copy.jsonl")
        ]
        assert found == [kept, kept] or (not alone and found == [b"", b""])

    def _require_clients(self, state: ServerState, alone: bool) -> None:
        """What the state says about clients can be read as it was, or is refused when it is asked for; the
        latter only where no checkpoint reaches back.
        """
        store, lost = ClientStore(self.path / "clients"), list[int]()
        for client, round in state.versions.items():
            try:
                found = store.load(client, round)
            except ProxyFLError:
                lost.append(round)
                continue
            good = self.held[client, round]
            assert found.keys() == good.keys()
            assert all(torch.equal(found[name], good[name]) for name in good)
        assert not alone or max(lost, default=0) <= self.oldest

    def _look(self) -> None:
        """Everything that only reads gives what is right, or an error in words."""
        lines = [line + b"\n" for line in self.files["metrics.jsonl"].splitlines()]
        run = Run(self.path) if (self.path / "config.toml").is_file() else None
        assert len(list_runs(self.path.parent)) == 2
        if run is None:
            return
        whole = Run(self.whole)
        with contextlib.suppress(ProxyFLError):
            assert run.metrics in [whole.metrics[:n] for n in range(STOPPED - 1, len(lines) + 1)]
        with contextlib.suppress(ProxyFLError):
            read = [{**row, "seconds": 0} for row in run.client_rows]
            assert read in [
                [{**row, "seconds": 0} for row in whole.client_rows if row["round"] <= n]
                for n in range(STOPPED - 1, len(lines) + 1)
            ]
        for ask in (lambda: run.summary, lambda: run.finished, lambda: run.timing, lambda: run.events):
            with contextlib.suppress(ProxyFLError):
                ask()
        with contextlib.suppress(ProxyFLError):
            assert run.partition.clients == SETTINGS["clients"]
            assert (self.path / "partition.safetensors").read_bytes() == self.files["partition.safetensors"]
        for which in ("last", "best"):
            name = f"models/{which}.safetensors"
            if not (self.path / name).is_file() or (self.path / name).read_bytes() != self.files[name]:
                with contextlib.suppress(ProxyFLError):
                    run.model(which)
                    raise AssertionError(f"{name} is damaged, and yet it was read")
        with contextlib.suppress(ProxyFLError):
            run.snapshot(2)
            name = "snapshots/round-00000002.safetensors"
            assert (self.path / name).read_bytes() == self.files[name]


@contextlib.contextmanager
def opened_only(patient: Patient) -> Iterator[None]:
    """Resuming stops where the first round would be played, and what never changes is made once."""
    simulation = experiment.prepare(Run(patient.path).config)
    made: dict[str, Any] = {}
    real = experiment.assemble

    def assemble(*given: Any, **options: Any) -> Any:
        if "federation" not in made:
            made["federation"] = real(*given, **options)
        return made["federation"]

    def prepare(config: Any, root: Any = None, partition: Any = None) -> Any:
        return simulation if partition is None else dataclasses.replace(simulation, partition=partition)

    def arrive(server: Any, state: ServerState, observers: Any) -> None:
        raise Reached(state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(federation, "play_round", arrive)
        patch.setattr(experiment, "prepare", prepare)
        patch.setattr(experiment, "assemble", assemble)
        yield


def fuzz(
    patient: Patient, cases: int, seed: object, at_once: int = 1, tell: Callable[[], None] = lambda: None
) -> Fuzzed:
    """Spoil so many files at a time; the kinds of files take turns, what happens to them is drawn. Every case
    draws anew: how much one draws depends on the sizes of files, and these on how long things took.
    """
    kinds, found, tries = patient.kinds(), Fuzzed(), 0
    while found.cases < cases:
        draw, tries = random.Random(f"{seed} {at_once} {found.cases} {tries}"), tries + 1
        kind = list(kinds)[found.cases % len(kinds)]
        names = [draw.choice(kinds[kind]), *draw.sample(sorted(patient.files), at_once - 1)]
        story = [(name, draw.choice(list(CHANGES))) for name in dict.fromkeys(names)]
        changed = [patient.spoil(name, CHANGES[how], draw) for name, how in story]
        if not any(changed):
            continue
        try:
            verdict, words = patient.examine(alone=at_once == 1)
        except Exception as error:
            raise AssertionError(f"{story}, case {found.cases} of seed {seed}: {error!r}") from error
        finally:
            patient.heal()
        found.add(kind, verdict, words)
        tries = 0
        tell()
    return found


def ask_as_a_user(patient: Patient, kind: str, draw: Draw) -> None:
    """One file spoiled, every verb that looks at a run asked, the run continued: words and exit codes, no
    traceback; and its end is the end of the run that nothing happened to.
    """
    name, how = draw.choice(patient.kinds()[kind]), draw.choice(list(CHANGES))
    while not patient.spoil(name, CHANGES[how], draw):
        how = draw.choice(list(CHANGES))
    story = f"{name}, {how}"
    try:
        verbs = [
            ("show", patient.path),
            ("show", patient.path, "--clients"),
            ("validate", patient.path),
            ("ls", patient.path.parent),
        ]
        verbs += [("eval", patient.path, "--model", which) for which in ("last", "best")]
        for words in verbs:
            _answer(story, *words)
        code, said = _answer(story, "resume", patient.path, "--quiet", "--workers", "0")
        if name == "config.toml":
            assert code == 2, (story, said)
            source, target = said.split("'cp ")[1].split("'")[0].split()
            shutil.copyfile(source, target)  # the cure that the words name
            code, said = _answer(story, "resume", patient.path, "--quiet", "--workers", "0")
        if code == 2:
            assert name.startswith("clients/"), (story, said)
            assert "restore it from a copy of the run" in said, (story, said)
        else:
            mine, theirs = result(patient.path), result(patient.whole)
            differ = {each for each in mine.keys() | theirs.keys() if mine.get(each) != theirs.get(each)}
            # Old states that nobody asks for: one that is gone is not put back, another may stay instead.
            states = Path(name).parent if name.startswith("clients/") else None
            assert all(each == name or Path(each).parent == states for each in differ), story
    finally:
        patient.heal()


def _answer(story: str, *words: object) -> tuple[int, str]:
    try:
        done = invoke(*words)
    except Exception as error:
        raise AssertionError(f"{story}: {words[0]} raised {error!r}") from error
    assert done.exit_code in (0, 2), (story, words, done.output)
    if done.exit_code == 2:
        errors = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
        assert len(errors) == 1, (story, words, done.stderr)
        assert errors[0].startswith("error: "), (story, words, done.stderr)
    return done.exit_code, done.stderr


def result(where: Path) -> dict[str, bytes]:
    """All of a finished run but for what tells of times and machines, and the checkpoint before the last."""
    apart = {"timing.jsonl", "events.jsonl", ".lock", "environment.json"}
    files = [file for file in where.rglob("*") if file.is_file() and file.name not in apart]
    old = f"round-{STOPPED:08d}"
    return {str(file.relative_to(where)): file.read_bytes() for file in files if file.parent.name != old}


class Fuzzed:
    """How many cases of which kind came to what."""

    def __init__(self) -> None:
        self.cases = 0
        self.verdicts: dict[str, Counter[str]] = {}
        self.words: dict[str, set[str]] = {}

    def add(self, kind: str, verdict: str, words: str) -> None:
        self.cases += 1
        self.verdicts.setdefault(kind, Counter())[verdict] += 1
        if verdict == REFUSED:
            self.words.setdefault(kind, set()).add(words)
