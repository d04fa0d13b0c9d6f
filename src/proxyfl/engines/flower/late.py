"""Updates that missed their round and arrived in the next one, on the server's disk before they are used: a
run that is killed in that round uses them again. They are there no longer than a checkpoint can ask for them,
and no longer than the run.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.core.errors import RunError
from proxyfl.core.state import Update
from proxyfl.engines.serialization import pack_answer, unpack_answer
from proxyfl.federation.loop import Observer, RoundReport

HEADER = "header"
NAME = re.compile(r"round-(\d{8})-client-\d{9}\.safetensors")


class LateUpdates(Observer):
    """Those of the last ``rounds`` rounds, in one folder."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds

    def save(self, update: Update) -> None:
        """Keep an update."""
        header, tensors = pack_answer(update)
        self.folder.mkdir(exist_ok=True)
        write_verified(self._file(update.round, update.client), tensors, {HEADER: json.dumps(header)})

    def load(self, round: int, client: int) -> Update | None:
        """The update of that round, if it arrived; one that is damaged did not."""
        with contextlib.suppress(OSError, RunError, ValueError, KeyError, TypeError):
            tensors, whose = read_verified(self._file(round, client))
            found = unpack_answer(json.loads(whose[HEADER]), tensors)
            return found if isinstance(found, Update) else None
        return None

    def back_to(self, round: int) -> None:
        """A run goes on behind this round: what later ones left belongs to rounds that never were."""
        self._forget(lambda kept: kept > round)

    def round_finished(self, report: RoundReport) -> None:
        """Let go of those that no checkpoint can ask for any more."""
        self._forget(lambda kept: kept < report.number - self.rounds)

    def run_finished(self) -> None:
        self._forget(lambda kept: True)

    def _forget(self, which: Callable[[int], bool]) -> None:
        for file in self.folder.iterdir() if self.folder.is_dir() else ():
            if (match := NAME.fullmatch(file.name)) and which(int(match[1])):
                file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are left, or it was never made
            self.folder.rmdir()

    def _file(self, round: int, client: int) -> Path:
        return self.folder / f"round-{round:08d}-client-{client:09d}.safetensors"
