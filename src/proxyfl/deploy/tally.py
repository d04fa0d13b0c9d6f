"""What each site sent and received at the gate since it was opened: ``DIR/state/gate.json``.

The gate writes it once a second, where something changed; whoever watches the federation reads it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proxyfl.core.files import JSON_SWELLS, SHORT, read_bounded, write_bytes

TALLY_FILE = "gate.json"
STRANGERS = "stranger"
"""Whoever came without the key of a site."""

REFUSED = 400


@dataclass
class Count:
    """Requests, bytes and refusals of a site, and when it was last heard."""

    seen: float = 0.0
    requests: int = 0
    received: int = 0
    sent: int = 0
    refused: int = 0


class Tally:
    """Counts by site."""

    def __init__(self, state: Path) -> None:
        self.file = state / TALLY_FILE
        self.counts = defaultdict[str, Count](Count)
        self.changed = True

    def note(self, site: str, status: int, received: int, sent: int) -> None:
        """A request that was answered."""
        count = self.counts[site]
        count.seen, count.requests = round(time.time(), 3), count.requests + 1
        count.received, count.sent = count.received + received, count.sent + sent
        count.refused += status >= REFUSED
        self.changed = True

    def turned_away(self) -> None:
        """Somebody who never showed a certificate."""
        self.note(STRANGERS, REFUSED, 0, 0)

    def save(self) -> None:
        """Write the counts where they changed; a full disk does not stop the gate."""
        if self.changed:
            with contextlib.suppress(OSError):
                table = {site: asdict(count) for site, count in self.counts.items()}
                write_bytes(self.file, json.dumps(table).encode())
                self.changed = False


def read_tally(state: Path) -> dict[str, Count]:
    """What was written last; empty where there is nothing that can be read."""
    try:
        table: Any = json.loads(read_bounded(state / TALLY_FILE, JSON_SWELLS, SHORT))
        return {str(site): Count(**count) for site, count in table.items()}
    except Exception:  # a file that is missing, or being replaced, or damaged: nothing is known then
        return {}
