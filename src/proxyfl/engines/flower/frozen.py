"""Tensors that are not trained: a site gets them once and keeps them; from then on only the others travel.

A task's header names their hash. Where the network begins as the seed initialises it, a site makes them
itself and is sent them only if it comes to others.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import RecordDict

from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.core.errors import RunError
from proxyfl.core.state import Tensors, content_hash, detached
from proxyfl.engines.flower.codec import Malformed, Parts, packed, tensors_of
from proxyfl.engines.serialization import Header
from proxyfl.federation.client import ClientTrainer
from proxyfl.models import frozen_tensors

FROZEN = "frozen"
"""The hash in a task's header, and the part of a message that holds the tensors."""


class FrozenPart:
    """The server's side: who has to be sent what is frozen. ``known`` says that sites can make it."""

    def __init__(self, tensors: Tensors, *, known: bool) -> None:
        self.known, self.header = known, {FROZEN: content_hash(tensors)} if tensors else {}
        self._tensors, self._record = tensors, packed({})
        self._packed = False
        self.has: dict[int, bool] = {}

    def parts(self, client: int) -> Parts:
        """What a message to this client carries of it."""
        if not self.header or self.has.get(client, self.known):
            return {}
        if not self._packed:
            self._record, self._packed = packed(self._tensors), True
        return {FROZEN: self._record}

    def heard(self, client: int, fine: bool) -> None:
        """A client answered, or failed: whoever failed may lack it."""
        self.has[client] = fine


def frozen_part(trainer: ClientTrainer) -> FrozenPart:
    return FrozenPart(frozen_of(trainer), known=not trainer.start)


def frozen_of(trainer: ClientTrainer) -> Tensors:
    """What is frozen of the trainer's network."""
    return detached(dict(frozen_tensors(trainer.new_network())))


def settle_frozen(trainer: ClientTrainer, header: Header, records: RecordDict, place: Path) -> None:
    """A site's side: give the trainer what is frozen, as it came with this message or an earlier one."""
    wanted = header.get(FROZEN)
    own = frozen_of(trainer)
    if content_hash(own) == wanted or (not own and wanted is None):
        return
    if FROZEN in records.array_records:
        tensors = tensors_of(records, FROZEN)
    else:
        try:
            tensors = read_verified(place)[0]
        except (FileNotFoundError, RunError):
            raise Malformed("the frozen tensors are not here yet; they come with the next task") from None
    form = {name: (value.shape, value.dtype) for name, value in own.items()}
    if content_hash(tensors) != wanted or form != {k: (v.shape, v.dtype) for k, v in tensors.items()}:
        raise Malformed("the frozen tensors are not those of this network; they come with the next task")
    if FROZEN in records.array_records:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_verified(place, tensors)
    trainer.start = detached(trainer.plain_network().state_dict()) | tensors
