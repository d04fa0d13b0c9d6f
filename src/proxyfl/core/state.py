"""What travels between server and clients, and what must survive a crash: named tensors.

Everything here is plain data. A tensor's name says where it belongs: ``weights/…`` for the network,
``extras/PART/…`` for what a method or add-on keeps beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from proxyfl.core.flat import Flat, Layout

Tensors = dict[str, Tensor]
"""Named tensors, always on the CPU outside of a client's training."""

Metrics = dict[str, float]
"""Named sums or values that JSON can hold."""


class Versions(Mapping[int, int]):
    """Which round wrote the state of each client, as two sorted arrays: what is kept for a hundred thousand
    clients is copied in a moment and written as it is.
    """

    def __init__(self, clients: Tensor | None = None, rounds: Tensor | None = None) -> None:
        self.clients = torch.empty(0, dtype=torch.int64) if clients is None else clients
        self.rounds = torch.empty(0, dtype=torch.int64) if rounds is None else rounds

    def __getitem__(self, client: int) -> int:
        place = int(torch.searchsorted(self.clients, client))
        if place == len(self.clients) or int(self.clients[place]) != client:
            raise KeyError(client)
        return int(self.rounds[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients.tolist())

    def __len__(self) -> int:
        return len(self.clients)

    def after(self, clients: Iterable[int], round: int) -> Versions:
        """With the state that ``round`` wrote for these clients."""
        new = torch.tensor(sorted(clients), dtype=torch.int64)
        stay = ~torch.isin(self.clients, new)
        both = torch.cat([self.clients[stay], new])
        rounds = torch.cat([self.rounds[stay], torch.full_like(new, round)])
        order = both.argsort()
        return Versions(both[order], rounds[order])


@dataclass(frozen=True)
class ServerState:
    """The federation between two rounds. ``round`` counts completed rounds.

    ``versions`` tells, for clients whose state a method keeps, the round that wrote the state to start from.
    ``carry`` is what one client hands to the next (the released code's leaking momentum; empty otherwise).
    ``owed`` are clients whose updates of the last round may still come (``federation.late``).
    """

    round: int
    weights: Tensors
    extras: Tensors = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    carry: Tensors = field(default_factory=dict)
    owed: tuple[int, ...] = ()

    def to_tensors(self) -> Tensors:
        flat = {f"weights/{name}": value for name, value in self.weights.items()}
        flat |= {f"extras/{name}": value for name, value in self.extras.items()}
        flat |= {f"carry/{name}": value for name, value in self.carry.items()}
        flat["round"] = torch.tensor(self.round)
        flat |= {"versions/clients": self.versions.clients, "versions/rounds": self.versions.rounds}
        if self.owed:
            flat["owed"] = torch.tensor(self.owed)
        return flat

    @classmethod
    def from_tensors(cls, flat: Mapping[str, Tensor]) -> ServerState:
        return cls(
            round=int(flat["round"]),
            weights=namespace(flat, "weights"),
            extras=namespace(flat, "extras"),
            versions=Versions(flat["versions/clients"], flat["versions/rounds"]),
            carry=namespace(flat, "carry"),
            owed=tuple(flat["owed"].tolist()) if "owed" in flat else (),
        )


TRAIN, STATISTICS, OVERDUE = "train", "statistics", "overdue"
"""What a client is asked for: training, or sums of what the layers of a network see of its images. One that
is overdue is asked for nothing new: its answer of an earlier round is awaited.
"""


@dataclass(frozen=True)
class Task:
    """One client's work in one round: what the server sends it.

    ``weights`` and ``extras`` are the broadcast, ``personal`` is for this client alone, ``version`` is the
    round that wrote the client state to start from (0: none yet), ``purpose`` what is to be done, and
    ``times`` how often: each training begins with the same weights.
    """

    round: int
    client: int
    weights: Tensors
    extras: Tensors = field(default_factory=dict)
    personal: Tensors = field(default_factory=dict)
    version: int = 0
    carry: Tensors = field(default_factory=dict)
    purpose: str = TRAIN
    times: int = 1


@dataclass(frozen=True)
class Update:
    """A client's answer. ``metrics`` are sums that the server adds up over clients; ``again`` are the weights
    of further trainings, where the task asked for several.
    """

    round: int
    client: int
    samples: int
    weights: Tensors
    extras: Tensors = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    carry: Tensors = field(default_factory=dict)
    seconds: float = 0.0
    again: tuple[Tensors, ...] = ()

    def each(self) -> list[Update]:
        """One update for each training."""
        if not self.again:
            return [self]
        return [replace(self, weights=weights, again=()) for weights in (self.weights, *self.again)]

    def joined(self, layout: Layout) -> list[Tensor]:
        """The weights as few long tensors, copied together at most once for all who look at every number of
        them: nobody may change them.
        """
        if isinstance(self.weights, Flat) and self.weights.layout == layout:
            return self.weights.long
        known: dict[str, Any] = vars(self)
        if "_joined" not in known or known["_joined"][0] != layout.rows:
            known["_joined"] = layout.rows, layout.join(self.weights)
        found: list[Tensor] = known["_joined"][1]
        return found


LONGEST_REASON, LONGEST_DETAIL = 500, 8_000
"""Characters kept of what a failed client said: logs stay small whatever an error message holds."""


@dataclass(frozen=True)
class Failure:
    """A client that did not answer, and why. Of a long detail, the end is kept: there a traceback ends.

    ``unsent`` says that its task never left the server, ``pending`` that its answer may still come.
    """

    round: int
    client: int
    reason: str
    detail: str = ""
    unsent: bool = False
    pending: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", self.reason[:LONGEST_REASON])
        object.__setattr__(self, "detail", self.detail[-LONGEST_DETAIL:])


def namespace(tensors: Mapping[str, Tensor], prefix: str) -> Tensors:
    """The tensors below ``prefix/``, with the prefix taken off."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def within(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors put below ``prefix/``: the inverse of :func:`namespace`."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def detached(tensors: Mapping[str, Tensor]) -> Tensors:
    """Copies on the CPU, contiguous and free of any graph; none shares memory with another."""
    return {
        name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }


def size_in_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors.values())


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, however and wherever they are stored."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        if value.numel():  # of an empty tensor, torch may refuse the view
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
