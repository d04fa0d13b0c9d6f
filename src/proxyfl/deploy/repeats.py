"""How often a site has answered one round: each answer reveals more, and under differential privacy spends ε.

``state/SITE/RUN/answers.json`` counts the updates that left, for one run under one approval. It is removed
with what else the site keeps for the run. Approving again starts the count anew, since the owner then agrees.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxyfl.core.errors import RunError
from proxyfl.core.files import JSON_SWELLS, SHORT, clear_asides, read_bounded, write_bytes
from proxyfl.core.locks import held
from proxyfl.core.state import STATISTICS, TRAIN
from proxyfl.deploy.approval import Approval, Refused
from proxyfl.deploy.audit import PATIENCE
from proxyfl.deploy.post import private
from proxyfl.deploy.settings import Site
from proxyfl.engines.flower.codec import Malformed, whole
from proxyfl.engines.flower.site import RUN_NAME

FILE = "answers.json"
COUNTED = (TRAIN, STATISTICS)
ANSWERS = 100
"""To one round of one run. An honest server repeats a round when it is resumed, and while too few sites gave
an update: up to 63 times in the hour of its default patience, as when other owners have yet to approve."""
PRIVATE_ANSWERS = 20
"""The same under differential privacy: the reported ε covers one answer to a round. An honest server keeps
the answers of a round that it repeats, and requests only those again that it lost or refused."""


class Repeats:
    """The count for the run and round of one message."""

    def __init__(self, site: Site, found: Approval, kind: str, header: Mapping[str, Any]) -> None:
        run = header.get("run")
        if not isinstance(run, str) or not RUN_NAME.fullmatch(run):
            raise Malformed("it names no run")
        self.round, self.approval = whole(header, "round"), found.sha256
        self.folder, self.name = site.state / site.name / run, f"{kind} {self.round}"
        self.most = PRIVATE_ANSWERS if found.offer.config.privacy.is_on else ANSWERS

    @property
    def file(self) -> Path:
        return self.folder / FILE

    def require(self) -> None:
        """Refuse a request that was answered as often as it may be: before anything is computed."""
        self._require(self._read())

    def add(self) -> None:
        """Count an answer, on the disk before it leaves."""
        lock, taken = self.folder / ".answers.lock", f"{self.file} is being written"
        try:
            private(self.folder)
            with held(lock, taken, remove=False, patience=PATIENCE):
                clear_asides(self.folder)
                counts = self._read()
                self._require(counts)  # another process may have answered meanwhile
                counts[self.name] = counts.get(self.name, 0) + 1
                record = {"approval": self.approval, "answers": counts}
                write_bytes(self.file, f"{json.dumps(record)}\n".encode())
        except OSError as error:
            raise RunError(
                f"{self.file} cannot be written ({error.strerror or error}), and no update is sent without "
                "being counted; free disk space or make it writable"
            ) from error

    def _require(self, counts: Mapping[str, int]) -> None:
        if counts.get(self.name, 0) >= self.most:
            raise Refused(
                f"this site has answered round {self.round} of this run {self.most} times, and its owner did "
                f"not approve more; approving again allows {self.most} more"
            )

    def _read(self) -> dict[str, int]:
        """Counts under the approval that holds now."""
        try:
            found = json.loads(read_bounded(self.file, JSON_SWELLS, SHORT))
            counts = {str(name): int(count) for name, count in found["answers"].items()}
            return counts if found["approval"] == self.approval else {}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(
                f"{self.file} is damaged ({type(error).__name__}); restore it, or delete it to count the "
                "answers to this run anew"
            ) from None
