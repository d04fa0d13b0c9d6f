"""Updates of a round that is not finished, on the server's disk: where too few sites gave one, or the server
was killed, the round is repeated and does not request them again. Under differential privacy each request
would spend ε once more.
"""

from __future__ import annotations

from pathlib import Path

from proxyfl.core.files import clear_asides
from proxyfl.core.state import Failure, Update
from proxyfl.engines.flower.late import LateUpdates
from proxyfl.federation.loop import RoundReport


class HeldUpdates(LateUpdates):
    """Those of the round that is due, in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, rounds=0)

    def back_to(self, round: int) -> None:
        """A run goes on behind this round: what another round than the next one left is of other weights."""
        if self.folder.is_dir():
            clear_asides(self.folder)
        self._forget(lambda kept: kept != round + 1)

    def answered(self, answer: Update | Failure) -> None:
        """An update that was refused is requested again."""
        if isinstance(answer, Failure):
            self._file(answer.round, answer.client).unlink(missing_ok=True)

    def round_finished(self, report: RoundReport) -> None:
        self.run_finished()
