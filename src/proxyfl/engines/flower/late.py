"""Updates that missed their round and arrived in the next one, on the server's disk before they are used: a
run that is killed in that round uses them again.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.core.errors import RunError
from proxyfl.core.state import Update
from proxyfl.engines.serialization import pack_answer, unpack_answer

HEADER = "header"
NAME = re.compile(r"round-(\d{8})-client-\d{9}\.safetensors")


class LateUpdates:
    """Those of the last ``rounds`` rounds, in one folder."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds

    def save(self, update: Update) -> None:
        """Keep an update, and let go of those that no checkpoint can ask for any more."""
        header, tensors = pack_answer(update)
        self.folder.mkdir(exist_ok=True)
        write_verified(self._file(update.round, update.client), tensors, {HEADER: json.dumps(header)})
        for round, file in self._kept():
            if round < update.round - self.rounds:
                file.unlink(missing_ok=True)

    def load(self, round: int, client: int) -> Update | None:
        """The update of that round, if it arrived; one that is damaged did not."""
        with contextlib.suppress(OSError, RunError, ValueError, KeyError, TypeError):
            tensors, whose = read_verified(self._file(round, client))
            found = unpack_answer(json.loads(whose[HEADER]), tensors)
            return found if isinstance(found, Update) else None
        return None

    def back_to(self, round: int) -> None:
        """A run goes on behind this round: what later ones left belongs to rounds that never were."""
        for later, file in self._kept():
            if later > round:
                file.unlink(missing_ok=True)

    def _kept(self) -> list[tuple[int, Path]]:
        files = list(self.folder.iterdir()) if self.folder.is_dir() else []
        return [(int(match[1]), file) for file in files if (match := NAME.fullmatch(file.name))]

    def _file(self, round: int, client: int) -> Path:
        return self.folder / f"round-{round:08d}-client-{client:09d}.safetensors"
