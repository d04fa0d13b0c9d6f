"""The guard: one bad update never ends a run, and never reaches the mean.

It looks at form and size: is this what was asked for, and can it be computed with? Whether well-formed
numbers are honest it cannot know; that is what robust aggregation is for. Nothing it refuses leaves a trace
in the server's state: a client whose updates are refused is the same as one that does not answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from proxyfl.aggregation.change import change_length
from proxyfl.aggregation.effort import Effort
from proxyfl.core.errors import UpdateRefused
from proxyfl.core.flat import Flat, Layout
from proxyfl.core.state import Tensors, Update

MAX_RATIO = 1e6
"""Refused by default: a change this many times as long as the weights that were sent. A round of any method
changes them by 0.2 to 2 times their length, one that diverges at ten times the learning rate by 1,600; what
is let through can still be squared and summed in float32."""

LARGEST = 1e15
"""No number beside the weights is larger: prototypes, embeddings. Their sums and squares stay finite in
float32."""

LARGEST_LOSS, LOSS_PER_SQUARE = 1e6, 1e3
"""Refused: a mean loss per step beyond the first, or beyond the second times the squared length of the
weights where that is more: penalties grow with it, FedMatch's to 6.4 times. Cross entropy begins at log C.
Whoever reports more has diverged or lies, and in either case neither its weights nor its loss belong in a
mean."""

AGAIN, MANY = 10, 100
"""What methods write down may count a step, or a visit of an image, this many times over, since each may take
several passes; counts of their own, which may be of weights that travelled, more often. These are records
alone. Class counts, from which the server computes, are bounded by the visits themselves."""

ROUNDING = 1.001
"""Sums of many counts in float32 may be this much too large."""

MOST_METRICS = 64
METRIC = re.compile(r"steps|(loss|count|pseudo)/.{1,40}")
SHOWN_NAMES, SHOWN_LETTERS = 5, 80


@dataclass
class Guard:
    """Checks the updates of one round against what was sent out.

    ``most`` tells what each client can have done with the images it registered; ``max_norm`` bounds the
    change of weights (0: ``MAX_RATIO`` times their length), ``extras`` are the shapes of what else is sent,
    as float32, and ``counts`` those of them that count images by class. ``parts`` may send extras (None:
    anyone), ``carries`` says whether a client hands momentum to the next, ``noised`` that sites add noise,
    which may make a variance negative. ``owed`` are clients whose updates are those of the round before.
    """

    round: int
    weights: Tensors
    most: Mapping[int, Effort]
    max_norm: float = 0.0
    extras: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    counts: Collection[str] = ()
    classes: int = 1
    parts: Collection[str] | None = None
    carries: bool = True
    noised: bool = False
    owed: Collection[int] = ()
    seen: set[int] = field(default_factory=set)
    length: float = 0.0
    """Of the change of weights that was checked last: of a client's trainings, the first."""

    def check(self, update: Update, asked: int | None = None) -> None:
        """Let the update pass, or raise :class:`UpdateRefused` with the reason.

        ``asked`` is the client whose answer this is, where that is known from elsewhere.
        """
        self._check_sender(update, asked)
        most = self.most[update.client]
        if len(update.again) != most.times - 1:
            raise UpdateRefused(f"has weights of {1 + len(update.again)} trainings, not {most.times}")
        for one in reversed(update.each()):
            self._check_weights(one)
        _tensors(update.extras, update.carry)
        self._check_extras(update.extras)
        self._check_carry(update.carry)
        _finite((*update.extras.items(), *update.carry.items()))
        _bounded(update.extras.items())
        self._check_counts(update.extras, most)
        self._check_metrics(update.metrics, most)
        if not _real(update.seconds) or not 0 <= update.seconds <= LARGEST:
            raise UpdateRefused(f"took {_short(update.seconds)} seconds")
        self.seen.add(update.client)

    def _check_weights(self, update: Update) -> None:
        given = update.weights
        if isinstance(given, Flat) and given.layout == self._layout:
            _tensors({f"row {number}": long for number, long in enumerate(given.long)})
        else:
            _tensors(given)
            _same_form(given, self.weights)
        rows = update.joined(self._layout)
        self.length = self._change_length(rows)
        if not math.isfinite(self.length):
            _finite(update.weights.items())
        self._check_signs(update.weights, rows)
        self._check_length()

    def _check_sender(self, update: Update, asked: int | None) -> None:
        round = self.round - (update.client in self.owed)
        if type(update.round) is not int or update.round != round:
            raise UpdateRefused(f"belongs to round {_short(update.round)}, not {round}")
        if asked is not None and (type(update.client) is not int or update.client != asked):
            raise UpdateRefused(f"says it is client {_short(update.client)}")
        if type(update.client) is not int or update.client not in self.most:
            raise UpdateRefused("was not asked in this round")
        if update.client in self.seen:
            raise UpdateRefused("answered twice")
        registered = self.most[update.client].images
        if type(update.samples) is not int or not 0 < update.samples <= registered:
            raise UpdateRefused(f"claims {_short(update.samples)} images, registered {registered}")

    def _check_extras(self, extras: Tensors) -> None:
        strict = {name.partition("/")[0] for name in self.extras}
        for name in extras:
            part = name.partition("/")[0]
            unknown = self.parts is not None and part not in self.parts
            if unknown or (part in strict and name not in self.extras):
                raise UpdateRefused(f"sends {_short(name)}, which was not requested")
        for name, shape in self.extras.items():
            if name not in extras:
                raise UpdateRefused(f"'{name}' is missing")
            _same(name, extras[name], shape, torch.float32)

    def _check_carry(self, carry: Tensors) -> None:
        if carry and not self.carries:
            raise UpdateRefused("passes something to the next client, which this run does not do")
        for name, value in carry.items():
            if name in self.weights:  # what a method keeps private is not among them
                _same(name, value, tuple(self.weights[name].shape), self.weights[name].dtype)

    def _check_signs(self, weights: Tensors, rows: Sequence[Tensor]) -> None:
        """Variances and counters do not fall below zero: one negative variance in the mean, and nobody's
        next update is finite. Counters can be added up.
        """
        for number, places, floor in self._floors:
            values = rows[number][places]
            if not values.is_floating_point() and _beyond(values):
                _bounded((name, weights[name]) for name in self._signed)
            if bool((values < floor).any()):
                least = {name: self.weights[name].clamp(max=0) for name in self._signed}
                name = next(name for name in self._signed if bool((weights[name] < least[name]).any()))
                raise UpdateRefused(f"'{name}' holds negative values")

    def _check_counts(self, extras: Tensors, most: Effort) -> None:
        """No client counts more images than it can have met, so that none outweighs all others."""
        for counted in (extras[name].double() for name in self.counts):
            if bool((counted < 0).any()):
                raise UpdateRefused("its class counts are negative")
            total = float(counted.sum())
            if total > ROUNDING * most.visits:
                raise UpdateRefused(
                    f"its class counts add up to {total:.6g}; with {most.images} images it can "
                    f"have seen at most {most.visits}"
                )

    def _check_metrics(self, metrics: Any, most: Effort) -> None:
        """Sums that the server can add up: counts are whole, none is too large, none lacks its fellows."""
        if not isinstance(metrics, Mapping) or len(metrics) > MOST_METRICS:
            raise UpdateRefused(f"its metrics are not a table of at most {MOST_METRICS} numbers")
        for name, value in metrics.items():
            if not isinstance(name, str) or not METRIC.fullmatch(name) or not name.isprintable():
                raise UpdateRefused(f"its metrics contain {_short(name)}, which was not requested")
            if not _real(value):
                raise UpdateRefused("its metrics are not finite")
            counts, loss = name.startswith("count/"), name.startswith("loss/")
            if not loss and (value < 0 or (not counts and value != int(value))):
                raise UpdateRefused(f"its metrics count {name} as {_short(value)}")
        steps = max(1.0, metrics.get("steps", 0.0))
        for name, value in metrics.items():
            if abs(value) > self._largest(name, steps, most):
                raise UpdateRefused(f"its metrics are implausible: {name} is {_short(value)}")
        _require_fellows({name.removeprefix("pseudo/") for name in metrics if name.startswith("pseudo/")})

    def _largest(self, name: str, steps: float, most: Effort) -> float:
        """Of what a client may report under this name after so many steps."""
        kind, _, what = name.partition("/")
        if kind == "loss":
            return steps * max(LARGEST_LOSS, LOSS_PER_SQUARE * self._own_length**2)
        if kind == "steps":
            return AGAIN * most.steps
        if kind == "count":
            return MANY * float(most.epochs * most.visits + self._numbers)
        if what == "excluded_images":
            return most.images
        return AGAIN * most.visits * (self.classes if what == "set_size" else 1)

    def _check_length(self) -> None:
        limit = self.max_norm or MAX_RATIO * self._own_length
        if not self.length <= limit:
            raise UpdateRefused(f"moves the weights by {self.length:.3g}, more than {limit:.3g}")

    def _change_length(self, rows: Sequence[Tensor]) -> float:
        """As :func:`~proxyfl.aggregation.change.change_length` but for rounding, in fewer operations."""
        changes = [
            new.to(torch.float64, copy=True).sub_(old)
            for new, old in zip(rows, self._sent, strict=True)
            if new.is_floating_point()
        ]
        return math.sqrt(sum(float(change.dot(change)) for change in changes))

    @cached_property
    def _layout(self) -> Layout:
        return Layout(self.weights)

    @cached_property
    def _sent(self) -> list[Tensor]:
        """The weights that were sent, in the precision in which changes are measured."""
        return [long.double() for long in self._layout.join(self.weights)]

    @cached_property
    def _signed(self) -> list[str]:
        """Counters, and variances unless they are noised."""
        return [
            name for name, value in self.weights.items()
            if value.dtype != torch.bool
            and (not value.is_floating_point() or (name.endswith("running_var") and not self.noised))
        ]  # fmt: skip

    @cached_property
    def _floors(self) -> list[tuple[int, Tensor, Tensor]]:
        """The number of each long tensor that holds some of them, where they lie in it, and what each may
        fall to: zero, or what was sent where that was less.
        """
        rows, places = self._layout.join(self.weights), self._layout.places(self._signed)
        held = [number for number, found in enumerate(places) if len(found)]
        return [(k, places[k], rows[k][places[k]].clamp(max=0)) for k in held]

    @cached_property
    def _numbers(self) -> int:
        return sum(value.numel() for value in self.weights.values())

    @cached_property
    def _own_length(self) -> float:
        """Of the weights that were sent; a network of zeros counts as one."""
        nothing = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        return max(1.0, change_length(self.weights, nothing))


def _tensors(*groups: Any) -> None:
    """Named tensors of plain numbers in plain memory: what any engine's wire brings."""
    for group in groups:
        if not isinstance(group, Mapping) or not all(isinstance(name, str) for name in group):
            raise UpdateRefused("contains something that is not a named tensor")
        for name, value in group.items():
            if not isinstance(value, Tensor):
                raise UpdateRefused(f"{_short(name)} is not a tensor")
            plain = value.layout is torch.strided and value.device.type == "cpu" and value.is_contiguous()
            if not plain or value.is_complex() or value.is_quantized or value.requires_grad:
                raise UpdateRefused(f"{_short(name)} is not a plain array of real numbers")


def _same_form(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    missing, extra = wanted.keys() - given.keys(), given.keys() - wanted.keys()
    if missing or extra:
        raise UpdateRefused(f"tensors missing: {_names(missing)}, unknown: {_names(extra)}")
    for name, value in given.items():
        _same(name, value, tuple(wanted[name].shape), wanted[name].dtype)


def _same(name: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(value.shape) != shape:
        raise UpdateRefused(f"'{name}' has shape {tuple(value.shape)}, not {shape}")
    if value.dtype != dtype:
        raise UpdateRefused(f"'{name}' is {value.dtype}, not {dtype}")


def _finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """The largest number of each tensor tells: nan and infinity are never lost in it."""
    floats = {name: value for name, value in tensors if value.is_floating_point() and value.numel()}
    largest = torch._foreach_norm([*floats.values()], math.inf) if floats else ()
    for name, value in zip(floats, largest, strict=True):
        if not math.isfinite(value):
            raise UpdateRefused(f"'{name}' holds values that are not finite")


def _bounded(tensors: Iterable[tuple[str, Tensor]]) -> None:
    for name, value in tensors:
        if value.dtype != torch.bool and _beyond(value):
            raise UpdateRefused(f"'{name}' holds values beyond {LARGEST:g}")


def _beyond(value: Tensor) -> bool:
    return not bool(((value <= LARGEST) & (value >= -LARGEST)).all())


def _require_fellows(counted: Collection[str]) -> None:
    """What is divided by another count needs it."""
    for name, needed in (
        ("visits", {"selected", "excluded_images"}),
        ("right", {"visits", "selected_right"}),
        ("low", {"set_size"}),
    ):
        if name in counted and not needed <= set(counted):
            raise UpdateRefused(f"its metrics have pseudo/{name} without {_names(needed - set(counted))}")


def _real(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def _names(names: Collection[str]) -> str:
    """A few of them, each cut short and without control characters."""
    shown = ", ".join(_short(name) for name in sorted(names)[:SHOWN_NAMES])
    return f"[{shown}{', …' if len(names) > SHOWN_NAMES else ''}]"


def _short(value: Any) -> str:
    """What an untrusted client sent, fit for a line of a log."""
    if isinstance(value, int) and abs(value) > LARGEST:
        return "far too many" if value > 0 else "far too few"
    text = repr(value[:SHOWN_LETTERS]) if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_LETTERS + 2 else f"{text[:SHOWN_LETTERS]}…"
