"""What travels between server and clients, and what must survive a crash: named tensors.

Everything here is plain data. A tensor's name says where it belongs: ``weights/…`` for the network,
``extras/PART/…`` for what a method or add-on keeps beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
"""Named tensors, always on the CPU outside of a client's training."""

Metrics = dict[str, float]
"""Named sums or values that JSON can hold."""


@dataclass(frozen=True)
class ServerState:
    """The federation between two rounds. ``round`` counts completed rounds.

    ``versions`` tells, for clients whose state a method keeps, the round that wrote the state to start from.
    ``carry`` is what one client hands to the next (the released code's leaking momentum; empty otherwise).
    """

    round: int
    weights: Tensors
    extras: Tensors = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    carry: Tensors = field(default_factory=dict)

    def to_tensors(self) -> Tensors:
        flat = {f"weights/{name}": value for name, value in self.weights.items()}
        flat |= {f"extras/{name}": value for name, value in self.extras.items()}
        flat |= {f"carry/{name}": value for name, value in self.carry.items()}
        flat["round"] = torch.tensor(self.round)
        clients = sorted(self.versions)
        flat["versions/clients"] = torch.tensor(clients, dtype=torch.int64)
        flat["versions/rounds"] = torch.tensor([self.versions[k] for k in clients], dtype=torch.int64)
        return flat

    @classmethod
    def from_tensors(cls, flat: Mapping[str, Tensor]) -> ServerState:
        clients, rounds = flat["versions/clients"].tolist(), flat["versions/rounds"].tolist()
        return cls(
            round=int(flat["round"]),
            weights=namespace(flat, "weights"),
            extras=namespace(flat, "extras"),
            versions=dict(zip(clients, rounds, strict=True)),
            carry=namespace(flat, "carry"),
        )


@dataclass(frozen=True)
class Task:
    """One client's work in one round: what the server sends it.

    ``weights`` and ``extras`` are the broadcast, ``personal`` is for this client alone, ``version`` is the
    round that wrote the client state to start from (0: none yet).
    """

    round: int
    client: int
    weights: Tensors
    extras: Tensors = field(default_factory=dict)
    personal: Tensors = field(default_factory=dict)
    version: int = 0
    carry: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """A client's answer. ``metrics`` are sums that the server adds up over clients."""

    round: int
    client: int
    samples: int
    weights: Tensors
    extras: Tensors = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    carry: Tensors = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Failure:
    """A client that did not answer, and why."""

    round: int
    client: int
    reason: str
    detail: str = ""


def namespace(tensors: Mapping[str, Tensor], prefix: str) -> Tensors:
    """The tensors below ``prefix/``, with the prefix taken off."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def within(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors put below ``prefix/``: the inverse of :func:`namespace`."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def size_in_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors.values())
