"""Files of a run spoiled in every way, and what the program makes of them.

A case takes milliseconds: the run is opened as ``resume`` opens it, up to the moment at which the first round
would be played, and the state it would begin with is compared with those that are known to be good.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import proxyfl
from proxyfl.core.errors import ProxyFLError
from proxyfl.core.seal import is_intact
from proxyfl.core.state import ServerState
from proxyfl.federation.shelf import Shelf
from proxyfl.runs import checkpoint, experiment, mend
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.run import Run, list_runs
from toybox import TINY, Stopped, Told

SETTINGS: dict[str, Any] = {**TINY, "rounds": 5, "subset": 64, "keep__snapshot_every": 2}
STOPPED = 4
AS_NEW, STEP_BACK, REFUSED = "as if nothing had happened", "from the checkpoint before", "refused in words"

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

    @classmethod
    def admit(cls, folder: Path) -> Patient:
        """FlexMatch, which keeps something for every client; and the same run played to its end."""
        proxyfl.Experiment("flexmatch", "digits", **SETTINGS).run(folder / "whole", workers=0)
        path = folder / "run"
        with contextlib.suppress(Stopped):
            told = Told(stop_after=STOPPED)
            proxyfl.Experiment("flexmatch", "digits", **SETTINGS).run(path, [told], workers=0)
        run = RunDirectory(path)
        folders = checkpoint.folders(run)
        states = {checkpoint.round_of(each): checkpoint.read(each).state for each in folders}
        shelf = Shelf(run.clients)
        held = {
            (client, round): shelf.load(client, round)
            for state in states.values()
            for client, round in state.versions.items()
        }
        files = {
            str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
        }
        return cls(path, folder / "whole", files, states, held, min(states))

    def heal(self) -> None:
        """Put everything back."""
        for file in [file for file in self.path.rglob("*") if file.is_file()]:
            if str(file.relative_to(self.path)) not in self.files:
                file.unlink()
        for name, content in self.files.items():
            file = self.path / name
            if not file.is_file() or file.read_bytes() != content:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)

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

    def examine(self) -> tuple[str, str]:
        """What opening the run comes to, and the words where it is refused. Whatever is wrong beyond that
        is an :class:`AssertionError`.
        """
        before = self._now()
        self._look()
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                proxyfl.resume(self.path, workers=0)
        except Reached as reached:
            return self._verdict(reached.state), said.getvalue()
        except ProxyFLError as error:
            assert "\n" not in str(error)
            assert self._now() == before, "a run that is refused must be left as it is"
            return REFUSED, str(error)
        raise AssertionError("the run is not finished, and yet nothing was left to play")

    def _now(self) -> dict[str, bytes]:
        apart = {"events.jsonl", ".lock"}
        files = [file for file in self.path.rglob("*") if file.is_file() and file.name not in apart]
        return {str(file.relative_to(self.path)): file.read_bytes() for file in files}

    def _verdict(self, state: ServerState) -> str:
        good = self.states[state.round]
        mine, theirs = state.to_tensors(), good.to_tensors()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        lines = self.files["metrics.jsonl"].splitlines(keepends=True)
        for name in ("metrics.jsonl", "checkpoints/metrics.copy.jsonl"):
            assert (self.path / name).read_bytes() == b"".join(lines[: state.round]), name
        for name in ("config.toml", "partition.safetensors"):
            assert (self.path / name).read_bytes() == self.files[name], name
        assert is_intact(self.path / "models" / "last.safetensors")
        assert (self.path / "models" / "best.safetensors").read_bytes() == self.files["models/best.safetensors"]
        self._require_clients(state)
        return AS_NEW if state.round == STOPPED else STEP_BACK

    def _require_clients(self, state: ServerState) -> None:
        """What the state says about clients can be read as it was, or is refused when it is asked for; the
        latter only where no checkpoint reaches back.
        """
        shelf = Shelf(self.path / "clients")
        for client, round in state.versions.items():
            try:
                found = shelf.load(client, round)
            except ProxyFLError as error:
                assert round <= self.oldest, error
                continue
            good = self.held[client, round]
            assert found.keys() == good.keys()
            assert all(torch.equal(found[name], good[name]) for name in good)

    def _look(self) -> None:
        """Everything that only reads gives what is right, or an error in words."""
        lines = [line + b"\n" for line in self.files["metrics.jsonl"].splitlines()]
        run = Run(self.path) if (self.path / "config.toml").is_file() else None
        assert len(list_runs(self.path.parent)) == (2 if run else 1)
        if run is None:
            return
        whole = Run(self.whole)
        with contextlib.suppress(ProxyFLError):
            assert run.metrics in [whole.metrics[:n] for n in range(STOPPED - 1, len(lines) + 1)]
        for ask in (lambda: run.summary, lambda: run.finished, lambda: run.timing, lambda: run.events):
            with contextlib.suppress(ProxyFLError):
                ask()
        with contextlib.suppress(ProxyFLError):
            assert run.partition.clients == SETTINGS["clients"]
            assert (self.path / "partition.safetensors").read_bytes() == self.files["partition.safetensors"]
        for which in ("last", "best"):
            with contextlib.suppress(ProxyFLError):
                run.model(which)
                name = f"models/{which}.safetensors"
                assert (self.path / name).read_bytes() == self.files[name]
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

    def assemble(run: RunDirectory, *given: Any, **options: Any) -> Any:
        if "federation" not in made:
            made["federation"] = real(run, *given, **options)
        return made["federation"]

    def prepare(config: Any, root: Any = None, partition: Any = None) -> Any:
        return simulation if partition is None else dataclasses.replace(simulation, partition=partition)

    def arrive(federation: Any, state: ServerState, observers: Any) -> None:
        raise Reached(state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(experiment, "run_rounds", arrive)
        patch.setattr(experiment, "prepare", prepare)
        for module in (experiment, mend):
            patch.setattr(module, "assemble", assemble)
        yield


def fuzz(patient: Patient, cases: int, seed: int, tell: Callable[[], None] = lambda: None) -> Fuzzed:
    """Spoil one file at a time; the kinds of files take turns, what happens to them is drawn."""
    draw, found = random.Random(seed), Fuzzed()
    kinds = patient.kinds()
    while found.cases < cases:
        kind = list(kinds)[found.cases % len(kinds)]
        name, how = draw.choice(kinds[kind]), draw.choice(list(CHANGES))
        if not patient.spoil(name, CHANGES[how], draw):
            continue
        try:
            verdict, words = patient.examine()
        except Exception as error:
            raise AssertionError(f"{name}, {how}, case {found.cases} of seed {seed}: {error!r}") from error
        finally:
            patient.heal()
        found.add(kind, verdict, words)
        tell()
    return found


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
