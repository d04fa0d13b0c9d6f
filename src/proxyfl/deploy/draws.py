"""Which sites a round asks: those drawn for it, and where these cannot make the quorum, others.

A draw is a pure function of seed, round, attempt and who can be asked: the sites that are connected, without
those that gave no update in this round as long as there are enough others. The first draw of a round is the
simulation's. A later one is noted among the run's events before anyone is asked, so that a run that is killed
asks the same sites again, and in the round's metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from proxyfl.federation.loop import Server
from proxyfl.federation.sampling import Redraw, sample_clients
from proxyfl.runs.directory import RunDirectory, read_json_lines

AWAY = 60.0
"""Seconds that a site may be gone before another is asked instead: a server that was restarted has its sites
back in less."""

TRIES = 3
"""How often the sites first drawn are asked while they are connected but give no update; a later draw is
tried once."""

EVENT = "others asked"


class Draws:
    """The draw of the round that is due. ``say`` tells the operator in words."""

    def __init__(
        self,
        federation: Server,
        run: RunDirectory,
        sites: tuple[str, ...],
        say: Callable[[str], None],
        round: int,
    ) -> None:
        self.federation, self.run, self.sites, self.say = federation, run, sites, say
        self.noted = noted(run)
        self.gone: dict[int, float] = {}
        self.begin(round)

    def begin(self, round: int) -> None:
        """Turn to a round: to what it asked last, if it was begun before."""
        self.round, self.redraw, self.tries = round, self.noted.get(round), 0
        self.vain: set[int] = set()

    def failed(self, clients: Collection[int]) -> None:
        """Too few of the sites that were asked gave an update: these gave none."""
        self.tries += 1
        self.vain |= set(clients)

    @property
    def asked(self) -> list[int]:
        federation = self.federation
        drawn = sample_clients(
            federation.settings, federation.seed, self.round, federation.population, self.redraw
        )
        return federation.able(drawn)

    def lacks(self, online: Collection[int], now: float, patience: float) -> str:
        """What the round waits for, in words; empty when enough of those it asks are connected.

        Others are drawn when sites have been offline too long, or were asked too often in vain. Not so under
        differential privacy: its account holds for sites that chance alone chose, and whoever stands in for
        another is more likely to take part than it reckons with.
        """
        self.gone = {k: self.gone.get(k, now) for k in range(len(self.sites)) if k not in online}
        asked = self.asked
        wanted = min(self.federation.settings.quorum, len(asked))
        here, able = len(set(asked) & set(online)), self.federation.able(sorted(online))
        enough, private = here >= wanted, self.federation.aggregator.private
        if enough and (private or self.tries < (1 if self.redraw else TRIES)):
            return ""
        if len(able) < wanted:
            return f"{len(online)} sites are connected, {wanted} are needed"
        waited = min((now - self.gone[k] for k in asked if k in self.gone), default=patience)
        if private or (not enough and waited < min(AWAY, patience / 2)):
            reason = "; with differential privacy no other sites may replace them" if private else ""
            return f"{here} of the sampled sites are connected, {wanted} are needed{reason}"
        fresh = [client for client in able if client not in self.vain]
        self._draw_again(asked, fresh if len(fresh) >= wanted else able)
        return ""

    def _draw_again(self, before: list[int], online: list[int]) -> None:
        self.redraw = Redraw(self.redraw.attempt + 1 if self.redraw else 2, tuple(online))
        self.tries, self.noted[self.round] = 0, self.redraw
        self.run.event(EVENT, round=self.round, clients=self.asked, **self.redraw.record())
        failed, new = (", ".join(self.sites[k] for k in clients) for clients in (before, self.asked))
        self.say(
            f"round {self.round}: too few of {failed} can take part; attempt {self.redraw.attempt} asks {new}"
        )


def noted(run: RunDirectory) -> dict[int, Redraw]:
    """The last draw of each round that asked others, as a run's events tell it."""
    lines = [line for line in read_json_lines(run.events) if line.get("event") == EVENT and _fits(line)]
    return {line["round"]: Redraw(line["attempt"], tuple(line["online"])) for line in lines}


def _fits(line: dict[str, Any]) -> bool:
    online = line.get("online")
    numbers = [line.get("round"), line.get("attempt"), *(online if isinstance(online, list) else [None])]
    return all(type(number) is int for number in numbers)
