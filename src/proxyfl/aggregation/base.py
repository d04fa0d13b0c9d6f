"""The protocol of aggregation: what an aggregator is, and how it takes a round's updates.

An aggregator is a value that holds its settings and nothing else. ``begin`` opens a round and gives an
accumulator: ``admit`` lets an update through, changed or refused, ``add`` takes it, ``settle`` ends the
round. It stands between the guard and the method's server hooks and knows no method. What these hooks read
of single updates (their ``receive``) is each update as the aggregator lets it through: clipped, only the
chosen ones with Krum, and with the rules of coordinates drawn into the range that the rule trusts. Extras are
chosen and drawn in like weights, not clipped.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from proxyfl.aggregation.coverage import reads_updates
from proxyfl.aggregation.updates import Updates
from proxyfl.core.config import FederationSettings, TrainSettings
from proxyfl.core.errors import ConfigError, MethodError, UpdateRefused
from proxyfl.core.settings import check_fields
from proxyfl.core.state import Metrics, ServerState, Task, Tensors, Update, namespace
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext


@dataclass(frozen=True)
class Round:
    """What an aggregator knows before the first update of a round.

    ``state`` is what the round began with, ``holders`` counts the clients that hold any image, ``extras`` are
    those that the method's ``extras_form`` names, ``spool`` is where updates may wait.
    """

    state: ServerState
    method: Method
    per_round: int
    holders: int
    seed: int = 0
    extras: Collection[str] = ()
    spool: Path | None = None


@dataclass
class Settled:
    """What a round comes to: weights, whose updates are behind them, and what is kept of each of those."""

    weights: Tensors
    chosen: list[int]
    kept: list[Tensors]


class Accumulator(ABC):
    """One round's updates on their way to new weights, in folding order."""

    def admit(self, update: Update) -> Update:
        """An update as anything behind the guard may see it; raises :class:`UpdateRefused`."""
        return update

    @abstractmethod
    def add(self, update: Update, weight: float) -> None:
        """Take an update that was admitted."""

    @abstractmethod
    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        """End the round. ``kept`` is what the method kept of each update that was added."""


class Passing(Accumulator):
    """Lets another accumulator, ``inner``, do the work; subclasses do something before or after."""

    def __init__(self, inner: Accumulator, old: Tensors) -> None:
        self.inner, self.old = inner, old

    def admit(self, update: Update) -> Update:
        return self.inner.admit(update)

    def add(self, update: Update, weight: float) -> None:
        self.inner.add(update, weight)

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        return self.inner.settle(ctx, kept)


class Aggregator(ABC):  # noqa: B024
    """How the updates of a round become new weights.

    Your own class defines how updates are combined; the rest is provided. Updates are stored on disk and read
    one at a time while you iterate over ``updates``. Registered, it is ``aggregation.rule = "midrange"``:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from proxyfl.aggregation import Aggregator, register_aggregator
    >>> @register_aggregator("midrange")
    ... @dataclass(frozen=True)
    ... class Midrange(Aggregator):
    ...     def combine(self, updates, weights, old):
    ...         low, high = dict(updates[0]), dict(updates[0])
    ...         for update in updates:
    ...             for name, value in update.items():
    ...                 low[name] = torch.minimum(low[name], value)
    ...                 high[name] = torch.maximum(high[name], value)
    ...         return {name: (low[name] + high[name]) / 2 for name in old}
    >>> two = [{"w": torch.tensor([1.0, 8.0])}, {"w": torch.tensor([3.0, 2.0])}]
    >>> Midrange().combine(two, [1.0, 1.0], two[0])
    {'w': tensor([2., 5.])}
    """

    name: ClassVar[str] = ""
    """Its name in error messages; empty: its class's name."""
    draws_in: ClassVar[bool] = False
    """Whether extras are clamped to a trusted range before methods read them; they then need a form."""

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}.")

    @property
    def title(self) -> str:
        return self.name or type(self).__name__

    @property
    def private(self) -> bool:
        """Whether nothing about single updates may be recorded, not even that there were none: the weights
        then change in every round.
        """
        return False

    @property
    def noised(self) -> bool:
        """Whether updates carry noise when they arrive."""
        return False

    def refusal(self, method: Method, train: TrainSettings, federation: FederationSettings) -> str:
        """Why it cannot be used with this method and these settings; empty when it can."""
        return ""

    def outgoing(self, update: Update, task: Task, *, per_round: int, seed: int) -> Update:
        """A client's update as it leaves the client."""
        return update

    def spent(self, rounds: int, federation: FederationSettings, holders: int) -> Metrics:
        """The privacy cost of this many rounds; empty if nothing is guaranteed."""
        return {}

    def begin(self, round: Round) -> Accumulator:
        return Gathered(self, round)

    def decide(self, gathered: Gathered, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        """The result of all updates of a round."""
        everyone = list(range(len(kept)))
        read = gathered.received(everyone, kept)
        weights = gathered.mean_weights(ctx, read)
        found = self.combine(gathered.updates, weights, gathered.updates.old)
        return Settled(_fitting(found, gathered.updates, self.title), everyone, read)

    def combine(self, updates: Sequence[Tensors], weights: Sequence[float], old: Tensors) -> Tensors:
        """The new weights, from all updates, their weights, and the weights ``old`` that were sent out."""
        raise NotImplementedError(f"{type(self).__name__} needs a method combine(updates, weights, old)")


class Around(Aggregator):
    """An aggregator that does something before or after another one, ``inner``."""

    inner: Aggregator

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Aggregator):
            raise ConfigError(f"{type(self).__name__} needs an aggregator as inner, not {self.inner!r}")

    @property
    def private(self) -> bool:
        return self.inner.private

    @property
    def noised(self) -> bool:
        return self.inner.noised

    def refusal(self, method: Method, train: TrainSettings, federation: FederationSettings) -> str:
        return self.inner.refusal(method, train, federation)

    def outgoing(self, update: Update, task: Task, *, per_round: int, seed: int) -> Update:
        return self.inner.outgoing(update, task, per_round=per_round, seed=seed)

    def spent(self, rounds: int, federation: FederationSettings, holders: int) -> Metrics:
        return self.inner.spent(rounds, federation, holders)


class Gathered(Accumulator):
    """All updates of a round, waiting on disk for an aggregator that looks at all of them."""

    def __init__(self, aggregator: Aggregator, round: Round) -> None:
        self.aggregator, self.round, self.method = aggregator, round, round.method
        self.updates = Updates(round.state.weights, round.spool)
        self.weights: list[float] = []
        self.headers: list[Update] = []

    def admit(self, update: Update) -> Update:
        strange = sorted(update.extras.keys() - set(self.round.extras))
        if strange and self.aggregator.draws_in and reads_updates(self.method):
            rule = self.aggregator.title
            raise UpdateRefused(
                f"sends {strange[0][:80]!r}, but aggregation.rule = '{rule}' accepts only what "
                "the method's extras_form names"
            )
        return update

    def add(self, update: Update, weight: float) -> None:
        self.updates.add(update.weights)
        self.weights.append(weight)
        self.headers.append(dataclasses.replace(update, weights={}, carry={}))

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        try:
            return self.aggregator.decide(self, ctx, kept)
        finally:
            self.updates.close()

    def mean_weights(self, ctx: ServerContext, kept: list[Tensors]) -> Sequence[float]:
        """Weights of a mean: the method's own where it looks at all updates for them."""
        if not self.method.needs_all_updates:
            return self.weights
        ctx.updates = self.updates
        try:
            return self.method.weights(ctx, [namespace(tensors, self.method.name) for tensors in kept])
        finally:
            ctx.updates = ()

    def received(self, chosen: Sequence[int], kept: list[Tensors]) -> list[Tensors]:
        """What the method keeps of the chosen updates, read again where clipping changed one since."""
        if reads_updates(self.method) and any(self.updates.factors[place] < 1 for place in chosen):
            return [self.read(place, self.updates[place]) for place in chosen]
        return [kept[place] for place in chosen]

    def read(self, place: int, weights: Tensors, extras: Tensors | None = None) -> Tensors:
        """What the method keeps of an update with these weights and extras."""
        header = self.headers[place]
        changed = {**header.extras, **(extras or {})}
        return self.method.receive_all(dataclasses.replace(header, weights=weights, extras=changed))


def like(section: type[Any], place: str, key: str, default: Any = None) -> Any:
    """A field of an aggregator that is a setting of the config's: its range, its meaning, its name in errors,
    and its default unless another is given.
    """
    spec = next(spec for spec in dataclasses.fields(section) if spec.name == key)
    value = spec.default if default is None else default
    return field(default=value, metadata={**spec.metadata, "setting": f"{place}.{key}"})


def _fitting(found: Tensors, updates: Updates, title: str) -> Tensors:
    """What an aggregator computed, in the types of the weights; an error where it is no set of weights."""
    for name, old in updates.old.items():
        if name not in found or found[name].shape != old.shape:
            shape = tuple(found[name].shape) if name in found else "nothing"
            raise MethodError(f"{title} gives {shape} for '{name}' instead of {tuple(old.shape)}")
        if not bool(torch.isfinite(found[name]).all()):
            raise MethodError(f"{title} gives values for '{name}' that are not finite")
    return updates.typed(found)
