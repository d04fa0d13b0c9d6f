"""Which sites take part with how many images, as each says when it enrols: ``DIR/run/sites.json``.

Counts are fixed when a site enrols: sampling and the guard go by them, so that a resumed run chooses as the
first did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import MessageType, RecordDict

from proxyfl.core.dealing import CLIENTS, PARTIAL, SERVER
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import JSON_SWELLS, SHORT, read_bounded, write_bytes
from proxyfl.core.text import reported
from proxyfl.deploy.roster import SiteRoster
from proxyfl.engines.flower.codec import Malformed, content, header_of, text, whole
from proxyfl.engines.flower.grid import Courier
from proxyfl.engines.flower.protocol import negotiated
from proxyfl.engines.serialization import Header
from proxyfl.federation.sampling import Population

SITES_FILE = "sites.json"
ADMIT_FOR = 30.0
"""Seconds that a site has for counting its images while a run is under way: the others wait for it."""

ASK_AGAIN = 60.0
"""Seconds after which a site that could not take part is asked again."""

LOOK = 1.0


@dataclass(frozen=True)
class Enrolled:
    """A site's numbers of images, and whether it lets its models be measured at the other sites."""

    labelled: int
    unlabelled: int
    heldout: int = 0
    shares: bool = False


@dataclass
class Enrolment:
    """All sites that have enrolled so far, by client number. ``run`` names this run on the sites' disks,
    ``joined`` tells from which round on those take part that were not there for the first, ``left`` are
    those that take part no longer.
    """

    run: str
    sites: tuple[str, ...]
    counts: dict[int, Enrolled] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
    left: dict[int, Enrolled] = field(default_factory=dict)

    def population(self, round: int) -> Population:
        """Images per client; a site that has not enrolled has none, so that it is never chosen."""
        here = {client: row for client, row in self.counts.items() if self.joined.get(client, 0) <= round}
        return self._sizes(here)

    def everyone(self) -> Population:
        """Images per client of all who ever took part: what is known of them is known for good."""
        return self._sizes({**self.left, **self.counts})

    def _sizes(self, table: dict[int, Enrolled]) -> Population:
        rows = [table.get(client, Enrolled(0, 0)) for client in range(len(self.sites))]
        return Population(
            np.array([row.labelled for row in rows], dtype=np.int64),
            np.array([row.unlabelled for row in rows], dtype=np.int64),
        )

    def leave(self, client: int) -> None:
        """From now on a site takes part no longer."""
        self.left[client] = self.counts.pop(client)

    def save(self, folder: Path) -> None:
        record: dict[str, Any] = {"run": self.run, "order": self.sites, "sites": self._named(self.counts)}
        if self.joined:
            record["joined"] = {self.sites[client]: round for client, round in sorted(self.joined.items())}
        if self.left:
            record["left"] = self._named(self.left)
        write_bytes(folder / SITES_FILE, json.dumps(record, indent=1).encode())

    def _named(self, table: dict[int, Enrolled]) -> dict[str, dict[str, Any]]:
        return {self.sites[client]: asdict(row) for client, row in sorted(table.items())}

    @classmethod
    def load(cls, folder: Path, sites: tuple[str, ...]) -> Enrolment:
        with _readable(folder / SITES_FILE) as table:
            counts = {name: Enrolled(**row) for name, row in table["sites"].items()}
            left = {name: Enrolled(**row) for name, row in table.get("left", {}).items()}
            joined = {name: int(round) for name, round in table.get("joined", {}).items()}
            run, order = str(table["run"]), tuple(table.get("order", sites))
        if gone := [name for name in counts if name not in sites]:
            raise RunError(f"{gone[0]} took part in this run but is not in federation.toml any more; add it")
        if order != sites[: len(order)]:
            raise RunError(
                "the sites of federation.toml are not those this run began with, in their order; "
                f"restore them, before any that were added: {', '.join(map(str, order))}"
            )
        number = {name: client for client, name in enumerate(sites)}
        return cls(
            run,
            sites,
            {number[name]: row for name, row in counts.items()},
            {number[name]: round for name, round in joined.items() if name in number},
            {number[name]: row for name, row in left.items() if name in number},
        )


class Registrar:
    """Asks sites to enrol and checks what they say. Those that cannot are asked again after a while."""

    def __init__(
        self,
        courier: Courier,
        roster: SiteRoster,
        form: Header,
        say: Callable[[str], None],
        max_images: int,
    ) -> None:
        self.courier, self.roster, self.form, self.say = courier, roster, form, say
        self.max_images = max_images
        self.refused: dict[int, float] = {}

    def enrol(self, enrolment: Enrolment, seconds: float = ADMIT_FOR) -> list[int]:
        """Enrol who is connected and has not enrolled; the clients that are new."""
        known: dict[int, int | None] = {
            node: client for client, node in self.roster.online().items() if client not in enrolment.counts
        }
        nodes: dict[int, int | None] = known | dict.fromkeys(self.roster.unknown())
        again = time.monotonic() - ASK_AGAIN
        nodes = {node: client for node, client in nodes.items() if self.refused.get(node, again) <= again}
        requests = ((node, content({"kind": "enrol", **self.form})) for node in nodes)
        replies = self.courier.ask(
            requests, MessageType.QUERY, seconds, online={node: node for node in nodes}
        )
        found: list[int] = []
        for (node, client), reply in zip(nodes.items(), replies, strict=True):
            who = "a node" if client is None else self.roster.name(client)
            if isinstance(reply, str):
                self.refused[node] = time.monotonic()
                self.say(f"{who} did not answer yet: it {reply}; it is asked again in {ASK_AGAIN:.0f} s")
                continue
            try:
                header = _enrolled(reply)
                client = self._client(node, client, text(header, "name", 60))
                if client is not None and client not in enrolment.counts:
                    enrolment.counts[client] = self._counts(client, header)
                    found.append(client)
            except Malformed as error:
                self.refused[node] = time.monotonic()
                self.say(f"{who} cannot take part: {error}")
        return found

    def _client(self, node: int, client: int | None, name: str) -> int | None:
        if client is None:
            return self.roster.claim(node, name, self.say)
        if name != self.roster.name(client):
            raise Malformed(f"its key is that of {self.roster.name(client)}, but it was started as '{name}'")
        return client

    def _counts(self, client: int, header: Header) -> Enrolled:
        labelled, unlabelled, heldout = (whole(header, n) for n in ("labelled", "unlabelled", "heldout"))
        row = Enrolled(labelled, unlabelled, heldout, header.get("shares") is True)
        if min(row.labelled, row.unlabelled, row.heldout) < 0 or row.labelled + row.unlabelled == 0:
            raise Malformed("it has no images to train on")
        scenario = self.form.get("scenario", CLIENTS)
        if scenario == SERVER and row.labelled:
            raise Malformed("it counts labelled images, but all labels are at the server")
        if scenario == PARTIAL and row.labelled and row.unlabelled:
            raise Malformed("it has labels for some of its images; all or none must have one")
        if (claimed := max(row.labelled + row.unlabelled, row.heldout)) > self.max_images:
            raise Malformed(
                f"it claims {claimed} images; federation.toml allows max_images = {self.max_images}"
            )
        try:
            negotiated(header, self.roster.name(client), "the server")
        except ConfigError as error:
            raise Malformed(str(error)) from None
        said = header.get("versions")
        for package in ("proxyfl", "torch"):
            ours, theirs = metadata.version(package), said.get(package) if isinstance(said, dict) else None
            if theirs != ours:
                version = reported(theirs, 40) if isinstance(theirs, str) else "of an unknown version"
                name = self.roster.name(client)
                self.say(f"{name} has {package} {version}, the server {ours}; results may differ")
        return row


def _enrolled(reply: RecordDict) -> Header:
    header = header_of(reply)
    if header.get("kind") == "failure":
        raise Malformed(text(header, "reason", 300))
    if header.get("kind") != "enrolled":
        raise Malformed("it answered something else")
    return header


def gather(
    registrar: Registrar,
    enrolment: Enrolment,
    quorum: int,
    deadline: float,
    patience: float,
    heed: Callable[[], None] = lambda: None,
) -> None:
    """Wait for the sites before the first round: for all, or with a quorum until the deadline.

    Below quorum it waits up to ``patience`` and then gives up. ``heed`` is called while it waits.
    """
    began, shown = time.monotonic(), -1
    while True:
        heed()
        left_out = [client for client in range(len(enrolment.sites)) if registrar.roster.removed(client)]
        total = len(enrolment.sites) - len(left_out)
        for client in registrar.enrol(enrolment, deadline):
            row = enrolment.counts[client]
            kept = f", {row.heldout} held out" if row.heldout else ""
            name = enrolment.sites[client]
            registrar.say(f"{name} takes part: {row.labelled} labelled, {row.unlabelled} unlabelled{kept}")
        there, waited = len(enrolment.counts), time.monotonic() - began
        enough = there >= min(quorum, total)
        if there == total or (enough and waited >= deadline):
            break
        if not enough and waited >= patience:
            raise RunError(
                f"{there} of {total} sites have enrolled, {quorum} are needed; start the others, "
                "then run 'proxyfl deploy run' again"
            )
        if shown != there:
            shown = there
            known = {*enrolment.counts, *left_out}
            missing = [name for k, name in enumerate(enrolment.sites) if k not in known]
            registrar.say(f"waiting for {', '.join(missing)}")
        time.sleep(LOOK)


def forget_counts(folder: Path, private: bool = False) -> None:
    """Let every site of a run enrol again when it goes on; not one that is ``private``."""
    file = folder / SITES_FILE
    if private and file.is_file():
        raise ConfigError(
            "--enrol-again: the accounting of differential privacy holds for the sites and images that a run "
            f"began with; move {folder} away to begin anew with others"
        )
    if file.is_file():
        with _readable(file) as table:
            emptied = {**table, "sites": {}}
        write_bytes(file, json.dumps(emptied, indent=1).encode())


@contextmanager
def _readable(file: Path) -> Iterator[dict[str, Any]]:
    """What is in the file; whatever is not as it should be there is damage."""
    try:
        yield json.loads(read_bounded(file, JSON_SWELLS, SHORT))
    except (OSError, RunError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{file} is damaged ({type(error).__name__}); restore it from a copy") from None
