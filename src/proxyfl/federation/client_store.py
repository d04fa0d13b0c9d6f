"""A store on disk for single clients: the newest versions of each, tagged with the round that wrote them.

A round can run twice (a crash between a client's answer and the server's checkpoint), so a version is never
overwritten by another round, and the task names the one to start from. Each file carries its own hash, and
whose it is: one that was damaged or put in another's place is never used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.core.errors import RunError
from proxyfl.core.files import clear_asides
from proxyfl.core.state import Tensors

_NAME = re.compile(r"round-(\d{8})\.safetensors")
CURE = "restore it from a copy of the run, or start again under another --name"


class ClientStore:
    """Versions of named tensors per client below one folder."""

    def __init__(self, folder: Path, versions: int = 2, cure: str = CURE) -> None:
        self.folder, self.versions, self.cure = folder, versions, cure

    def save(self, client: int, round: int, tensors: Mapping[str, Tensor], base: int = 0) -> None:
        """Write a version; ``base``, the one it came from, stays however often what follows is refused."""
        place = self._place(client)
        place.mkdir(parents=True, exist_ok=True)
        clear_asides(place)
        whose = {"client": str(client), "round": str(round)}
        write_verified(place / f"round-{round:08d}.safetensors", tensors, whose)
        for old in self._rounds(client)[: -self.versions]:
            if old != base:
                (place / f"round-{old:08d}.safetensors").unlink(missing_ok=True)

    def load(self, client: int, round: int) -> Tensors:
        """The version that ``round`` wrote; empty for round 0, when there is none yet."""
        if round == 0:
            return {}
        file = self._place(client) / f"round-{round:08d}.safetensors"
        what = f"the state of client {client} from round {round}"
        try:
            tensors, whose = read_verified(file)
        except FileNotFoundError as error:
            raise RunError(f"{what} is gone: {file} is missing; {self.cure}") from error
        except RunError as error:
            raise RunError(f"{what} is damaged: {file}; {self.cure}") from error
        if whose and (whose.get("client"), whose.get("round")) != (str(client), str(round)):
            raise RunError(f"{what} is damaged: {file} belongs to another client; {self.cure}")
        return tensors

    def has(self, client: int, round: int) -> bool:
        """Whether there is a file of this version, whatever is in it."""
        return (self._place(client) / f"round-{round:08d}.safetensors").exists()

    def newest(self, client: int, at_most: int) -> Tensors:
        """The newest version not younger than ``at_most``; empty when there is none."""
        known = [round for round in self._rounds(client) if round <= at_most]
        return self.load(client, known[-1]) if known else {}

    def _rounds(self, client: int) -> list[int]:
        place = self._place(client)
        names = (_NAME.fullmatch(file.name) for file in place.iterdir()) if place.is_dir() else ()
        return sorted(int(match[1]) for match in names if match)

    def _place(self, client: int) -> Path:
        return self.folder / f"{client // 1000:06d}" / f"{client:09d}"
