"""Reports what keeps work on a cluster waiting: no process that can work, or nodes that cannot be used."""

from __future__ import annotations

import sys
import time

from proxyfl.core.errors import RunError
from proxyfl.core.text import one_line
from proxyfl.engines.cluster.connection import LONG, Cluster, Needs


class Watch:
    """Says so where nobody can work; gives up where no node is left that could."""

    def __init__(self, cluster: Cluster, needs: Needs, cure: str) -> None:
        self.cluster, self.needs, self.cure, self.alone = cluster, needs, cure, 0.0
        self.rejected: dict[str, str] = {}
        """Nodes on which nothing is started any more, and why."""
        self._reported: set[str] = set()

    def warn(self, why: str) -> None:
        """Something on the cluster cannot be used, but there is more; each reason is printed once."""
        if why not in self._reported:
            self._reported.add(why)
            print(f"warning: {one_line(why)}; continuing with the other nodes", file=sys.stderr)

    def room(self) -> int:
        """How many actors the nodes have room for that can be used."""
        return self.cluster.room(self.needs, self.rejected)

    def look(self, anybody: bool) -> None:
        """``anybody``: whether somebody is at work, or could be."""
        now = time.monotonic()
        if anybody:
            self.alone = 0.0
        elif not self.alone:
            self.alone = now
        elif now - self.alone > LONG:
            self.alone = now
            if not self.room():
                raise self.hopeless()
            waited = f"note: still waiting for the Ray cluster to start a process with {self.needs}"
            print(waited, file=sys.stderr)

    def hopeless(self) -> RunError:
        """The error where no node is left that could work."""
        why = "".join(f" ({reason})" for reason in dict.fromkeys(self.rejected.values()))
        return RunError(f"no node of the Ray cluster with {self.needs} is left{why}; {self.cure}")
