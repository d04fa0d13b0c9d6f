"""One client's images or vectors and its stream of batches.

A client is two index arrays over a store of uint8 images or of vectors, and the labels of the first; the true
labels of the unlabelled ones are here for a declared oracle alone; others cannot reach them from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from proxyfl.core.config import TrainSettings
from proxyfl.core.errors import MethodError
from proxyfl.core.spans import STRONG, WEAK, span
from proxyfl.core.views import VectorSettings
from proxyfl.data import vectors
from proxyfl.data.augment import normalise, strong, weak
from proxyfl.data.numbers import is_vectors

VIEWS = frozenset({"x", "x_strong", "u_weak", "u_strong"})
"""The views a method may want: labelled weak and strong, unlabelled weak and strong."""


AT_ONCE = 1 << 19
"""Numbers in the views of the steps that are drawn together, unless one step has more: of small images, most
of the time would be spent between operations.
"""


class View(Protocol):
    """A view of whole batches of uint8 images."""

    def __call__(self, images: Tensor, generator: torch.Generator, *, flip: bool) -> Tensor: ...


@dataclass(frozen=True)
class ClientData:
    """What one client holds: ``labels`` belong to ``labelled``; ``unlabelled`` excludes those.

    ``truth`` are the labels of ``unlabelled``, which only a declared oracle is given.
    """

    images: Tensor
    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor
    truth: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labelled) + len(self.unlabelled)

    def all_labelled(self) -> ClientData:
        """The same images, every one with its true label."""
        if self.truth is None:
            raise MethodError("the true labels of unlabelled images are available only to declared oracles")
        index, labels = torch.cat([self.labelled, self.unlabelled]), torch.cat([self.labels, self.truth])
        return ClientData(self.images, index, labels, self.unlabelled[:0])


@dataclass(frozen=True)
class ViewSettings:
    """How views of a data set are computed: whether mirrored images keep their class, the normalisation, and
    how views of vectors are drawn. For samples of a frozen encoder, ``encoded`` is the number of weak views.

    >>> import proxyfl
    >>> proxyfl.Views(flip=True, mean=(0.5,), std=(0.25,)).mean
    (0.5,)
    """

    flip: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    vectors: VectorSettings = field(default_factory=VectorSettings)
    encoded: int = 0


@dataclass
class Batch:
    """One step's images, normalised and on the device. Views that no part wants are empty (zero rows).

    ``u_index`` counts from 0 inside the client's pool.
    """

    x: Tensor
    y: Tensor
    x_strong: Tensor
    u_weak: Tensor
    u_strong: Tensor
    u_index: Tensor


def steps_of(settings: TrainSettings, labelled: int, unlabelled: int, *, walk_labelled: bool = False) -> int:
    """Steps of a local epoch that the schedule proposes for so many images."""
    pool = unlabelled + labelled if settings.pool == "all" else unlabelled
    per_step = settings.batch * settings.mu if settings.epoch == "pass" else settings.batch
    walked = labelled if walk_labelled else pool
    return max(1, (walked or labelled) // (settings.batch if walk_labelled else per_step))


class Stream:
    """Batches of one client for one round, drawn from one generator. With ``sampler`` that draws the images
    of each step, of so many images so many on average.

    Labelled images are drawn with replacement, so that batches are full whatever their number; the
    unlabelled pool is walked in random order, without its incomplete last batch, and restarted when
    used up and at every epoch. Batches shrink to what a small client has; there is always a step.
    """

    def __init__(
        self,
        data: ClientData,
        settings: TrainSettings,
        views: ViewSettings,
        wants: frozenset[str],
        generator: torch.Generator,
        device: torch.device,
        *,
        walk_labelled: bool = False,
        sampler: Callable[[int, int], Tensor] | None = None,
    ) -> None:
        self.sampler = sampler
        self.data, self.views, self.wants = data, views, wants
        self.generator, self.device = generator, device
        adds_labelled = settings.pool == "all"
        self.pool = torch.cat([data.unlabelled, data.labelled]) if adds_labelled else data.unlabelled
        self.truth = data.truth
        if self.truth is not None and adds_labelled:
            self.truth = torch.cat([self.truth, data.labels])
        self.selected: Tensor | None = None
        self.walk_labelled = walk_labelled
        self.batch = settings.batch
        self.u_batch = settings.batch * settings.mu
        self.epochs = settings.epochs
        sizes = len(data.labelled), len(data.unlabelled)
        self.steps = steps_of(settings, *sizes, walk_labelled=walk_labelled)

    def restrict(self, positions: Tensor) -> None:
        """From the next epoch on draw unlabelled images only from these positions of the pool. Steps stay
        the same.
        """
        self.selected = positions.cpu()

    def epoch(self) -> Generator[Batch]:
        labelled = self._walk(len(self.data.labelled), self.batch) if self.walk_labelled else self._draws()
        selected = torch.arange(len(self.pool)) if self.selected is None else self.selected
        unlabelled = self._walk(len(selected), self.u_batch)
        if self.sampler is not None:
            labelled = self._sampled(self.sampler, len(self.data.labelled), self.batch)
            unlabelled = self._sampled(self.sampler, len(selected), self.u_batch)
        for start in range(0, self.steps, self.ahead):
            count = min(self.ahead, self.steps - start)
            drawn, positions = [*islice(labelled, count)], [*islice(unlabelled, count)]
            yield from self._batches(drawn, [selected[each] for each in positions])

    def walk_pool(self, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image of the pool once, in order: (positions, weak views)."""
        for positions in torch.split(torch.arange(len(self.pool)), batch):
            yield positions, self.weak_views(positions)

    def weak_views(self, positions: Tensor) -> Tensor:
        """Weak views of these positions of the pool."""
        return self._view(weak, self.pool[positions.cpu()])

    def _sampled(self, sampler: Callable[[int, int], Tensor], count: int, batch: int) -> Iterator[Tensor]:
        while True:
            yield sampler(count, batch)

    def _draws(self) -> Iterator[Tensor]:
        count = len(self.data.labelled)
        while True:
            size = (self.batch if count else 0,)
            yield torch.randint(max(1, count), size, generator=self.generator)

    def _walk(self, count: int, batch: int) -> Iterator[Tensor]:
        batch = min(batch, count)
        while True:
            order = torch.randperm(count, generator=self.generator)
            for start in range(0, max(1, count - batch + 1), max(1, batch)):
                yield order[start : start + batch]

    @cached_property
    def ahead(self) -> int:
        """Steps whose views are computed at once."""
        numbers = (self.batch + self.u_batch) * math.prod(vectors.sample_shape(self.data.images))
        return 1 if self.sampler is not None else max(1, AT_ONCE // numbers)

    def _batches(self, drawn: list[Tensor], positions: list[Tensor]) -> Iterator[Batch]:
        """The batches of some steps, given what each of them draws."""
        views = {}
        for name, view, indices in (
            ("x", weak, [self.data.labelled[each] for each in drawn]),
            ("x_strong", strong, [self.data.labelled[each] for each in drawn]),
            ("u_weak", weak, [self.pool[each] for each in positions]),
            ("u_strong", strong, [self.pool[each] for each in positions]),
        ):
            index = torch.cat(indices)
            wanted = name in self.wants and len(index)
            seen = self._view(view, index) if wanted else self.no_view
            views[name] = torch.split(seen, [len(each) if wanted else 0 for each in indices])
        for step, (labelled, unlabelled) in enumerate(zip(drawn, positions, strict=True)):
            yield Batch(
                **{name: parts[step] for name, parts in views.items()},
                y=self.data.labels[labelled].to(self.device),
                u_index=unlabelled.to(self.device),
            )

    @cached_property
    def no_view(self) -> Tensor:
        """Of no image at all, in the memory format of the others."""
        shape = vectors.sample_shape(self.data.images)
        if len(shape) == 1:
            return torch.empty((0, *shape), device=self.device)
        channels, height, width = shape
        return torch.empty((0, height, width, channels), device=self.device).movedim(-1, 1)

    def _view(self, view: View, index: Tensor) -> Tensor:
        with span(WEAK if view is weak else STRONG):
            images = self._samples(view, index)
            if self.device.type == "cuda":  # only from pinned memory does a transfer run beside computation
                images = images.pin_memory()
            images = images.to(self.device, non_blocking=True)
            if vectors.is_encoded(self.data.images):
                return vectors.standardise(images, self.views.mean, self.views.std)
            if is_vectors(images):
                drawn = vectors.weak if view is weak else vectors.strong
                samples = vectors.standardise(images, self.views.mean, self.views.std)
                return drawn(samples, self.generator, self.views.vectors)
            seen = view(images, self.generator, flip=self.views.flip)
            return normalise(seen, self.views.mean, self.views.std)

    def _samples(self, view: View, index: Tensor) -> Tensor:
        """Samples as the store has them; of a frozen encoder's, one of the views that it was given."""
        images = self.data.images
        if not vectors.is_encoded(images):
            return images[index]
        first = 1 + self.views.encoded
        places = range(1, first) if view is weak else range(first, images.shape[1])
        return images[index, vectors.draw_places(len(index), places, self.generator)]
