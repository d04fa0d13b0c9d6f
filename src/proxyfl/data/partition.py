"""Who holds what: labelled and unlabelled images dealt to clients.

Every scheme works on the labelled and on the unlabelled list apart, so a client's two class
distributions may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxyfl.core.dealing import CLIENTS, PARTIAL, SERVER, require_scenario
from proxyfl.core.errors import ConfigError, RunError, nearest
from proxyfl.data.dataset import Dataset
from proxyfl.data.labels import Indices, Pairs, label_array, legacy_generator, no_images, split_labels
from proxyfl.data.ragged import Ragged, deal, joined
from proxyfl.data.scenarios import at_some, read_scenario, require_server, scenario_tensors

MAX_REDRAWS = 1000
"""Rejected draws of one group before the ``paired`` scheme settles for the most balanced one."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The images of every client, as indices into the training split. Images in ``validation`` and
    ``server_validation`` are held out from training.

    >>> import proxyfl
    >>> split = proxyfl.partition([0, 1] * 20, clients=2, per_class=5, scheme="iid")
    >>> split.clients, split.sizes.tolist(), len(split.labelled[0])
    (2, [18, 22], 4)
    """

    labelled: Ragged
    unlabelled: Ragged
    validation: Ragged | None = None
    server: Indices = field(default_factory=no_images, kw_only=True)
    """The labelled images of the server, which no client holds."""
    server_validation: Indices = field(default_factory=no_images, kw_only=True)
    where: str = field(default=CLIENTS, kw_only=True)
    """Who has labels: see :data:`proxyfl.core.dealing.SCENARIOS`."""

    def __post_init__(self) -> None:
        require_server(self.where, self.server, self.labelled, self.server_validation)
        if len(self.labelled) != len(self.unlabelled):
            raise ConfigError(
                f"{len(self.labelled)} labelled lists do not match {len(self.unlabelled)} unlabelled lists"
            )
        if self.validation is not None and len(self.validation) != len(self.labelled):
            raise ConfigError(
                f"{len(self.labelled)} labelled lists do not match {len(self.validation)} validation lists"
            )

    def __repr__(self) -> str:
        counts = f"{len(self.all_labelled):,} labelled, {len(self.unlabelled.values):,} unlabelled"
        return f"<Partition: {len(self.labelled)} clients, {counts}>"

    @property
    def clients(self) -> int:
        return len(self.labelled)

    @property
    def all_labelled(self) -> Indices:
        """The labelled images, at clients or at the server."""
        return np.concatenate([self.labelled.values, self.server])

    @property
    def sizes(self) -> Indices:
        """Images per client, labelled and unlabelled together."""
        return self.labelled.sizes + self.unlabelled.sizes

    def to_tensors(self) -> dict[str, Tensor]:
        """Named tensors for a safetensors file; none shares memory with another."""
        tensors = {
            f"{name}.{piece}": torch.tensor(getattr(part, piece))
            for name in ("labelled", "unlabelled", "validation")
            if (part := getattr(self, name)) is not None
            for piece in ("values", "starts", "stops")
        }
        return {**tensors, **scenario_tensors(self.server, self.where, self.server_validation)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Partition:
        """The inverse of ``to_tensors``; refuses what no partition can be."""
        try:
            parts = [
                Ragged(*(tensors[f"{name}.{piece}"].cpu().numpy() for piece in ("values", "starts", "stops")))
                for name in ("labelled", "unlabelled", "validation")
                if name != "validation" or "validation.values" in tensors
            ]
            return cls(*parts, **read_scenario(tensors))
        except KeyError as missing:
            raise RunError(f"the partition file is damaged: {missing.args[0]} is missing") from missing
        except ConfigError as wrong:
            raise RunError(f"the partition file is damaged: {wrong}") from wrong

    def class_counts(self, labels: Any, classes: int) -> tuple[Indices, Indices]:
        """Images per client and class, (clients, classes), of the labelled and of the unlabelled lists."""
        given = label_array(labels, unknown=True)
        return _class_counts(self.labelled, given, classes), _class_counts(self.unlabelled, given, classes)

    def server_counts(self, labels: Any, classes: int) -> Indices:
        """The server's labelled images by class."""
        return np.bincount(label_array(labels, unknown=True)[self.server], minlength=classes)


def make_partition(
    data: Any,
    *,
    clients: int,
    per_class: int | Sequence[int],
    scheme: str = "paired",
    alpha: float = 0.1,
    alpha_labelled: float = 0.0,
    alpha_unlabelled: float = 0.0,
    split_seed: int = 7,
    partition_seed: int = 0,
    where: str = CLIENTS,
    labelled_clients: int = 1,
    validation: float = 0.0,
) -> Partition:
    """Choose ``per_class`` labelled images of each class and partition all images across ``clients``.

    ``data`` is a data set or the labels of its training images. ``alpha`` sets how uneven ``paired``,
    ``dirichlet`` and ``quantity`` are; 0 means even, as in ``iid``. ``alpha_labelled`` and
    ``alpha_unlabelled`` replace it for one kind of images, unless they are 0. Images whose class is unknown
    (label -1) stay unlabelled and are distributed evenly, in an order drawn with ``partition_seed``.
    ``natural`` gives every image to the client that the data set names. With ``where = "server"`` the
    labelled images stay at the server, and the others are partitioned. With ``"partial"``,
    ``labelled_clients`` clients, drawn with ``split_seed``, have the labels of all their images, regardless
    of ``per_class``, and the others have none. ``validation`` is the share of each class's labelled images
    that is held out.

    >>> import proxyfl
    >>> split = proxyfl.partition([0, 1] * 50, clients=4, per_class=10, scheme="iid")
    >>> split.labelled.sizes.tolist(), split.unlabelled.sizes.tolist()
    ([4, 6, 4, 6], [20, 20, 20, 20])
    """
    labels = data.train.labels if isinstance(data, Dataset) else data
    require_scheme(scheme)
    require_scenario(where)
    if clients < 1:
        raise ConfigError(f"clients = {clients} is too few; use 1 or more")
    alphas = (alpha_labelled or alpha, alpha_unlabelled or alpha)
    for value in (alpha, *alphas):
        if not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"alpha = {value} is out of range; use 0 (even) or a positive number")
    legacy_generator(partition_seed, "partition_seed")
    given = label_array(labels, unknown=True)
    known, unknown = np.flatnonzero(given >= 0), np.flatnonzero(given < 0)
    chosen, rest = (
        Pairs(known[part.index], part.label, part.classes)
        for part in split_labels(given[known], 0 if where == PARTIAL else per_class, split_seed)
    )
    if where == SERVER and not len(chosen):
        raise ConfigError("no labelled image is left for the server; give per_class above 0")
    pools = [chosen, rest] if where == CLIENTS else [rest]
    if scheme == NATURAL:
        whose = _holders(data, clients)
        dealt = [deal(pool.index, whose[pool.index], clients) for pool in pools]
        others, owner = unknown, whose[unknown]
    else:
        dealt = SCHEMES[scheme](pools, clients, alphas[-len(pools) :], partition_seed)
        others = np.random.RandomState(partition_seed).permutation(unknown)
        if scheme == "quantity" and alphas[-1]:  # they are as many as the client's other images say
            owner = _owners(len(others), _shares(clients, alphas[-1], np.random.RandomState(partition_seed)))
        else:
            owner = np.arange(len(others)) * clients // max(1, len(others))
    unlabelled = dealt[-1]
    labelled = dealt[0] if where == CLIENTS else Ragged.empty(clients)
    if where == PARTIAL:
        labelled, unlabelled = at_some(unlabelled, labelled_clients, split_seed)
    unlabelled = joined(unlabelled, others, owner) if len(others) else unlabelled
    server = chosen.index if where == SERVER else chosen.index[:0]
    dealt_out = Partition(labelled, unlabelled, server=server, where=where)
    if not validation:
        return dealt_out
    from proxyfl.data.validation import hold_out

    return hold_out(dealt_out, labels, validation, split_seed)


def require_scheme(name: str) -> None:
    known = (*SCHEMES, NATURAL)
    if name not in known:
        raise ConfigError(f"unknown partition scheme '{name}'; {nearest(name, known)}")


def _holders(data: Any, clients: int) -> Indices:
    """The client of each training image, as the data set names it."""
    if not isinstance(data, Dataset) or data.holders is None:
        raise ConfigError(
            "partition.scheme = 'natural' needs data that names its clients: folders client=NAME, a column "
            "'client', or an array 'clients'"
        )
    if len(data.clients) != clients:
        raise ConfigError(
            f"'{data.name}' names {len(data.clients)} clients, but partition.clients = {clients}; set it to "
            f"{len(data.clients)}, or choose another partition.scheme"
        )
    return np.asarray(data.holders.numpy(), np.int64)


Scheme = Callable[[Sequence[Pairs], int, Sequence[float], int], list[Ragged]]
"""(labelled and unlabelled list, clients, the alpha of each, seed) → the lists of the clients, one ``Ragged``
each.
"""


def paired(parts: Sequence[Pairs], clients: int, alphas: Sequence[float], seed: int) -> list[Ragged]:
    """Two clients share a random group of images, class by class at Dirichlet(alpha, alpha).

    The lists are laid end to end and cut again, so that all clients have equal sizes up to one.
    """
    return [
        _paired(pairs, clients, alpha, np.random.RandomState(seed)) if alpha else _evenly(pairs, clients)
        for pairs, alpha in zip(parts, alphas, strict=True)
    ]


def dirichlet(parts: Sequence[Pairs], clients: int, alphas: Sequence[float], seed: int) -> list[Ragged]:
    """Each class is dealt at its own Dirichlet(alpha) shares over all clients; some may go empty-handed."""
    generator = np.random.RandomState(seed)
    return [
        _dirichlet(pairs, clients, alpha, generator) if alpha else _evenly(pairs, clients)
        for pairs, alpha in zip(parts, alphas, strict=True)
    ]


def quantity(parts: Sequence[Pairs], clients: int, alphas: Sequence[float], seed: int) -> list[Ragged]:
    """Clients differ in size, at Dirichlet(alpha) shares of all images, and not in classes but by chance.

    Both lists use the same shares where their alphas are the same.
    """
    dealt = []
    for pairs, alpha in zip(parts, alphas, strict=True):
        if alpha == 0:
            dealt.append(_evenly(pairs, clients))
            continue
        generator = np.random.RandomState(seed)
        shares = _shares(clients, alpha, generator)
        order = generator.permutation(len(pairs))
        dealt.append(deal(pairs.index[order], _owners(len(pairs), shares), clients))
    return dealt


def _owners(count: int, shares: np.ndarray[Any, Any]) -> Indices:
    """The client of each of ``count`` images, in blocks of these shares."""
    cuts = (np.cumsum(shares)[:-1] * count).astype(np.int64)
    return np.searchsorted(cuts, np.arange(count), side="right").astype(np.int64)


def iid(parts: Sequence[Pairs], clients: int, alphas: Sequence[float], seed: int) -> list[Ragged]:
    """Client j holds [⌊j n/K⌋, ⌊(j+1) n/K⌋) of every class: equal up to one image per class."""
    return [_evenly(pairs, clients) for pairs in parts]


def shards(parts: Sequence[Pairs], clients: int, alphas: Sequence[float], seed: int) -> list[Ragged]:
    """The images sorted by class are cut into two shards per client, which are drawn without replacement.

    Both lists use the same draw, so a client's labelled and unlabelled images are of the same few classes.
    """
    order = np.random.RandomState(seed).permutation(2 * clients)
    holder = np.empty(2 * clients, dtype=np.int64)
    holder[order] = np.arange(2 * clients) // 2
    dealt = []
    for pairs in parts:
        shard = ((np.arange(len(pairs)) + 1) * (2 * clients) - 1) // max(len(pairs), 1)
        dealt.append(deal(pairs.index, holder[shard], clients))
    return dealt


SCHEMES: dict[str, Scheme] = {
    "paired": paired,
    "dirichlet": dirichlet,
    "iid": iid,
    "shards": shards,
    "quantity": quantity,
}
NATURAL = "natural"
"""The scheme that leaves every image with the client that the data names."""


def _evenly(pairs: Pairs, clients: int) -> Ragged:
    counts = np.bincount(pairs.label, minlength=pairs.classes)
    owner = ((_rank_in_class(pairs) + 1) * clients - 1) // counts[pairs.label]
    return deal(pairs.index, owner, clients)


def _paired(pairs: Pairs, clients: int, alpha: float, generator: np.random.RandomState) -> Ragged:
    order = np.arange(len(pairs))
    generator.shuffle(order)
    size = int(2 / clients * len(pairs))
    groups = -(-clients // 2)
    lists = []
    for g in range(groups):
        group = order[g * size :] if g == groups - 1 else order[g * size : (g + 1) * size]
        group = group[np.argsort(pairs.label[group], kind="stable")]
        alone = g == groups - 1 and clients % 2 == 1
        lists.append(group if alone else _share(group, pairs, alpha, generator))
    dealt = np.concatenate(lists)
    sizes = np.full(clients, len(pairs) // clients, dtype=np.int64)
    sizes[: len(pairs) % clients] += 1
    return Ragged.from_sizes(pairs.index[dealt], sizes)


def _share(group: Indices, pairs: Pairs, alpha: float, generator: np.random.RandomState) -> Indices:
    """A group ordered by class, rearranged: the first client's images, then the second's."""
    label = pairs.label[group]
    counts = np.bincount(label, minlength=pairs.classes)
    cuts = _balanced_cuts(counts.tolist(), alpha, generator)
    rank = np.arange(len(group)) - (np.cumsum(counts) - counts)[label]
    first = rank < np.array(cuts, dtype=np.int64)[label]
    return np.concatenate([group[first], group[~first]])


def _balanced_cuts(counts: list[int], alpha: float, generator: np.random.RandomState) -> list[int]:
    """How many images of each class the first client takes, redrawn until neither is too small."""
    total = sum(counts)
    enough = int(0.5 * total / 2)
    best, best_size = [0] * len(counts), -1
    for _ in range(1 + MAX_REDRAWS):
        cuts = _cut_classes(counts, alpha, generator)
        smaller = min(sum(cuts), total - sum(cuts))
        if smaller > best_size:
            best, best_size = cuts, smaller
        if smaller >= enough:
            break
    return best


def _cut_classes(counts: list[int], alpha: float, generator: np.random.RandomState) -> list[int]:
    cap = sum(counts) / 2
    held = [0, 0]
    cuts = []
    # One call draws what a call per class would: the legacy generator takes its gammas in this order.
    for n, (p, q) in zip(counts, generator.dirichlet((alpha, alpha), len(counts)).tolist(), strict=True):
        if not math.isfinite(p + q):  # both gammas underflowed
            p, q = (1.0, 0.0) if generator.randint(2) else (0.0, 1.0)
        if held[0] >= cap:
            p = 0.0
        if held[1] >= cap:
            q = 0.0
        if p + q == 0:  # the only share drawn was for a client that is full
            p, q = (0.0, 1.0) if held[0] >= cap else (1.0, 0.0)
        cut = int(p / (p + q) * n)
        cuts.append(cut)
        held[0] += cut
        held[1] += n - cut
    return cuts


def _dirichlet(pairs: Pairs, clients: int, alpha: float, generator: np.random.RandomState) -> Ragged:
    owner = np.empty(len(pairs), dtype=np.int64)
    start = 0
    for n in np.bincount(pairs.label, minlength=pairs.classes).tolist():
        ends = np.cumsum(_shares(clients, alpha, generator))
        cuts = (ends[:-1] * n).astype(np.int64)
        owner[start : start + n] = np.searchsorted(cuts, np.arange(n), side="right")
        start += n
    return deal(pairs.index, owner, clients)


def _shares(clients: int, alpha: float, generator: np.random.RandomState) -> NDArray[np.float64]:
    weights = generator.standard_gamma(alpha, clients)
    total = weights.sum()
    if not 0 < total < math.inf:  # every gamma underflowed
        weights, total = np.zeros(clients), 1.0
        weights[generator.randint(clients)] = 1.0
    return np.asarray(weights / total)


def _rank_in_class(pairs: Pairs) -> Indices:
    counts = np.bincount(pairs.label, minlength=pairs.classes)
    return np.arange(len(pairs)) - (np.cumsum(counts) - counts)[pairs.label]


def _class_counts(part: Ragged, labels: Indices, classes: int) -> Indices:
    owner, image = part.flat()
    label = labels[image]
    owner, label = owner[label >= 0], label[label >= 0]
    if label.max(initial=-1) >= classes:
        raise ConfigError(f"a label is {label.max()}, but there are only {classes} classes")
    return np.bincount(owner * classes + label, minlength=len(part) * classes).reshape(len(part), classes)
